"""Mapped ranges of expandable segments: joined and split as a snapshot lists them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.traces.state_before import MappedRanges
from tidegauge.core.allocator.trace import KnownSegment

PAGE = 2 << 20


def pages(first: int, count: int, *, stream: int = 0, is_large: bool = True) -> KnownSegment:
    return KnownSegment(first * PAGE, count * PAGE, stream, is_large, True, (0, 0), ())


def held(ranges: MappedRanges) -> list[tuple[int, int]]:
    return [(segment.address // PAGE, segment.total_bytes // PAGE) for segment in ranges.segments()]


def test_neighbours_of_one_stream_are_one_range() -> None:
    ranges = MappedRanges()
    for first in (10, 14, 12):
        assert ranges.add(pages(first, 2), kind_is_known=True)
    assert held(ranges) == [(10, 6)]


def test_neighbours_of_other_streams_and_pools_stay_apart() -> None:
    ranges = MappedRanges()
    ranges.add(pages(10, 2), kind_is_known=True)
    ranges.add(pages(12, 2, stream=7), kind_is_known=True)
    ranges.add(pages(8, 2, is_large=False), kind_is_known=True)
    assert held(ranges) == [(8, 2), (10, 2), (12, 2)]


def test_the_middle_of_a_range_can_go() -> None:
    ranges = MappedRanges()
    ranges.add(pages(10, 6), kind_is_known=True)
    assert ranges.remove(12 * PAGE, 2 * PAGE)
    assert held(ranges) == [(10, 2), (14, 2)]
    assert not ranges.remove(11 * PAGE, 2 * PAGE), "half of it is gone"
    assert not ranges.add(pages(13, 2), kind_is_known=True), "half of it is there"
    assert held(ranges) == [(10, 2), (14, 2)]


def test_a_range_of_unknown_kind_is_of_the_kind_that_is_near() -> None:
    ranges = MappedRanges()
    ranges.add(pages(10, 1, is_large=False), kind_is_known=True)
    ranges.add(pages(100_000, 10), kind_is_known=True)
    ranges.add(pages(30, 10, is_large=True), kind_is_known=False)
    ranges.add(pages(100_020, 1, is_large=False), kind_is_known=False)
    ranges.add(pages(20, 10, stream=5, is_large=True), kind_is_known=False)
    kinds = {(segment.address // PAGE, segment.stream): segment.is_large for segment in ranges.segments()}
    assert kinds == {(10, 0): False, (30, 0): False, (20, 5): True, (100_000, 0): True, (100_020, 0): True}


def test_the_kind_is_remembered_of_what_is_gone() -> None:
    ranges = MappedRanges()
    ranges.add(pages(10, 1, is_large=False), kind_is_known=True)
    ranges.remove(10 * PAGE, PAGE)
    ranges.add(pages(10, 10, is_large=True), kind_is_known=False)
    assert [segment.is_large for segment in ranges.segments()] == [False]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 8)), max_size=40))
def test_any_sequence_leaves_the_pages_that_are_mapped(steps: list[tuple[bool, int, int]]) -> None:
    ranges, mapped = MappedRanges(), set[int]()
    for adds, first, count in steps:
        wanted = set(range(first, first + count))
        if adds:
            assert ranges.add(pages(first, count), kind_is_known=True) == (not wanted & mapped)
            mapped |= wanted if not wanted & mapped else set()
        else:
            assert ranges.remove(first * PAGE, count * PAGE) == (wanted <= mapped)
            mapped -= wanted if wanted <= mapped else set()
        assert [page for first, count in held(ranges) for page in range(first, first + count)] == sorted(mapped)
        assert all(one[0] + one[1] < other[0] for one, other in zip(held(ranges), held(ranges)[1:]))
