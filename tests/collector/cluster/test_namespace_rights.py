"""What users of Kubernetes may: how long an answer counts, and how many questions a page is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from login_world import FakeAccess, FakeTime
from tidegauge.http.access import RightsUnknownError
from tidegauge.http.namespace_rights import (
    AWAY_S,
    CHANGE,
    MAX_AT_ONCE,
    MAX_KEPT,
    MAX_WAITING,
    NO_KEPT_S,
    READ,
    READ_ALL,
    READ_METRICS,
    YES_KEPT_S,
    AccessReviews,
    AccessRight,
    RightsOfUser,
)
from tidegauge.http.token_reviews import ReviewedUser
from waiting import PATIENCE_S, eventually

ADA = ReviewedUser("ada", frozenset({"gpu"}))
EVERYWHERE = [f"team-{number}" for number in range(300)]


@pytest.fixture
def now() -> FakeTime:
    return FakeTime()


@pytest.fixture
def access() -> FakeAccess:
    return FakeAccess(
        {"ada": {AccessRight(READ, "team-7"), AccessRight(READ, "team-9"), AccessRight(CHANGE, "team-9")}}
    )


@pytest.fixture
def rights(access: FakeAccess, now: FakeTime) -> RightsOfUser:
    return RightsOfUser(AccessReviews(access, within_s=PATIENCE_S, monotonic_s=now), ADA)


def test_a_page_of_three_hundred_namespaces_asks_once_for_each(rights: RightsOfUser, access: FakeAccess) -> None:
    for _ in range(3):
        assert not rights.reads_all()
        assert rights.readable(EVERYWHERE) == (frozenset({"team-7", "team-9"}), 0)
    assert sorted(access.asked) == sorted([READ_ALL, *(AccessRight(READ, one) for one in EVERYWHERE)])


def test_reading_changing_and_metrics_are_rights_of_their_own(rights: RightsOfUser, access: FakeAccess) -> None:
    assert [rights.may_change(one) for one in ("team-7", "team-9", "")] == [False, True, False]
    assert not rights.reads_metrics()
    access.rights["ada"] = {READ_METRICS}
    other = RightsOfUser(AccessReviews(access, within_s=PATIENCE_S), ADA)
    assert other.reads_metrics()
    assert not other.reads_all()


def test_a_right_counts_for_a_minute_and_a_refusal_for_five(
    rights: RightsOfUser, access: FakeAccess, now: FakeTime
) -> None:
    assert rights.readable(["team-7", "team-8"])[0] == {"team-7"}
    access.rights["ada"] = {AccessRight(READ, "team-8")}
    now.now_s += YES_KEPT_S - 0.001
    assert rights.readable(["team-7", "team-8"])[0] == {"team-7"}
    now.now_s += 0.001
    assert rights.readable(["team-7", "team-8"])[0] == frozenset()
    now.now_s += NO_KEPT_S - YES_KEPT_S
    assert rights.readable(["team-7", "team-8"])[0] == {"team-8"}
    assert YES_KEPT_S <= 60


def test_while_the_api_server_is_away_what_was_known_counts_for_its_time_and_then_nothing(
    rights: RightsOfUser, access: FakeAccess, now: FakeTime
) -> None:
    assert rights.readable(["team-7"]) == (frozenset({"team-7"}), 0)
    access.is_away = True
    assert rights.readable(["team-7", "team-9"]) == (frozenset({"team-7"}), 1)
    now.now_s += YES_KEPT_S
    for ask in (lambda: rights.readable(["team-7"]), rights.reads_all, lambda: rights.may_change("team-9")):
        with pytest.raises(RightsUnknownError):
            ask()
    access.is_away = False
    now.now_s += AWAY_S
    assert rights.readable(["team-7"]) == (frozenset({"team-7"}), 0)


def test_an_api_server_that_is_away_is_not_asked_for_every_namespace(
    rights: RightsOfUser, access: FakeAccess, now: FakeTime
) -> None:
    access.is_away = True
    for _ in range(5):
        with pytest.raises(RightsUnknownError):
            rights.readable(EVERYWHERE)
    assert len(access.asked) <= MAX_AT_ONCE
    now.now_s += AWAY_S
    access.is_away = False
    assert rights.readable(EVERYWHERE)[1] == 0


class SlowAccess:
    """Answers once the test lets it."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.asked: list[AccessRight] = []

    def may(self, user: ReviewedUser, wanted: AccessRight) -> bool:
        self.asked.append(wanted)
        assert self.goes_on.wait(PATIENCE_S)
        return True


@pytest.fixture
def slow() -> SlowAccess:
    return SlowAccess()


@pytest.fixture
def hurried(slow: SlowAccess) -> Iterator[AccessReviews]:
    yield AccessReviews(slow, within_s=0.01)
    slow.goes_on.set()


def test_what_is_not_known_in_time_is_left_out_and_there_for_the_next_page(
    slow: SlowAccess, hurried: AccessReviews
) -> None:
    rights = RightsOfUser(hurried, ADA)
    with pytest.raises(RightsUnknownError):
        rights.readable(EVERYWHERE)
    assert eventually(lambda: len(slow.asked) == MAX_AT_ONCE), "side by side, and so many at once"
    slow.goes_on.set()
    assert eventually(lambda: _all_known(rights))
    assert len(slow.asked) == len(EVERYWHERE), "none twice, however many pages waited for it"


def _all_known(rights: RightsOfUser) -> bool:
    try:
        return rights.readable(EVERYWHERE) == (frozenset(EVERYWHERE), 0)
    except RightsUnknownError:
        return False


def test_a_question_that_is_on_its_way_is_not_asked_again(slow: SlowAccess) -> None:
    patient = AccessReviews(slow, within_s=PATIENCE_S)
    said: list[bool] = []
    ask: Callable[[], None] = lambda: said.append(RightsOfUser(patient, ADA).reads_all())  # noqa: E731
    people = [threading.Thread(target=ask) for _ in range(5)]
    for one in people:
        one.start()
    assert eventually(lambda: len(slow.asked) == 1)
    slow.goes_on.set()
    for one in people:
        one.join(PATIENCE_S)
    assert (said, slow.asked) == ([True] * 5, [READ_ALL])


def test_questions_and_answers_are_bounded(slow: SlowAccess, hurried: AccessReviews, access: FakeAccess) -> None:
    hurried.answers(ADA, [AccessRight(READ, str(number)) for number in range(MAX_WAITING + 50)])
    assert len(hurried._on_its_way) == MAX_WAITING
    slow.goes_on.set()
    reviews = AccessReviews(access, within_s=PATIENCE_S)
    reviews._kept.update({(ADA, AccessRight(READ, f"x{number}")): (False, 0.0) for number in range(MAX_KEPT)})
    assert not RightsOfUser(reviews, ADA).reads_all()
    assert len(reviews._kept) == MAX_KEPT


def test_users_of_one_name_with_other_groups_are_others(access: FakeAccess) -> None:
    reviews = AccessReviews(access, within_s=PATIENCE_S)
    for user in (ADA, ADA._replace(groups=frozenset()), ADA._replace(extra=(("scopes", ("a",)),)), ADA):
        RightsOfUser(reviews, user).reads_all()
    assert len(access.asked) == 3
