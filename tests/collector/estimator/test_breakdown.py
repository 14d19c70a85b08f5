"""What was live at the peak, from hand-made events."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.allocator.trace import Action, Trace
from tidegauge.estimator.breakdown import (
    block_bytes,
    most_live,
    peak_moment,
    step_peaks,
    without_the_making,
)
from tidegauge.estimator.recording import Recording

KIB = 1 << 10
Event = tuple[Action, int, int]


def made(address: int, size_bytes: int) -> list[Event]:
    return [(Action.ALLOC, address, size_bytes)]


def freed(address: int, size_bytes: int) -> list[Event]:
    return [(Action.FREE_REQUESTED, address, size_bytes), (Action.FREE_COMPLETED, address, size_bytes)]


def trace_of(*parts: list[Event], **marks: Sequence[int]) -> Trace:
    events = [event for part in parts for event in part]
    return Trace(
        action=array("B", (event[0] for event in events)),
        address=array("Q", (event[1] for event in events)),
        size_bytes=array("Q", (event[2] for event in events)),
        stream=array("H", [0] * len(events)),
        time_us=array("q"),
        pool=array("H"),
        stack=array("i"),
        marks={name: tuple(places) for name, places in marks.items()},
    )


def recording_of(trace: Trace) -> Recording:
    """Each event has its index for its kind, phase and site."""
    indices = range(len(trace))
    return Recording(trace, array("B", indices), array("B", indices), array("i", indices), (), 0, (), "2.13.0")


def test_the_peak_is_the_first_moment_with_most_blocks_and_names_what_was_asked_for() -> None:
    trace = trace_of(made(1, 700), made(2, 4 * KIB), freed(2, 4 * KIB), made(3, 4 * KIB), made(4, 100), freed(4, 100))
    moment = peak_moment(trace, [0, 1, 1, 1, 2, 3, 3, 3], 4)
    assert moment.event == 5
    assert moment.allocated_bytes == 1024 + 4 * KIB + 512
    assert moment.requested_by_category == (700, 0, 4 * KIB, 100)


def test_a_job_without_an_allocation_has_no_peak() -> None:
    assert peak_moment(trace_of(), [], 2) == (-1, 0, (0, 0))


def test_each_step_has_its_own_peak_and_the_first_one_has_what_came_before() -> None:
    trace = trace_of(made(1, KIB), made(2, 8 * KIB), freed(2, 8 * KIB), made(3, 2 * KIB), freed(3, 2 * KIB))
    assert step_peaks(trace, [4, 7]) == ((1, 9 * KIB), (4, 3 * KIB))


def test_memory_that_lives_on_counts_in_a_step_that_allocates_nothing() -> None:
    trace = trace_of(made(1, KIB), freed(9, KIB))
    assert step_peaks(trace, [1, 3])[1][1] == KIB


def test_most_live_counts_the_wanted_categories_together() -> None:
    trace = trace_of(made(1, 100), made(2, 50), made(3, 1000), freed(1, 100), made(4, 20))
    assert most_live(trace, [0, 1, 2, 0, 0, 1], frozenset({0, 1})) == 150


def test_without_the_making_cuts_blocks_freed_during_the_build_and_shifts_marks() -> None:
    trace = trace_of(made(1, KIB), made(2, KIB), freed(1, KIB), made(1, 3 * KIB), made(5, KIB), build=[5], step=[6])
    cut = without_the_making(recording_of(trace))
    assert list(cut.kinds) == list(cut.phases) == list(cut.sites) == [1, 4, 5]
    assert list(cut.trace.address) == [2, 1, 5]
    assert cut.trace.marks == {"build": (2,), "step": (3,)}


def test_a_block_that_is_freed_after_the_making_stays() -> None:
    trace = trace_of(made(1, KIB), freed(1, KIB), build=[1])
    cut = without_the_making(recording_of(trace))
    assert (len(cut.trace), list(cut.kinds)) == (3, [0, 1, 2])


def test_a_trace_is_cut_after_its_first_events() -> None:
    cut = trace_of(made(1, KIB), made(2, KIB)).first(1)
    assert list(cut.address) == [1]
    assert len(cut.time_us) == 0


@given(st.integers(min_value=0, max_value=1 << 40))
def test_blocks_are_the_next_multiple_of_512_and_never_empty(requested_bytes: int) -> None:
    block = block_bytes(requested_bytes)
    assert block % 512 == 0
    assert max(requested_bytes, 1) <= block < max(requested_bytes, 1) + 512


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1 << 20)), max_size=60))
def test_the_peak_is_never_below_any_moment(requests: list[tuple[int, int]]) -> None:
    live: dict[int, int] = {}
    parts, highest = [], 0
    for address, size_bytes in requests:
        if address in live:
            parts.append(freed(address, live.pop(address)))
        else:
            parts.append(made(address, size_bytes))
            live[address] = size_bytes
        highest = max(highest, sum(map(block_bytes, live.values())))
    trace = trace_of(*parts)
    moment = peak_moment(trace, [0] * len(trace), 1)
    assert moment.allocated_bytes == highest
    assert sum(moment.requested_by_category) <= highest
