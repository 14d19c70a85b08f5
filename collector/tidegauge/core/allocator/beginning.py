"""The start of a replay: its rules, and the blocks alive before its first event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.blocks import link, new_block, part_of
from tidegauge.core.allocator.compiled import Numbers, compiled, entry_point, table_of
from tidegauge.core.allocator.device import first_counter
from tidegauge.core.allocator.free_blocks import put
from tidegauge.core.allocator.frees import wait
from tidegauge.core.allocator.layout import (
    ALLOCATED,
    FREE,
    HEADER,
    MAX_SHELVES,
    MAX_SIZE_BYTES,
    NONE,
    PENDING,
    UNLIMITED,
    UNMAPPED,
    Tables,
)
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak
from tidegauge.core.allocator.sizes import handle_bytes, rounded_size
from tidegauge.core.allocator.tables import note_live, slot_of
from tidegauge.core.allocator.trace import Action, BlockState, KnownSegment, Trace, TraceError
from tidegauge.core.allocator_sizes import MIN_BLOCK_BYTES, SMALL_SEGMENT_BYTES

UNKNOWN_DEVICE_BYTES = 1 << 40
"""Of a card whose memory the recording does not tell: more than any has, as it only bounds expandable segments."""
_STATES = {
    BlockState.INACTIVE: FREE,
    BlockState.ACTIVE_ALLOCATED: ALLOCATED,
    BlockState.ACTIVE_PENDING_FREE: PENDING,
}
DEFAULT_POOL = (0, 0)
KNOWN_FIELDS = 7
"""Of a block at the start: address, size, requested, state, shelf, where it stands in its segment, its reservation."""
FIRST_OF_SEGMENT = 0
NEXT_OF_SEGMENT = 1
FIRST_OF_RANGE = 2
"""Of a mapped range of an expandable segment."""


def numbered_pools(trace: Trace) -> tuple[tuple[int, int], ...]:
    """The pools of a trace in the model's order: the default pool, those of ``MemPool``, those of CUDA graphs."""
    return tuple(sorted({DEFAULT_POOL, *trace.pools, *(segment.pool for segment in trace.start)}))


def rules_of(settings: AllocatorSettings) -> list[int]:
    """The settings as the model reads them, at the places that `layout` gives; the other numbers are 0."""
    rules = [0] * HEADER
    rounding = settings.max_non_split_rounding_bytes
    rules[at.MAX_SPLIT] = UNLIMITED if settings.max_split_bytes is None else settings.max_split_bytes
    rules[at.NON_SPLIT_ROUNDING] = settings.large_segment_bytes if rounding is None else rounding
    rules[at.LARGE_SEGMENT] = settings.large_segment_bytes
    rules[at.EXPANDABLE] = int(settings.expandable_segments)
    rules[at.BLOCK_COUNTERS] = int(settings.tie_break is TieBreak.BLOCK)
    rules[at.SEGMENT_COUNTERS] = int(settings.tie_break is TieBreak.SEGMENT)
    rules[at.DIVIDES] = int(any(division > 1 for division in settings.roundup_power2_divisions))
    rules[at.DIVISIONS : at.DIVISIONS + len(settings.roundup_power2_divisions)] = settings.roundup_power2_divisions
    return rules


def rounded_bytes(requested: int, settings: AllocatorSettings) -> int:
    """The size of the block for a request: ``round_size``."""
    return int(rounded_size(table_of(rules_of(settings)), requested))


def trace_rules(
    settings: AllocatorSettings,
    trace: Trace,
    streams: int,
    pools: Sequence[tuple[int, int]],
    *,
    cap_bytes: Optional[int],
    capacity_bytes: Optional[int],
) -> list[int]:
    """`rules_of` these settings for this trace. Raises `TraceError` where it has impossibly many streams and pools."""
    shelves = 2 * len(pools) * streams
    if 2 * shelves > MAX_SHELVES:
        raise TraceError(0, f"{streams:,} streams and {len(pools):,} pools: too many to be those of one process")
    rules = rules_of(settings)
    rules[at.UNMAPS] = int(settings.expandable_segments or any(segment.is_expandable for segment in trace.start))
    rules[at.CAP] = UNLIMITED if cap_bytes is None else cap_bytes
    rules[at.CAPACITY] = UNLIMITED if capacity_bytes is None else capacity_bytes
    rules[at.COLLECTS] = int(cap_bytes is not None and settings.garbage_collection_threshold > 0)
    rules[at.COLLECT_ABOVE] = int(settings.garbage_collection_threshold * (cap_bytes or 0))
    rules[at.DEVICE_BYTES] = trace.total_bytes or UNKNOWN_DEVICE_BYTES
    rules[at.SHELVES] = shelves
    rules[at.STREAMS] = streams
    flushing = sum(pool[0] == 0 for pool in pools) if settings.memory_pools_flush else 1
    rules[at.FLUSHING_SHELVES] = 2 * flushing * streams
    rules[at.COMPLETE] = int(trace.complete)
    rules[at.AGES_KNOWN] = int(not trace.start)
    return rules


