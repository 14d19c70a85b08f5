"""Reviews of tokens: how long one counts, and how many an API server is asked for."""

from __future__ import annotations

import pytest

from login_world import FakeReviewer, FakeTime
from tidegauge.http.access import Refusal
from tidegauge.http.token_reviews import (
    BUSY,
    KEPT_S,
    MAX_KEPT,
    PEER_BURST,
    REFUSED_KEPT_S,
    UNAVAILABLE,
    ReviewedUser,
    TokenReviews,
)

ADA = ReviewedUser("ada", frozenset({"gpu"}))


@pytest.fixture
def now() -> FakeTime:
    return FakeTime()


@pytest.fixture
def reviewer() -> FakeReviewer:
    return FakeReviewer({"a.b.c": ADA})


@pytest.fixture
def reviews(reviewer: FakeReviewer, now: FakeTime) -> TokenReviews:
    return TokenReviews(reviewer, monotonic_s=now)


def test_a_token_is_reviewed_once_a_minute_and_then_again(
    reviews: TokenReviews, reviewer: FakeReviewer, now: FakeTime
) -> None:
    for _ in range(5):
        assert reviews.user("a.b.c", "a") == ADA
    assert reviewer.asked == 1
    reviewer.users.clear()
    now.now_s += KEPT_S - 0.001
    assert reviews.user("a.b.c", "a") == ADA
    now.now_s += 0.001
    assert reviews.user("a.b.c", "a") is None
    assert KEPT_S <= 60


def test_a_token_that_was_refused_is_not_reviewed_again_for_some_seconds(
    reviews: TokenReviews, reviewer: FakeReviewer, now: FakeTime
) -> None:
    for _ in range(5):
        assert reviews.user("x.y.z", "a") is None
    assert reviewer.asked == 1
    reviewer.users["x.y.z"] = ADA
    now.now_s += REFUSED_KEPT_S
    assert reviews.user("x.y.z", "a") == ADA


def test_while_the_api_server_is_away_nobody_comes_in_and_nothing_is_remembered(
    reviews: TokenReviews, reviewer: FakeReviewer
) -> None:
    reviewer.is_away = True
    assert reviews.user("a.b.c", "a") == Refusal(503, UNAVAILABLE)
    reviewer.is_away = False
    assert reviews.user("a.b.c", "a") == ADA


def test_one_address_cannot_have_the_api_server_asked_without_end(
    reviews: TokenReviews, reviewer: FakeReviewer
) -> None:
    answers = [reviews.user(f"x.y.{n}", "10.0.0.66") for n in range(PEER_BURST + 7)]
    assert answers[PEER_BURST:] == [Refusal(429, BUSY, (("Retry-After", "5"),))] * 7
    assert reviewer.asked == PEER_BURST
    assert reviews.user("a.b.c", "10.0.0.67") == ADA


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "a\x00", "\u0430", "x" * 8001])
def test_what_cannot_be_a_token_is_not_sent_on(reviews: TokenReviews, reviewer: FakeReviewer, token: str) -> None:
    assert reviews.user(token, "a") is None
    assert reviewer.asked == 0


def test_as_many_as_are_kept_are_bounded_and_hold_no_token(
    reviews: TokenReviews, reviewer: FakeReviewer, now: FakeTime
) -> None:
    for number in range(MAX_KEPT + 10):
        reviewer.users[f"t.{number}.u"] = ADA
        now.now_s += 0.04
        reviews.user(f"t.{number}.u", f"10.1.{number // 250}.{number % 250}")
    assert len(reviews._kept) <= MAX_KEPT
    tokens = [token.encode() for token in reviewer.users]
    assert not [key for key in reviews._kept if any(token in key for token in tokens)]
