"""The client's own limit: on average so many a second, so many at once, nobody overtakes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegauge_scheduler_hooks.kubernetes.client.api import TokenBucket


@given(
    per_s=st.floats(0.5, 100),
    burst=st.integers(1, 50),
    gaps_s=st.lists(st.floats(0, 5, allow_subnormal=False), min_size=1, max_size=60),
)
def test_no_stretch_of_time_sees_more_than_the_limit(per_s: float, burst: int, gaps_s: list[float]) -> None:
    bucket = TokenBucket(per_s=per_s, burst=burst)
    now_s, sent_s = 0.0, []
    for gap_s in gaps_s:
        now_s += gap_s
        wait_s = bucket.take(now_s, at_most_s=1e9)
        assert wait_s is not None
        sent_s.append(now_s + wait_s)
    assert sent_s == sorted(sent_s)
    for first in range(len(sent_s)):
        for last in range(first, len(sent_s)):
            allowed = burst + per_s * (sent_s[last] - sent_s[first])
            assert last - first + 1 <= allowed + 1e-6


def test_a_burst_waits_for_nothing() -> None:
    bucket = TokenBucket(per_s=1, burst=3)
    assert [bucket.take(0.0, at_most_s=0) for _ in range(4)] == [0, 0, 0, None]


def test_token_bucket_gives_no_slot_if_the_wait_is_too_long() -> None:
    bucket = TokenBucket(per_s=1, burst=1)
    bucket.take(0.0, at_most_s=0)
    assert bucket.take(0.0, at_most_s=0.5) is None
    assert bucket.take(0.0, at_most_s=1.0) == 1.0
