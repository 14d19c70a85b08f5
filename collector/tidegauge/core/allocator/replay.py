"""Replays a recorded trace through the model."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional, Union

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.beginning import (
    KNOWN_FIELDS,
    known_blocks,
    numbered_pools,
    put_known,
    trace_rules,
)
from tidegauge.core.allocator.calls import ACTIONS, count_actions, find_calls
from tidegauge.core.allocator.compiled import IS_COMPILED, Numbers, column, table_of, zeros
from tidegauge.core.allocator.events import run
from tidegauge.core.allocator.layout import (
    ALLOCATED,
    BAD_SIZE,
    BLOCK_FIELDS,
    DOUBLE_FREE,
    FAILURE_FIELDS,
    FINE,
    LIVE_ADDRESS,
    NO_ROOM,
    NONE,
    OTHER_SIZE,
    PENDING,
    UNKNOWN_ACTION,
    UNKNOWN_FREE,
    UNKNOWN_POOL,
    UNKNOWN_STREAM,
    UNMAPPED,
    UNUSED,
    Events,
    Record,
    Tables,
)
from tidegauge.core.allocator.results import (
    MAX_FAILED,
    AddressMismatch,
    FailedRequest,
    FollowedTies,
    MemoryCurve,
    Replay,
)
from tidegauge.core.allocator.settings import AllocatorSettings, parse_settings
from tidegauge.core.allocator.sizes import is_small_shelf
from tidegauge.core.allocator.tables import empty_tables, grown
from tidegauge.core.allocator.trace import Action, BlockState, KnownBlock, KnownSegment, Trace, TraceError

if TYPE_CHECKING:
    from types import EllipsisType

OnProgress = Callable[[int, int], None]
PROGRESS_EVENTS = 1 << 18
"""Between two calls of ``on_progress``."""
TIES_STRIDE = 16 if IS_COMPILED else 1
"""Events between two looks for a tie: a call of compiled code costs as much as some events."""
CARD_SHARE = 0.9
"""With so much of the card reserved, a request may well have been refused by the device, although none failed."""

_REASONS = {
    LIVE_ADDRESS: "allocates {address:#x}, which is still allocated",
    UNKNOWN_FREE: "frees {address:#x}, which is not allocated, although the trace is said to be complete",
    DOUBLE_FREE: "frees {address:#x} a second time",
    OTHER_SIZE: "frees {size:,} bytes at {address:#x}, where another size was allocated",
    BAD_SIZE: "asks for {size:,} bytes: no device has as much",
    UNKNOWN_ACTION: "has the unknown action {action}",
    UNKNOWN_STREAM: "is on stream number {stream}, which the trace does not list",
    UNKNOWN_POOL: "is in pool number {pool}, which the trace does not list",
}

_STATES = {ALLOCATED: BlockState.ACTIVE_ALLOCATED, PENDING: BlockState.ACTIVE_PENDING_FREE}


def replay(
    trace: Trace,
    settings: Optional[AllocatorSettings] = None,
    *,
    cap_bytes: Union[int, EllipsisType, None] = ...,
    capacity_bytes: Optional[int] = None,
    curve_points: int = 0,
    with_end: bool = False,
    on_progress: Optional[OnProgress] = None,
) -> Replay:
    """Replay the trace's requests through the model of PyTorch's allocator.

    Without ``settings`` they are the recorded ones, and so are the addresses of segments and what the device refused:
    every address is compared with the recorded one. With ``settings`` all that is the model's own. ``cap_bytes``: what
    the process may reserve (the trace's by default, ``None`` for no cap); ``capacity_bytes``: what the device can give
    it in all, unlimited by default. ``curve_points`` windows of the curve; ``on_progress(done, all)`` is called now and
    then, in events. Raises `TraceError` where the events contradict each other, and `ValueError` where the recorded
    settings are none of the recorded torch.
    """
    made = _prepared(trace, settings, cap_bytes=cap_bytes, capacity_bytes=capacity_bytes)
    record, events, tables = made.record, made.events, made.tables
    curve = MemoryCurve(array("q"), array("q"), array("q"))
    tables = _run(trace, record, events, tables, curve if curve_points > 0 else None, curve_points, on_progress)
    end = _segments_at_end(tables, made.streams, made.pools) if with_end else None
    return _result(trace, tables, curve if curve_points > 0 else None, end)


def followed_ties(trace: Trace) -> FollowedTies:
    """Replay the trace as it was recorded, for its ties: the first of each ``TIES_STRIDE`` events. Raises as
    ``replay``."""
    made = _prepared(trace, None, cap_bytes=..., capacity_bytes=None)
    tables, ties, event = made.tables, [], 0
    while event < len(trace):
        event, tables = _advance(trace, made.record, made.events, tables, event, min(event + TIES_STRIDE, len(trace)))
        if tables.numbers[at.TIES]:
            ties.append(_first_tie(tables.numbers))
            tables.numbers[at.TIES] = 0
    return FollowedTies(ties, _first_mismatch(tables.numbers))


class _Prepared(NamedTuple):
    record: Record
    events: Events
    tables: Tables
    streams: list[int]
    pools: tuple[tuple[int, int], ...]


def _prepared(
    trace: Trace,
    settings: Optional[AllocatorSettings],
    *,
    cap_bytes: Union[int, EllipsisType, None],
    capacity_bytes: Optional[int],
) -> _Prepared:
    """What a replay begins with."""
    _check_columns(trace)
    chosen = settings or parse_settings(trace.alloc_conf, trace.torch_version)
    cap = _cap(trace, chosen, cap_bytes)
    streams = sorted({*trace.streams, *(segment.stream for segment in trace.start)})
    pools = numbered_pools(trace)
    pool_numbers = {pool: number for number, pool in enumerate(pools)}
    rules = table_of(trace_rules(chosen, trace, len(streams), pools, cap_bytes=cap, capacity_bytes=capacity_bytes))
    ranks = {stream: rank for rank, stream in enumerate(streams)}
    record = Record(column(trace.action, "B"), column(trace.address, "Q"), column(trace.size_bytes, "Q"))
    counts = zeros(ACTIONS)
    growth = int(count_actions(record, counts))
    rules[at.FOLLOWS] = int(
        settings is None and bool(trace.start or counts[Action.SEGMENT_ALLOC] or counts[Action.SEGMENT_MAP])
    )
    rules[at.COMPLETES] = int(counts[Action.FREE_COMPLETED] > 0)
    events = Events(
        stream=column(trace.stream, "H"),
        pool=column(trace.pool, "H"),
        ranks=table_of([ranks[stream] for stream in trace.streams]),
        pool_numbers=table_of([pool_numbers[pool] for pool in trace.pools]),
        calls=_calls(trace, record, rules, counts, growth),
    )
    known = known_blocks(trace, ranks, pool_numbers)
    tables = empty_tables(rules, 8 * len(known) // KNOWN_FIELDS)
    put_known(tables, known)
    return _Prepared(record, events, tables, streams, pools)


def _check_columns(trace: Trace) -> None:
    for name in ("address", "size_bytes", "stream", "pool"):
        length = len(getattr(trace, name))
        if length != len(trace) and (name != "pool" or length):
            raise TraceError(
                min(length, len(trace)), f"the column {name} has {length:,} entries for {len(trace):,} events"
            )


def _cap(trace: Trace, settings: AllocatorSettings, cap_bytes: Union[int, EllipsisType, None]) -> Optional[int]:
    """The cap in bytes: as asked for, else by the fraction in ``settings``, else the recorded one."""
    if cap_bytes is not ...:
        return cap_bytes
    if settings.memory_fraction is not None and settings.memory_fraction < 1 and trace.total_bytes is not None:
        return int(settings.memory_fraction * trace.total_bytes)
    return trace.cap_bytes


def _calls(trace: Trace, record: Record, rules: Numbers, counts: Numbers, growth: int) -> Numbers:
    """Events at which ``empty_cache()`` was called, then one behind all events."""
    reserved = sum(segment.total_bytes for segment in trace.start)
    evident = reserved + growth
    if counts[Action.OOM] == 0 and trace.total_bytes is not None:
        evident = max(evident, int(CARD_SHARE * trace.total_bytes))
    calls = zeros(int(counts[Action.SEGMENT_FREE] + counts[Action.SEGMENT_UNMAP]) + 1)
    count = find_calls(rules, record, reserved, evident, calls)
    calls[count] = len(trace)
    return calls[: count + 1]


def _run(
    trace: Trace,
    record: Record,
    events: Events,
    tables: Tables,
    curve: Optional[MemoryCurve],
    curve_points: int,
    on_progress: Optional[OnProgress],
) -> Tables:
    """Replay all events; the tables may be others in the end, as they grow."""
    event = 0
    for end, closes_window in _stops(len(trace), curve_points if curve is not None else 0):
        event, tables = _advance(trace, record, events, tables, event, end)
        if closes_window and curve is not None:
            _close_window(curve, tables.numbers, event - 1)
        if on_progress is not None:
            on_progress(event, len(trace))
    return tables


def _advance(trace: Trace, record: Record, events: Events, tables: Tables, event: int, end: int) -> tuple[int, Tables]:
    """Replay up to ``end``, or a little farther."""
    while event < end:
        event = int(run(tables, record, events, event, end))
        if tables.numbers[at.ERROR] == NO_ROOM:
            tables = grown(tables)
        elif tables.numbers[at.ERROR] != FINE:
            raise _error(trace, int(tables.numbers[at.ERROR_EVENT]), int(tables.numbers[at.ERROR]))
    return event, tables


def _stops(count: int, windows: int) -> Iterator[tuple[int, bool]]:
    """The events to stop at: the ends of the curve's windows (then true), and more, to report progress."""
    step = -(-count // windows) if windows else count
    stop = 0
    while stop < count:
        window_end = min(count, (stop // step + 1) * step)
        stop = min(window_end, stop + PROGRESS_EVENTS)
        yield stop, stop == window_end


def _close_window(curve: MemoryCurve, figures: Numbers, event: int) -> None:
    if curve.event and curve.event[-1] >= event:
        return  # a request that began before has taken the whole window
    curve.event.append(event)
    curve.allocated_bytes.append(int(figures[at.WINDOW_ALLOCATED]))
    curve.reserved_bytes.append(int(figures[at.WINDOW_RESERVED]))
    figures[at.WINDOW_ALLOCATED] = figures[at.ALLOCATED_BYTES]
    figures[at.WINDOW_RESERVED] = figures[at.RESERVED_BYTES]


def _error(trace: Trace, event: int, error: int) -> TraceError:
    reason = _REASONS[error].format(
        address=trace.address[event],
        size=trace.size_bytes[event],
        action=trace.action[event],
        stream=trace.stream[event],
        pool=trace.pool[event] if trace.pool else 0,
    )
    return TraceError(event, reason)


def _first_mismatch(numbers: Numbers) -> Optional[AddressMismatch]:
    if not numbers[at.MISMATCHES]:
        return None
    return AddressMismatch(
        int(numbers[at.FIRST_MISMATCH]), int(numbers[at.MISMATCH_RECORDED]), int(numbers[at.MISMATCH_REPLAYED])
    )


def _first_tie(numbers: Numbers) -> AddressMismatch:
    return AddressMismatch(int(numbers[at.FIRST_TIE]), int(numbers[at.TIE_RECORDED]), int(numbers[at.TIE_REPLAYED]))


def _result(trace: Trace, t: Tables, curve: Optional[MemoryCurve], end: Optional[tuple[KnownSegment, ...]]) -> Replay:
    figures = [int(number) for number in t.numbers]
    return Replay(
        events=len(trace),
        peak_allocated_bytes=figures[at.PEAK_ALLOCATED],
        peak_active_bytes=figures[at.PEAK_ACTIVE],
        peak_reserved_bytes=figures[at.PEAK_RESERVED],
        allocated_at_peak_reserved_bytes=figures[at.ALLOCATED_AT_PEAK_RESERVED],
        requested_at_peak_bytes=figures[at.REQUESTED_AT_PEAK],
        address_mismatches=figures[at.MISMATCHES],
        first_mismatch=_first_mismatch(t.numbers),
        alloc_retries=figures[at.RETRIES],
        ooms=figures[at.OOMS],
        device_allocs=figures[at.DEVICE_ALLOCS],
        device_frees=figures[at.DEVICE_FREES],
        segments=sum(1 for _ in _ranges_at_end(t)),
        allocated_bytes=figures[at.ALLOCATED_BYTES],
        reserved_bytes=figures[at.RESERVED_BYTES],
        failed=_failed_requests(t, trace),
        curve=curve,
        end=end,
        recovered_ooms=figures[at.RECOVERED],
        skipped_frees=figures[at.SKIPPED_FREES],
        followed_ties=figures[at.TIES],
    )


def _ranges_at_end(t: Tables) -> Iterator[list[int]]:
    """The blocks of each contiguous mapped range, as a snapshot takes it for a segment; in no order."""
    blocks = t.blocks
    for head in range(0, t.numbers[at.BLOCKS_END], BLOCK_FIELDS):
        if blocks[head + at.STATE] == UNUSED or blocks[head + at.PREVIOUS] != NONE:
            continue
        mapped: list[int] = []
        block = head
        while block != NONE:
            if blocks[block + at.STATE] != UNMAPPED:
                mapped.append(block)
            elif mapped:
                yield mapped
                mapped = []
            block = int(blocks[block + at.NEXT])
        if mapped:
            yield mapped


def _segments_at_end(t: Tables, streams: Sequence[int], pools: Sequence[tuple[int, int]]) -> tuple[KnownSegment, ...]:
    """The segments by address. ``streams`` are the handles in order of their ranks."""
    known = [_segment(t, members, streams, pools) for members in _ranges_at_end(t)]
    return tuple(sorted(known, key=lambda segment: segment.address))


def _segment(
    t: Tables, members: Sequence[int], streams: Sequence[int], pools: Sequence[tuple[int, int]]
) -> KnownSegment:
    blocks = t.blocks
    first = members[0]
    shelf = int(blocks[first + at.SHELF])
    return KnownSegment(
        address=int(blocks[first + at.START]),
        total_bytes=sum(int(blocks[block + at.SIZE]) for block in members),
        stream=streams[shelf % t.numbers[at.STREAMS]],
        is_large=not is_small_shelf(t.numbers, shelf),
        is_expandable=bool(blocks[first + at.RESERVATION] != NONE),
        pool=pools[shelf // t.numbers[at.STREAMS] // 2],
        blocks=tuple(
            KnownBlock(
                address=int(blocks[block + at.START]),
                size_bytes=int(blocks[block + at.SIZE]),
                requested_bytes=int(blocks[block + at.REQUESTED]) if blocks[block + at.STATE] in _STATES else 0,
                state=_STATES.get(int(blocks[block + at.STATE]), BlockState.INACTIVE),
            )
            for block in members
        ),
    )


def _failed_requests(t: Tables, trace: Trace) -> tuple[FailedRequest, ...]:
    rows = min(int(t.numbers[at.FAILURES]), MAX_FAILED)
    found = []
    for row in range(at.FAILURES_AT, at.FAILURES_AT + rows * FAILURE_FIELDS, FAILURE_FIELDS):
        event, requested, rounded, segment, allocated, reserved, largest, free = (
            int(number) for number in t.numbers[row : row + FAILURE_FIELDS]
        )
        is_oom = trace.action[event] == Action.OOM
        found.append(
            FailedRequest(
                event=event,
                requested_bytes=0 if is_oom else requested,
                rounded_bytes=rounded,
                segment_bytes=segment,
                allocated_bytes=allocated,
                reserved_bytes=reserved,
                largest_free_bytes=largest,
                free_bytes=free,
                recorded=is_oom,
            )
        )
    return tuple(found)