def known_blocks(
    trace: Trace,
    ranks: Mapping[int, int],
    pools: Mapping[tuple[int, int], int],
) -> Numbers:
    """The blocks at the start as one table: ordinary segments in their order, then expandable ones by shelf.

    Raises `TraceError` where they cannot be.
    """
    ages = {segment.address: age for age, segment in enumerate(trace.start)}
    rows: list[tuple[bool, int, int, KnownSegment]] = []
    end = 0
    for segment in sorted(trace.start, key=lambda one: one.address):
        _check(segment, end)
        end = segment.address + segment.total_bytes
        shelf = (pools[segment.pool] * 2 + int(not segment.is_large)) * len(ranks) + ranks[segment.stream]
        rows.append((segment.is_expandable, shelf if segment.is_expandable else ages[segment.address], shelf, segment))
    rows.sort(key=lambda row: row[:2])
    bases = _reservations(trace, rows)
    table: list[int] = []
    for is_expandable, _, shelf, segment in rows:
        place = FIRST_OF_RANGE if is_expandable else FIRST_OF_SEGMENT
        base = bases.get(shelf, NONE) if is_expandable else NONE
        for block in segment.blocks:
            table += (
                block.address, block.size_bytes, block.requested_bytes, _STATES[block.state], shelf, place, base,
            )  # fmt: skip
            place = NEXT_OF_SEGMENT
    return table_of(table)


def _reservations(trace: Trace, rows: Sequence[tuple[bool, int, int, KnownSegment]]) -> dict[int, int]:
    """The first address of each shelf's expandable segment: the lowest address that is ever seen mapped of it."""
    first: dict[int, KnownSegment] = {}
    for is_expandable, _, shelf, segment in rows:
        if is_expandable:
            first.setdefault(shelf, segment)
    mapped: dict[tuple[int, tuple[int, int], bool], set[int]] = {}
    for event, action in enumerate(trace.action if first else ()):
        if action == Action.SEGMENT_MAP and trace.stream[event] < len(trace.streams):
            owner = (trace.streams[trace.stream[event]], _pool_at(trace, event))
            is_large = trace.size_bytes[event] > SMALL_SEGMENT_BYTES  # a small request maps a single handle
            mapped.setdefault((*owner, is_large), set()).add(trace.address[event])
    reach = (trace.total_bytes or UNKNOWN_DEVICE_BYTES) * 9 // 8
    bases: dict[int, int] = {}
    for shelf, segment in first.items():
        ranges = mapped.get((segment.stream, segment.pool, segment.is_large), set())
        near = [
            address
            for address in ranges
            if segment.address - reach < address < segment.address
            and (segment.address - address) % SMALL_SEGMENT_BYTES == 0  # anything else is no handle of the same segment
        ]
        bases[shelf] = min(near, default=segment.address)
    return bases


def _pool_at(trace: Trace, event: int) -> tuple[int, int]:
    if trace.pool and trace.pool[event] < len(trace.pools):
        return trace.pools[trace.pool[event]]
    return DEFAULT_POOL


def _check(segment: KnownSegment, end: int) -> None:
    """A `TraceError` where its blocks are not what it consists of, or it begins before ``end`` of the one before."""
    name = f"the segment at {segment.address:#x} at the start"
    if segment.address < end or not 0 < segment.total_bytes <= MAX_SIZE_BYTES:
        raise TraceError(0, f"{name} overlaps another or has an impossible size ({segment.total_bytes:,} bytes)")
    address = segment.address
    for block in segment.blocks:
        if block.address != address or block.size_bytes <= 0 or block.size_bytes % MIN_BLOCK_BYTES:
            raise TraceError(0, f"{name} has a block of {block.size_bytes:,} bytes at {block.address:#x}: impossible")
        address += block.size_bytes
    if address != segment.address + segment.total_bytes:
        raise TraceError(0, f"{name} has {segment.total_bytes:,} bytes, its blocks {address - segment.address:,}")


