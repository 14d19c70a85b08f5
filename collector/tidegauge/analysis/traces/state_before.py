"""Reconstructs the state before a trace's first event: plays the state at its end backwards through the events.

PyTorch's history is a ring that does not say what it has lost. But a snapshot lists every block at its end, and each
event undoes: before an ``alloc`` its block was free, before a ``free_completed`` it was there. What is left when the
first event is undone was there before it. Nothing left: the trace is complete.

What stays unknown: how long free blocks had been free, for the garbage collector; in which order they were made, for
ties from torch 2.12 on (``segment_order`` finds out what can be); and what ``block_sizes`` says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn, Optional

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.core.allocator.beginning import rounded_bytes
from tidegauge.core.allocator.settings import AllocatorSettings, parse_settings
from tidegauge.core.allocator.trace import Action, BlockState, KnownBlock, KnownSegment, Trace
from tidegauge.core.allocator_sizes import MAX_SMALL_BYTES, SMALL_SEGMENT_BYTES

# How large the blocks were that lived before a trace's first event, and what was free between them.
# Of a block that the snapshot still lists the size is known. Of one that was freed before it, only the request is: its
# block has the rounded size and, in a segment of the large pool that is not expandable, up to 1 MiB more, which is not
# split off (allocator notes, 5.3). What follows it tells: the next live block, or the first block that is cut from the
# free one behind it. Where neither does, the remainder is taken for free.


class Lived(NamedTuple):
    """A block before the first event."""

    requested_bytes: int
    size_bytes: Optional[int]
    """``None`` where the snapshot no longer lists it."""
    state: BlockState
    stack: Optional[int]


class HeldBlock(NamedTuple):
    """A segment with its live blocks by address."""

    segment: KnownSegment
    live: dict[int, Lived]

    @property
    def end(self) -> int:
        return self.segment.address + self.segment.total_bytes

    def rooms(self) -> Iterator[tuple[int, Lived, int]]:
        """Each block with its address and the bytes up to what comes next."""
        following = [*list(self.live)[1:], self.end]
        for (address, lived), after in zip(self.live.items(), following):
            yield address, lived, after - address


def with_all_blocks(held: Sequence[HeldBlock], trace: Trace, settings: AllocatorSettings) -> tuple[KnownSegment, ...]:
    """The segments with their blocks, live and free. Raises ``BadTraceError`` where blocks overlap."""
    sizes: dict[int, int] = {}
    open_ended: dict[int, int] = {}
    for one in held:
        for address, lived, room_bytes in one.rooms():
            size_bytes = lived.size_bytes
            if size_bytes is None:
                size_bytes = rounded_bytes(lived.requested_bytes, settings)
                if one.segment.is_large and not one.segment.is_expandable:
                    left_bytes = room_bytes - size_bytes
                    is_kept_whole = settings.max_split_bytes is not None and size_bytes >= settings.max_split_bytes
                    if left_bytes <= MAX_SMALL_BYTES or is_kept_whole:
                        size_bytes = max(room_bytes, size_bytes)
                    else:
                        open_ended[address] = size_bytes
            sizes[address] = size_bytes
    sizes.update(_by_what_is_cut_behind(open_ended, trace))
    return tuple(one.segment._replace(blocks=tuple(_tiled(one, sizes))) for one in held)


def _by_what_is_cut_behind(open_ended: Mapping[int, int], trace: Trace) -> dict[int, int]:
    """Sizes of those blocks behind which one is allocated while they live: a free block is cut from its front."""
    found: dict[int, int] = {}
    waiting = dict(open_ended)
    addresses = sorted(waiting)
    for action, address in zip(trace.action, trace.address):
        if not waiting:
            break
        if action == Action.FREE_COMPLETED:
            waiting.pop(address, None)
        elif action == Action.ALLOC:
            before = addresses[max(bisect_right(addresses, address) - 1, 0)]
            least = waiting.get(before)
            if least is not None and 0 <= address - before - least <= MAX_SMALL_BYTES:
                found[before] = address - before
                del waiting[before]
    return found


def _tiled(held: HeldBlock, sizes: Mapping[int, int]) -> Iterator[KnownBlock]:
    """The segment's blocks in order of address: the live ones, and a free one in each gap."""
    position = held.segment.address
    for address, lived, room_bytes in held.rooms():
        if address < position or sizes[address] > room_bytes:
            raise BadTraceError(f"before the first event the block at {address:#x} overlaps what is beside it")
        if address > position:
            yield KnownBlock(position, address - position, 0, BlockState.INACTIVE)
        yield KnownBlock(address, sizes[address], lived.requested_bytes, lived.state, lived.stack)
        position = address + sizes[address]
    if position < held.end:
        yield KnownBlock(position, held.end - position, 0, BlockState.INACTIVE)


