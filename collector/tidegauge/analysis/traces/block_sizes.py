"""How large the blocks were that lived before a trace's first event, and what was free between them.

Of a block that the snapshot still lists the size is known. Of one that was freed before it, only the request is: its
block has the rounded size and, in a segment of the large pool that is not expandable, up to 1 MiB more, which is not
split off (allocator notes, 5.3). What follows it tells: the next live block, or the first block that is cut from the
free one behind it. Where neither does, the remainder is taken for free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.core.allocator.beginning import rounded_bytes
from tidegauge.core.allocator.settings import AllocatorSettings
from tidegauge.core.allocator.trace import Action, BlockState, KnownBlock, KnownSegment, Trace
from tidegauge.core.allocator_sizes import MAX_SMALL_BYTES


class Lived(NamedTuple):
    """A block before the first event."""

    requested_bytes: int
    size_bytes: Optional[int]
    """``None`` where the snapshot no longer lists it."""
    state: BlockState
    stack: Optional[int]


class HeldBlock(NamedTuple):
    """A segment and what lived in it, by address and in its order."""

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
                if _may_have_remainder(one.segment):
                    left_bytes = room_bytes - size_bytes
                    if left_bytes <= MAX_SMALL_BYTES or _is_oversize(size_bytes, settings):
                        size_bytes = max(room_bytes, size_bytes)
                    else:
                        open_ended[address] = size_bytes
            sizes[address] = size_bytes
    sizes.update(_by_what_is_cut_behind(open_ended, trace))
    return tuple(one.segment._replace(blocks=tuple(_tiled(one, sizes))) for one in held)


def _may_have_remainder(segment: KnownSegment) -> bool:
    return segment.is_large and not segment.is_expandable


def _is_oversize(size_bytes: int, settings: AllocatorSettings) -> bool:
    """Whether ``max_split_size_mb`` keeps such blocks whole."""
    return settings.max_split_bytes is not None and size_bytes >= settings.max_split_bytes


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
