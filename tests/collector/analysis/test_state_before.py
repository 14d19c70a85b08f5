"""What lived before a trace's first event: complete recordings are cut, and what was cut off is worked out again."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots import reading as snapshots
from tidegauge.analysis.traces.reading import open_trace, with_pools
from tidegauge.analysis.traces.state_before import with_start
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.trace import Action, BlockState, KnownBlock, KnownSegment, Trace

FOLDER = Path(__file__).parents[2] / "data" / "allocator" / "snapshots"
COMPLETE = ("stacks", "own_pool", "out_of_memory", "expandable")


@cache
def recorded(name: str) -> Trace:
    return open_trace(FOLDER / f"{name}.pickle.gz")


def part(trace: Trace, start: int, end: int | None) -> Trace:
    """Some of its events, as if no more had been recorded."""
    return replace(
        trace,
        action=trace.action[start:end],
        address=trace.address[start:end],
        size_bytes=trace.size_bytes[start:end],
        stream=trace.stream[start:end],
        time_us=trace.time_us[start:end],
        pool=trace.pool[start:end],
        stack=trace.stack[start:end],
    )


def cut_off(trace: Trace, first: int) -> Trace:
    """As a ring would have kept it that holds the events from ``first`` on."""
    return replace(part(trace, first, None), complete=False, lost_events=None)


def between_requests(trace: Trace, place: int) -> int:
    """The next place that is not in the middle of a request: the model has either served one or not."""
    while place and trace.action[place - 1] != Action.ALLOC:
        place -= 1
    return place


def live(segments: Iterable[KnownSegment]) -> set[tuple[int, int, BlockState]]:
    return {
        (block.address, block.requested_bytes, block.state)
        for segment in segments
        for block in segment.blocks
        if block.state is not BlockState.INACTIVE
    }


def ranges(segments: Iterable[KnownSegment]) -> list[KnownSegment]:
    return sorted(segment._replace(blocks=()) for segment in segments)


@pytest.mark.parametrize("name", COMPLETE)
def test_a_history_that_begins_with_the_process_is_complete(name: str) -> None:
    trace = recorded(name)
    assert trace.complete
    assert trace.start == ()
    assert trace.lost_events == 0


@pytest.mark.parametrize("name", ["ring", "expandable_ring"])
def test_a_ring_that_has_lost_its_beginning_says_so(name: str) -> None:
    trace = recorded(name)
    assert not trace.complete
    assert trace.lost_events is None
    assert trace.start


@fewer(2)
@given(st.sampled_from(COMPLETE), st.floats(0, 1))
def test_with_start_reconstructs_the_state_before_a_cut(name: str, where: float) -> None:
    trace = recorded(name)
    cut = between_requests(trace, round(where * (len(trace) - 1)))
    model = replay(part(replace(trace, end=None), 0, cut), with_end=True).end
    assert model is not None
    found = with_start(cut_off(trace, cut)).start
    assert ranges(found) == ranges(model)
    assert live(found) == live(model)


@fewer(2)
@given(st.sampled_from(COMPLETE), st.floats(0, 1))
def test_the_blocks_of_each_segment_cover_it(name: str, where: float) -> None:
    trace = recorded(name)
    for segment in with_start(cut_off(trace, round(where * len(trace)))).start:
        position = segment.address
        for block in segment.blocks:
            assert block.address == position
            position += block.size_bytes
        assert position == segment.address + segment.total_bytes


@fewer(2)
@given(st.floats(0, 1))
def test_without_unsplit_remainders_the_free_blocks_are_right_as_well(where: float) -> None:
    """Expandable segments split off every remainder, so nothing about them is a guess."""
    trace = recorded("expandable")
    cut = between_requests(trace, round(where * (len(trace) - 1)))
    model = replay(part(replace(trace, end=None), 0, cut), with_end=True).end
    assert model is not None
    without_stacks = [
        segment._replace(blocks=tuple(block._replace(stack=None) for block in segment.blocks))
        for segment in with_start(cut_off(trace, cut)).start
    ]
    assert sorted(without_stacks) == sorted(model)


MIB = 1 << 20
BASE = 1 << 40


def one_segment(*blocks: tuple[int, BlockState], events: Iterable[tuple[Action, int, int]]) -> Trace:
    """A large segment that ends up with these blocks, in sizes of half a MiB, after these events."""
    address, known = BASE, []
    for halves, state in blocks:
        known.append(KnownBlock(address, halves * MIB // 2, halves * MIB // 2, state))
        address += halves * MIB // 2
    rows = list(events)
    return Trace(
        action=array("B", [row[0] for row in rows]),
        address=array("Q", [BASE + row[1] * MIB // 2 for row in rows]),
        size_bytes=array("Q", [row[2] * MIB // 2 for row in rows]),
        stream=array("H", [0] * len(rows)),
        time_us=array("q"),
        pool=array("H"),
        stack=array("i"),
        complete=False,
        end=(KnownSegment(BASE, address - BASE, 0, True, False, (0, 0), tuple(known)),),
    )


FREED_LATER = ((Action.FREE_REQUESTED, 0, 10), (Action.FREE_COMPLETED, 0, 10))
"""A block of 5 MiB at the start of the segment, as far as was asked for."""


@pytest.mark.parametrize(
    ("trace", "size_bytes"),
    [
        # Nothing tells: what it asked for.
        (one_segment((40, BlockState.INACTIVE), events=FREED_LATER), 5 * MIB),
        # A live block half a MiB behind it: the free half would not have been split off.
        (
            one_segment((11, BlockState.INACTIVE), (29, BlockState.ACTIVE_ALLOCATED), events=FREED_LATER),
            11 * MIB // 2,
        ),
        # A live block far behind it.
        (one_segment((14, BlockState.INACTIVE), (26, BlockState.ACTIVE_ALLOCATED), events=FREED_LATER), 5 * MIB),
        # While it lives, a block is cut from the front of the free one behind it, half a MiB further on.
        (
            one_segment(
                (11, BlockState.INACTIVE), (4, BlockState.ACTIVE_ALLOCATED), (25, BlockState.INACTIVE),
                events=((Action.ALLOC, 11, 4), *FREED_LATER),
            ),
            11 * MIB // 2,
        ),
        # The same once it is gone shows nothing of it.
        (
            one_segment(
                (11, BlockState.INACTIVE), (4, BlockState.ACTIVE_ALLOCATED), (25, BlockState.INACTIVE),
                events=(*FREED_LATER, (Action.ALLOC, 11, 4)),
            ),
            5 * MIB,
        ),
    ],
)  # fmt: skip
def test_with_start_infers_the_size_of_a_freed_block_from_later_events(trace: Trace, size_bytes: int) -> None:
    first = with_start(trace).start[0].blocks[0]
    assert first.state is BlockState.ACTIVE_ALLOCATED
    assert first.size_bytes == size_bytes


def test_the_replay_goes_on_from_there() -> None:
    trace = recorded("expandable")
    whole = replay(trace)
    rest = replay(with_start(cut_off(trace, between_requests(trace, 200))))
    assert rest.address_mismatches == whole.address_mismatches == 0
    assert (rest.allocated_bytes, rest.reserved_bytes, rest.segments) == (
        whole.allocated_bytes, whole.reserved_bytes, whole.segments,
    )  # fmt: skip


@pytest.mark.parametrize("action", [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.SEGMENT_ALLOC])
def test_without_one_event_a_history_is_a_contradiction_or_no_longer_complete(action: Action) -> None:
    trace = recorded("stacks")
    # One that is undone later: of the first hundred events each is.
    place = next(place for place in range(100) if trace.action[place] == action)
    without = replace(part(trace, 0, None), complete=False)
    for column in (without.action, without.address, without.size_bytes, without.stream, without.stack):
        del column[place]
    with contextlib.suppress(BadTraceError):
        assert with_start(without).start, "what the event made must have been there before the history began"


def test_a_history_without_some_actions_is_refused_with_the_event() -> None:
    with pytest.raises(BadTraceError, match=r"event [0-9]+ of device 0 \(free_requested at 0x[0-9a-f]+\) does not fit"):
        open_trace(FOLDER / "skipped_actions.pickle.gz")


def test_a_history_out_of_order_is_refused_with_the_entry() -> None:
    with pytest.raises(BadTraceError, match=r"shrunk_ring.*device_traces\[0\]\[[0-9]+\]: its clock is .* before"):
        open_trace(FOLDER / "shrunk_ring.pickle.gz")


def test_a_trace_that_does_not_list_its_end_cannot_be_played_backwards() -> None:
    with pytest.raises(BadTraceError, match="does not list the segments at its end"):
        with_start(replace(recorded("stacks"), end=None))


def test_pools_of_torch_before_2_12_are_known_by_address() -> None:
    """The recording names them; without that they are found again where the segment is there at the end."""
    named = recorded("own_pool")
    assert set(named.pool) == {0, 1}
    bare = snapshots.read_snapshot(FOLDER / "own_pool.pickle.gz").traces[0]
    found = with_pools(replace(bare, pool=named.pool[:0], pools=((0, 0),)))
    assert [found.pools[place] for place in found.pool] == [named.pools[place] for place in named.pool]


def test_addresses_belong_to_a_pool_from_its_segment_on() -> None:
    """The same range was a segment of the default pool before: what happened in it then is not the pool's."""
    before = (Action.SEGMENT_ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.SEGMENT_FREE)
    whole = one_segment(
        (40, BlockState.ACTIVE_ALLOCATED),
        events=((action, 0, 40) for action in (*before, Action.SEGMENT_ALLOC, Action.ALLOC)),
    )
    own = (whole.end or ())[0]._replace(pool=(0, 1))
    found = with_pools(replace(whole, end=(own,)))
    assert [found.pools[place] for place in found.pool] == [(0, 0)] * 5 + [(0, 1)] * 2
