"""Columns that contradict themselves end in a `TraceError` with the event, and in nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator_traces import MIB, Held, Requests
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.settings import AllocatorSettings
from tidegauge.core.allocator.trace import Action, Trace, TraceError

pytestmark = pytest.mark.timeout(600)

DEFAULT = AllocatorSettings()
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def twice(requests: Requests, held: Held) -> None:
    requests.alloc(MIB, at=held.address)


def freed_twice(requests: Requests, held: Held) -> None:
    requests.free(requests.alloc(1))  # so it can be seen that the trace records how frees end
    requests.request_free(held)
    requests.request_free(held)


def freed_with_another_size(requests: Requests, held: Held) -> None:
    requests.free(held._replace(size_bytes=held.size_bytes + 1))


def ended_twice(requests: Requests, held: Held) -> None:
    requests.free(held)
    requests.complete_free(held)


def huge(requests: Requests, held: Held) -> None:
    requests.alloc((1 << 63) - 1)


def beyond_signed(requests: Requests, held: Held) -> None:
    requests.alloc(1 << 63)


def huge_out_of_memory(requests: Requests, held: Held) -> None:
    requests.out_of_memory((1 << 64) - 1)


Spoil = Callable[[Requests, Held], None]


@pytest.mark.parametrize("settings", [DEFAULT, EXPANDABLE, None])
@pytest.mark.parametrize(
    ("spoil", "event", "reason"),
    [
        (twice, 2, "which is still allocated"),
        (freed_twice, 6, "a second time"),
        (freed_with_another_size, 2, "where another size was allocated"),
        (ended_twice, 4, "which is not allocated"),
        (huge, 2, "no device has as much"),
        (beyond_signed, 2, "9,223,372,036,854,775,808 bytes: no device has as much"),
        (huge_out_of_memory, 2, "no device has as much"),
    ],
)
def test_the_error_names_the_event(spoil: Spoil, event: int, reason: str, settings: AllocatorSettings | None) -> None:
    requests = Requests()
    requests.alloc(12 * MIB)
    spoil(requests, requests.alloc(MIB))
    with pytest.raises(TraceError, match=reason) as caught:
        replay(requests.trace(), settings)
    assert caught.value.event == event
    assert str(caught.value).startswith(f"event {event}: ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"action": array("B", [0, 0, 77])}, "unknown action 77"),
        ({"stream": array("H", [0, 0, 9])}, "stream number 9"),
        ({"pool": array("H", [0, 0, 9])}, "pool number 9"),
    ],
)
def test_numbers_that_the_trace_does_not_list_are_refused(change: dict[str, array[int]], reason: str) -> None:
    requests = Requests()
    for size_bytes in (1, 2, 3):
        requests.alloc(size_bytes)
    with pytest.raises(TraceError, match=reason) as caught:
        replay(replace(requests.trace(), **change), DEFAULT)  # type: ignore[arg-type]
    assert caught.value.event == 2


def test_more_streams_and_pools_than_a_process_can_have_are_refused() -> None:
    requests = Requests()
    requests.alloc(1)
    trace = replace(
        requests.trace(), streams=tuple(range(1 << 14)), pools=tuple((0, number) for number in range(1 << 14))
    )
    with pytest.raises(TraceError, match="too many"):
        replay(trace, DEFAULT)


def test_an_empty_trace_is_none_of_these() -> None:
    outcome = replay(Requests().trace(), curve_points=10, with_end=True)
    assert (outcome.events, outcome.reserved_bytes, outcome.end) == (0, 0, ())


words = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 2, 512, MIB, 20 * MIB, 40 * MIB, 1 << 45, 1 << 63])
few = st.integers(0, 3)
events = st.tuples(st.integers(0, 10), words, words, few, few)
plausible = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 6, 8]),
    st.integers(0, 6).map(lambda place: (place + 1) * 20 * MIB),
    st.sampled_from([1, MIB, 20 * MIB, 40 * MIB]),
    st.just(0),
    st.just(0),
)


def made_of(rows: list[tuple[int, int, int, int, int]], *, alloc_conf: str, complete: bool) -> Trace:
    action, address, size, stream, pool = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Trace(
        action=array("B", action),
        address=array("Q", address),
        size_bytes=array("Q", size),
        stream=array("H", stream),
        time_us=array("q"),
        pool=array("H", pool),
        stack=array("i"),
        streams=(0, 77, 5),
        pools=((0, 0), (0, 1), (3, 0)),
        torch_version="2.13.0",
        alloc_conf=alloc_conf,
        complete=complete,
        cap_bytes=1 << 30,
    )


@given(
    st.lists(events, max_size=30) | st.lists(plausible, max_size=60),
    st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:20,garbage_collection_threshold:0.1"]),
    st.booleans(),
    st.sampled_from([None, DEFAULT, EXPANDABLE]),
)
def test_anything_at_all_ends_in_an_answer_or_a_trace_error(
    rows: list[tuple[int, int, int, int, int]], conf: str, complete: bool, chosen: AllocatorSettings | None
) -> None:
    trace = made_of(rows, alloc_conf=conf, complete=complete)
    event, outcome = None, None
    try:
        outcome = replay(trace, chosen, capacity_bytes=1 << 30, with_end=True, curve_points=3)
    except TraceError as error:
        event = error.event
    if outcome is not None:
        assert outcome.events == len(trace)
        assert outcome.peak_reserved_bytes >= outcome.reserved_bytes >= outcome.allocated_bytes >= 0
    else:
        assert event in range(len(trace))


def test_a_recording_that_lost_segment_events_is_told_by_its_mismatches() -> None:
    requests = Requests()
    requests.segment(Action.SEGMENT_ALLOC, 20 * MIB, 20 * MIB)
    requests.alloc(20 * MIB, at=20 * MIB)
    requests.alloc(20 * MIB, at=60 * MIB)  # from a segment that no event tells of
    outcome = replay(requests.trace())
    assert outcome.address_mismatches == 1
    assert outcome.first_mismatch is not None
    assert (outcome.first_mismatch.event, outcome.first_mismatch.recorded) == (2, 60 * MIB)