@entry_point
def put_known(t: Tables, known: Numbers) -> None:
    """Let these blocks live already. All ranges of a shelf are parts of one expandable segment, as torch makes one."""
    blocks, numbers = t.blocks, t.numbers
    before = NONE
    counter = 0
    for row in range(0, len(known), KNOWN_FIELDS):
        address, shelf, place, reservation = known[row], known[row + 4], known[row + 5], known[row + 6]
        if place == FIRST_OF_SEGMENT:
            before = NONE
            counter = first_counter(t)
            numbers[at.SEGMENTS] += 1
        elif place == FIRST_OF_RANGE:
            if before == NONE or blocks[before + at.RESERVATION] == NONE or blocks[before + at.SHELF] != shelf:
                _end_range(t, before)
                counter = first_counter(t)
                before = _first_gap(t, shelf, reservation, address, counter)
            else:
                before = _unmapped_until(t, before, address)
        before = _put_block(t, known, row, before, counter)
    _end_range(t, before)
    numbers[at.PEAK_RESERVED] = numbers[at.COUNTED_PEAK] = numbers[at.WINDOW_RESERVED] = numbers[at.RESERVED_BYTES]
    numbers[at.PEAK_ACTIVE] = numbers[at.ACTIVE_BYTES]
    numbers[at.PEAK_ALLOCATED] = numbers[at.WINDOW_ALLOCATED] = numbers[at.ALLOCATED_BYTES]
    numbers[at.ALLOCATED_AT_PEAK_RESERVED] = numbers[at.ALLOCATED_BYTES]
    numbers[at.REQUESTED_AT_PEAK] = numbers[at.REQUESTED_BYTES]


@compiled
def _first_gap(t: Tables, shelf: int, reservation: int, address: int, counter: int) -> int:
    """The unmapped block before the first range of an expandable segment; NONE where it begins with the range."""
    if reservation >= address:
        return NONE
    gap = new_block(t, reservation, address - reservation, shelf, UNMAPPED)
    t.blocks[gap + at.RESERVATION] = reservation
    t.blocks[gap + at.COUNTER] = counter
    put(t, gap)
    return gap


@compiled
def _put_block(t: Tables, known: Numbers, row: int, before: int, counter: int) -> int:
    blocks, numbers = t.blocks, t.numbers
    address, size, requested, state = known[row], known[row + 1], known[row + 2], known[row + 3]
    block = new_block(t, address, size, known[row + 4], state)
    blocks[block + at.RESERVATION] = known[row + 6]
    blocks[block + at.COUNTER] = first_counter(t) if numbers[at.BLOCK_COUNTERS] else counter
    link(blocks, before, block, NONE)
    numbers[at.RESERVED_BYTES] += size
    if state == FREE:
        put(t, block)
        return block
    blocks[block + at.REQUESTED] = requested
    blocks[block + at.OWNER] = address
    note_live(t, slot_of(t, address), address, block)
    numbers[at.ACTIVE_BYTES] += size
    if state == PENDING:
        wait(t, block)
    else:
        numbers[at.ALLOCATED_BYTES] += size
        numbers[at.REQUESTED_BYTES] += requested
    return block


@compiled
def _unmapped_until(t: Tables, before: int, address: int) -> int:
    """An unmapped block from ``before`` to the address, where there is anything between them; the last block then."""
    end = t.blocks[before + at.START] + t.blocks[before + at.SIZE]
    if address <= end:
        return before
    gap = part_of(t, before, end, address - end, UNMAPPED)
    link(t.blocks, before, gap, NONE)
    put(t, gap)
    return gap


@compiled
def _end_range(t: Tables, last: int) -> None:
    """The unmapped rest of an expandable segment whose last mapped block this is."""
    if last == NONE or t.blocks[last + at.RESERVATION] == NONE:
        return
    handle = handle_bytes(t.numbers, t.blocks[last + at.SHELF])
    size = (t.numbers[at.DEVICE_BYTES] + t.numbers[at.DEVICE_BYTES] // 8 + handle - 1) // handle * handle
    _unmapped_until(t, last, t.blocks[last + at.RESERVATION] + size)
