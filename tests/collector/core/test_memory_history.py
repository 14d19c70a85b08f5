"""`MemoryHistory`: bounded, and nothing that matters is lost, for any readings at any times."""

from __future__ import annotations

import sys
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core import memory_history
from tidegauge.core.memory_history import BUCKETS, CLOCK_STEP_S, MemoryHistory, MemoryPoint, PackedPoints

BEGAN_S = 1_800_000_000.0

amounts = st.integers(0, 2**52)
# Quarters of a second are exact in a double, and cover boundaries of buckets.
gaps_s = st.one_of(st.integers(0, 12), st.integers(0, 4_000_000)).map(lambda quarters: quarters / 4)
readings = st.tuples(st.integers(0, 2**40), amounts, amounts, st.none() | amounts)


def history_of(points: list[MemoryPoint]) -> MemoryHistory:
    history = MemoryHistory()
    for point in points:
        history.add(point)
    return history


def ticking(count: int, *, every_s: float = 1.0) -> list[MemoryPoint]:
    """A rank that grows by one byte a reading."""
    return [MemoryPoint(BEGAN_S + n * every_s, n, 1000 + n, 2000 + n, 10) for n in range(count)]


@st.composite
def lives(draw: st.DrawFn) -> list[MemoryPoint]:
    """Readings in order of time."""
    at_s, points = BEGAN_S, []
    for gap_s, reading in draw(st.lists(st.tuples(gaps_s, readings), min_size=1, max_size=300)):
        at_s += gap_s
        points.append(MemoryPoint(at_s, *reading))
    return points


@given(lives())
def test_the_peaks_and_the_end_of_a_life_are_kept_whatever_its_length(life: list[MemoryPoint]) -> None:
    kept = history_of(life).points()
    assert 1 <= len(kept) <= BUCKETS
    assert max(point.allocated_bytes for point in kept) == max(point.allocated_bytes for point in life)
    assert max(point.reserved_bytes for point in kept) == max(point.reserved_bytes for point in life)
    known = [point.nontorch_bytes for point in life if point.nontorch_bytes is not None]
    assert max((p.nontorch_bytes for p in kept if p.nontorch_bytes is not None), default=None) == max(
        known, default=None
    )
    assert (kept[-1].at_unix_s, kept[-1].step) == (life[-1].at_unix_s, life[-1].step)


@given(lives())
def test_every_point_is_the_highest_of_the_readings_since_the_point_before(life: list[MemoryPoint]) -> None:
    since_s = 0.0
    for point in history_of(life).points():
        stretch = [reading for reading in life if since_s < reading.at_unix_s <= point.at_unix_s]
        assert point.step == stretch[-1].step
        assert point.allocated_bytes == max(reading.allocated_bytes for reading in stretch)
        known = [reading.nontorch_bytes for reading in stretch if reading.nontorch_bytes is not None]
        assert point.nontorch_bytes == max(known, default=None)
        since_s = point.at_unix_s


@given(lives())
def test_all_buckets_are_of_one_width(life: list[MemoryPoint]) -> None:
    times = [point.at_unix_s - BEGAN_S for point in history_of(life).points()]
    began_s = life[0].at_unix_s - BEGAN_S
    width_s = 1.0
    while times[-1] - began_s >= BUCKETS * width_s:
        width_s *= 2
    buckets = [(at_s - began_s) // width_s for at_s in times]
    assert all(first < second for first, second in pairwise(buckets))


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), readings), min_size=1, max_size=300))
def test_a_clock_that_jumps_both_ways_leaves_a_history_in_order(
    life: list[tuple[float, tuple[int, int, int, None]]],
) -> None:
    at_s, given_points = BEGAN_S, []
    for jump_s, reading in life:
        at_s += jump_s
        given_points.append(MemoryPoint(at_s, *reading))
    kept = history_of(given_points).points()
    assert len(kept) <= BUCKETS
    assert all(first.at_unix_s < second.at_unix_s for first, second in pairwise(kept))
    assert max(point.reserved_bytes for point in kept) == max(point.reserved_bytes for point in given_points)
    assert kept[-1].at_unix_s <= given_points[-1].at_unix_s + CLOCK_STEP_S + 1e-3
    assert kept[-1].step == given_points[-1].step