# The mapped ranges of expandable segments, as a snapshot lists them: each contiguous one is a segment.


class MappedRanges:
    """The ranges mapped now. An address keeps its stream and pool for ever: it was reserved for them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, KnownSegment] = {}
        self._kinds: dict[tuple[int, tuple[int, int]], list[tuple[int, bool]]] = {}

    def segments(self) -> list[KnownSegment]:
        """All ranges by address, without blocks."""
        return [self._ranges[start] for start in self._starts]

    def add(self, segment: KnownSegment, *, kind_is_known: bool) -> bool:
        """Map a range; false, and nothing done, where some of it is mapped already.

        It joins what is beside it of the same stream and pool. Where it is not known whether the range is of the small
        or the large pool, the nearest known one of its stream and pool tells: a reservation is larger than the device.
        """
        start, end = segment.address, segment.address + segment.total_bytes
        after = bisect_left(self._starts, start)
        if (after < len(self._starts) and self._starts[after] < end) or (after and self._end(after - 1) > start):
            return False
        is_large = segment.is_large if kind_is_known else self._kind_near(segment)
        joined = segment._replace(is_large=is_large, blocks=())
        self._remember(joined)
        for neighbour in [self._ranges[beside] for beside in self._starts[max(after - 1, 0) : after + 1]]:
            same = (neighbour.stream, neighbour.pool, neighbour.is_large) == (joined.stream, joined.pool, is_large)
            if same and self._touch(neighbour, joined):
                self._drop(neighbour.address)
                joined = joined._replace(
                    address=min(joined.address, neighbour.address),
                    total_bytes=joined.total_bytes + neighbour.total_bytes,
                )
        self._put(joined)
        return True

    def remove(self, address: int, size_bytes: int) -> bool:
        """Unmap a range; false, and nothing done, where not all of it is mapped as one."""
        place = bisect_right(self._starts, address) - 1
        end = address + size_bytes
        if place < 0 or self._end(place) < end or size_bytes == 0:
            return False
        whole = self._ranges[self._starts[place]]
        self._drop(whole.address)
        if whole.address < address:
            self._put(whole._replace(total_bytes=address - whole.address))
        rest_bytes = whole.address + whole.total_bytes - end
        if rest_bytes:
            self._put(whole._replace(address=end, total_bytes=rest_bytes))
        self._remember(whole._replace(address=address))
        return True

    @staticmethod
    def _touch(first: KnownSegment, second: KnownSegment) -> bool:
        return (
            first.address + first.total_bytes == second.address or second.address + second.total_bytes == first.address
        )

    def _end(self, place: int) -> int:
        known = self._ranges[self._starts[place]]
        return known.address + known.total_bytes

    def _put(self, segment: KnownSegment) -> None:
        insort(self._starts, segment.address)
        self._ranges[segment.address] = segment

    def _drop(self, start: int) -> None:
        del self._starts[bisect_left(self._starts, start)]
        del self._ranges[start]

    def _remember(self, segment: KnownSegment) -> None:
        kinds = self._kinds.setdefault((segment.stream, segment.pool), [])
        known = (segment.address, segment.is_large)
        place = bisect_left(kinds, known)
        if place == len(kinds) or kinds[place] != known:
            kinds.insert(place, known)

    def _kind_near(self, segment: KnownSegment) -> bool:
        kinds = self._kinds.get((segment.stream, segment.pool), [])
        if not kinds:
            return segment.is_large
        place = bisect_left(kinds, (segment.address, False))
        near = kinds[max(place - 1, 0) : place + 1]
        return min(near, key=lambda known: abs(known[0] - segment.address))[1]


def with_start(trace: Trace) -> Trace:
    """The trace with ``complete``, ``start`` and ``lost_events`` as its end and its events tell.

    Raises ``BadTraceError`` where they contradict each other, with the event: a history without some actions
    (``skip_actions``), switched off in between, or changed.
    """
    if trace.end is None:
        raise BadTraceError("does not list the segments at its end, so what lived before its first event is not known")
    past = _Past(trace)
    for event in range(len(trace) - 1, -1, -1):
        past.undo(event)
    try:
        settings = parse_settings(trace.alloc_conf, trace.torch_version)
    except ValueError as error:
        raise BadTraceError(f"was recorded under settings that are not known here: {error}") from error
    start = with_all_blocks(past.held(), trace, settings)
    if not start:
        return replace(trace, complete=True, start=(), lost_events=0)
    return replace(trace, complete=False, start=start, lost_events=None)


class _Past:
    """The allocator's state, rewound event by event from the last one."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._live: dict[int, Lived] = {}
        self._fixed: dict[int, KnownSegment] = {}
        self._mapped = MappedRanges()
        for segment in trace.end or ():
            self._add_segment(segment)

    def _add_segment(self, segment: KnownSegment) -> None:
        if segment.is_expandable:
            self._mapped.add(segment, kind_is_known=True)
        else:
            self._fixed[segment.address] = segment._replace(blocks=())
        for block in segment.blocks:
            if block.state is not BlockState.INACTIVE:
                self._live[block.address] = Lived(block.requested_bytes, block.size_bytes, block.state, block.stack)

    def undo(self, event: int) -> None:
        """Go back before ``event``."""
        trace = self._trace
        action, address, size_bytes = trace.action[event], trace.address[event], trace.size_bytes[event]
        if action == Action.ALLOC:
            gone = self._live.pop(address, None)
            if gone is None or gone.state is not BlockState.ACTIVE_ALLOCATED:
                self._contradiction(event, "the block is freed twice, or not there, in what comes after")
        elif action == Action.FREE_REQUESTED:
            pending = self._live.get(address)
            if pending is None or pending.state is not BlockState.ACTIVE_PENDING_FREE:
                self._contradiction(event, "the block's free is not completed in what comes after")
            self._live[address] = pending._replace(state=BlockState.ACTIVE_ALLOCATED)
        elif action == Action.FREE_COMPLETED:
            if address in self._live:
                self._contradiction(event, "the block is still there in what comes after")
            self._live[address] = Lived(size_bytes, None, BlockState.ACTIVE_PENDING_FREE, None)
        elif action == Action.SEGMENT_ALLOC:
            segment = self._fixed.pop(address, None)
            if segment is None or segment.total_bytes != size_bytes:
                self._contradiction(event, "the segment is not there, or has another size, in what comes after")
        elif action == Action.SEGMENT_FREE:
            if address in self._fixed:
                self._contradiction(event, "the segment is still there in what comes after")
            self._fixed[address] = self._segment(event, is_expandable=False)
        elif action == Action.SEGMENT_MAP:
            if not self._mapped.remove(address, size_bytes):
                self._contradiction(event, "the range is not mapped in what comes after")
        elif action == Action.SEGMENT_UNMAP and not self._mapped.add(
            self._segment(event, is_expandable=True), kind_is_known=False
        ):
            self._contradiction(event, "the range is still mapped in what comes after")

    def _segment(self, event: int, *, is_expandable: bool) -> KnownSegment:
        """The segment that was given back at ``event``: small ones are of 2 MiB, large ones at least of 10."""
        trace = self._trace
        return KnownSegment(
            address=trace.address[event],
            total_bytes=trace.size_bytes[event],
            stream=trace.streams[trace.stream[event]],
            is_large=trace.size_bytes[event] > SMALL_SEGMENT_BYTES,
            is_expandable=is_expandable,
            pool=trace.pools[trace.pool[event]] if trace.pool else (0, 0),
            blocks=(),
        )

    def _contradiction(self, event: int, what: str) -> NoReturn:
        action = Action(self._trace.action[event]).name.lower()
        raise BadTraceError(
            f"event {event:,} of device {self._trace.device} ({action} at {self._trace.address[event]:#x}) does not "
            f"fit: {what}. The history lacks events: it was recorded without some actions, or switched off in between"
        )

    def held(self) -> list[HeldBlock]:
        """The segments before the first event, by address, each with the blocks that lived in it."""
        blocks = sorted(self._live.items())
        done = 0
        held: list[HeldBlock] = []
        for segment in sorted((*self._fixed.values(), *self._mapped.segments())):
            end = segment.address + segment.total_bytes
            if held and held[-1].end > segment.address:
                raise BadTraceError(f"two segments overlap at {segment.address:#x} before the first event")
            first = done
            while done < len(blocks) and blocks[done][0] < end:
                done += 1
            held.append(HeldBlock(segment, dict(blocks[first:done])))
        if done < len(blocks):
            raise BadTraceError(
                f"before the first event of device {self._trace.device} a block lived at {blocks[done][0]:#x}, outside "
                "all segments: the history lacks events, or they were changed"
            )
        return held