@given(lives(), st.integers(1, 150))
def test_a_sparkline_is_as_long_as_asked_at_most_and_as_high_as_the_life(life: list[MemoryPoint], columns: int) -> None:
    history = history_of(life)
    line = history.used_bytes(columns)
    assert len(line) == min(columns, len(history.points()))
    assert max(line) == max(point.used_bytes for point in history.points())
    assert set(line) <= {point.used_bytes for point in history.points()}


def test_a_short_life_is_kept_second_by_second() -> None:
    assert history_of(ticking(BUCKETS)).points() == tuple(ticking(BUCKETS))


def test_a_full_history_halves_its_points_and_goes_on() -> None:
    kept = history_of(ticking(BUCKETS + 1)).points()
    assert [point.step for point in kept] == [*range(1, BUCKETS, 2), BUCKETS]


@pytest.mark.parametrize(("seconds", "fewest"), [(1_000, 60), (100_000, 60)])
def test_a_long_life_has_at_least_half_of_the_points(seconds: int, fewest: int) -> None:
    assert fewest <= len(history_of(ticking(seconds)).points()) <= BUCKETS


def test_a_reading_that_is_told_twice_changes_nothing() -> None:
    once, twice = history_of(ticking(50)), history_of([point for point in ticking(50) for _ in (0, 1)])
    assert once.points() == twice.points()


def test_after_a_clock_was_set_back_an_hour_the_history_goes_on_at_once() -> None:
    before = ticking(10)
    after = [MemoryPoint(BEGAN_S - 3600 + n, 10 + n, 1, 1, None) for n in range(5)]
    kept = history_of([*before, *after]).points()
    assert [point.step for point in kept] == [*range(9), 10, 11, 12, 13, 14]
    assert kept[-1].at_unix_s == after[-1].at_unix_s


def test_an_unknown_reading_is_unknown_and_never_nothing() -> None:
    (point,) = history_of([MemoryPoint(BEGAN_S, 1, 5, 6, None)]).points()
    assert (point.nontorch_bytes, point.used_bytes) == (None, 6)


def test_a_history_without_a_reading_is_empty() -> None:
    assert MemoryHistory().points() == ()
    assert MemoryHistory().used_bytes(20) == ()


def test_a_gap_is_drawn_as_it_was_before_it() -> None:
    history = history_of([MemoryPoint(BEGAN_S + at_s, 0, 0, used, None) for at_s, used in ((0, 1), (1, 2), (9, 3))])
    assert history.used_bytes(3) == (2, 2, 3)


def test_ten_thousand_ranks_take_less_than_sixty_megabytes() -> None:
    history = history_of(ticking(BUCKETS - 1))
    assert 10_000 * (sys.getsizeof(history._figures) + sys.getsizeof(history)) < 60_000_000


POINTS = st.lists(
    st.builds(
        MemoryPoint,
        at_unix_s=st.floats(0, 4e9),
        step=st.integers(0, 2**40),
        allocated_bytes=st.integers(0, 2**50),
        reserved_bytes=st.integers(0, 2**50),
        nontorch_bytes=st.none() | st.integers(0, 2**50),
    ),
    max_size=20,
)


@given(POINTS, st.slices(20))
def test_packed_points_are_the_points_that_were_packed(points: list[MemoryPoint], part: slice) -> None:
    packed = PackedPoints(points)
    assert packed == points
    assert list(packed) == points
    assert packed[part] == tuple(points[part])
    assert packed[-len(points) :] == tuple(points)
    assert bool(packed) == bool(points)
    with pytest.raises(IndexError):
        packed[len(points)]


def test_packed_points_take_a_fifth_of_the_memory() -> None:
    points = [MemoryPoint(1.8e9 + at, at, at << 30, at << 31, at << 20) for at in range(120)]
    tracemalloc.start()
    packed = PackedPoints(points)
    taken = tracemalloc.take_snapshot()
    tracemalloc.stop()
    # Only there: pytest's own threads take memory too, whenever the next tests are handed to them.
    ours = taken.filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern=memory_history.__file__)])
    assert 0 < sum(one.size for one in ours.traces) < 6_000
    assert len(packed) == 120
