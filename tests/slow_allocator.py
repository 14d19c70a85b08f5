"""PyTorch's caching allocator once more, as slow and as plain as possible: what the quick model is held against.

Written from the allocator's source, not from the model: one list of blocks a segment, and every question is answered by
looking at all of them. The default pool only, without expandable segments.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak
from tidegauge.core.allocator.trace import BlockState

MIB = 1 << 20
FREE, ALLOCATED, PENDING = BlockState.INACTIVE, BlockState.ACTIVE_ALLOCATED, BlockState.ACTIVE_PENDING_FREE


@dataclass(eq=False)
class Block:
    """Bytes of a segment."""

    address: int
    size: int
    number: int
    """Of the blocks ever made, this is the how manieth."""
    requested: int = 0
    state: BlockState = FREE
    born: int = 0
    """Searches for large blocks when it became free."""


@dataclass(eq=False)
class Segment:
    """From one cudaMalloc; its blocks in order of address."""

    number: int
    stream: int
    is_small: bool
    blocks: list[Block]

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    @property
    def is_unused(self) -> bool:
        return len(self.blocks) == 1 and self.blocks[0].state is FREE


@dataclass
class SlowAllocator:
    """Each new segment lies below all earlier ones, as in the model."""

    settings: AllocatorSettings
    cap: int | None = None
    capacity: int | None = None
    segments: list[Segment] = field(default_factory=list)
    live: dict[Hashable, Block] = field(default_factory=dict)
    made: int = 0
    searches: int = 0
    retries: int = 0
    ooms: int = 0
    device_allocs: int = 0
    device_frees: int = 0
    peak_allocated: int = 0
    peak_active: int = 0
    peak_reserved: int = 0
    allocated_at_peak_reserved: int = 0
    requested_at_peak: int = 0

    def every_block(self) -> Iterator[tuple[Segment, Block]]:
        for segment in self.segments:
            for block in segment.blocks:
                yield segment, block

    def sum_of(self, *states: BlockState) -> int:
        return sum(block.size for _, block in self.every_block() if block.state in states)

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    def allocate(self, name: Hashable, requested: int, stream: int) -> None:
        size = self.rounded(requested)
        is_small = size <= MIB
        if not is_small and self.collects:
            self.searches += 1
        found = self.best_fit(size, stream, is_small) or self.grow(size, stream, is_small)
        if found is None:
            self.ooms += 1
            return
        segment, block = found
        rest = block.size - size
        if rest >= 512 if is_small else rest > MIB and size < self.max_split:
            front = Block(block.address, size, self.next_number())
            block.address += size
            block.size = rest
            block.born = self.searches
            segment.blocks.insert(segment.blocks.index(block), front)
            block = front
        block.state, block.requested = ALLOCATED, requested
        self.live[name] = block
        self.note_peaks()

    def note_peaks(self) -> None:
        allocated = self.sum_of(ALLOCATED)
        if allocated > self.peak_allocated:
            self.peak_allocated = allocated
            self.requested_at_peak = sum(b.requested for _, b in self.every_block() if b.state is ALLOCATED)
        self.peak_active = max(self.peak_active, self.sum_of(ALLOCATED, PENDING))
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
            self.allocated_at_peak_reserved = allocated

    def request_free(self, name: Hashable) -> None:
        if name in self.live:
            self.live[name].state = PENDING

    def complete_free(self, name: Hashable) -> None:
        block = self.live.pop(name, None)
        if block is None or block.state is FREE:
            return
        (segment,) = [segment for segment in self.segments if block in segment.blocks]
        block.state = FREE
        place = segment.blocks.index(block)
        for neighbour in (segment.blocks[max(place - 1, 0)], *segment.blocks[place + 1 : place + 2]):
            if neighbour is not block and neighbour.state is FREE:
                segment.blocks.remove(neighbour)
                block.address = min(block.address, neighbour.address)
                block.size += neighbour.size
        block.born = self.searches

    @property
    def max_split(self) -> int:
        return self.settings.max_split_bytes or 1 << 62

    @property
    def collects(self) -> bool:
        return self.cap is not None and self.settings.garbage_collection_threshold > 0

    def rounded(self, requested: int) -> int:
        if requested < 512:
            return 512
        power = requested.bit_length() - 1
        division = self.settings.roundup_power2_divisions[min(max(power - 20, 0), 15)]
        step = (1 << power) // division if division > 1 and requested > 512 * division else 512
        return -(-requested // step) * step

    def order(self, segment: Segment, block: Block) -> tuple[int, ...]:
        tie_break = self.settings.tie_break
        if tie_break is TieBreak.ADDRESS:
            return block.size, block.address
        if tie_break is TieBreak.BLOCK:
            return block.size, block.number
        return block.size, segment.number, block.address

    def free_blocks(self, stream: int, is_small: bool) -> list[tuple[Segment, Block]]:
        found = [
            (segment, block)
            for segment, block in self.every_block()
            if block.state is FREE and (segment.stream, segment.is_small) == (stream, is_small)
        ]
        return sorted(found, key=lambda pair: self.order(*pair))

    def best_fit(self, size: int, stream: int, is_small: bool) -> tuple[Segment, Block] | None:
        for segment, block in self.free_blocks(stream, is_small):
            if block.size < size:
                continue
            rounding = self.settings.max_non_split_rounding_bytes or self.settings.large_segment_bytes
            is_too_large = block.size >= (self.max_split if size < self.max_split else size + rounding)
            return None if is_too_large else (segment, block)
        return None

    def grow(self, size: int, stream: int, is_small: bool) -> tuple[Segment, Block] | None:
        self.collect_garbage()
        found = self.from_device(size, stream, is_small)
        if found is None and self.release_oversize(size, stream, is_small):
            found = self.from_device(size, stream, is_small)
        if found is None:
            for name in [name for name, block in self.live.items() if block.state is PENDING]:
                self.complete_free(name)
            for segment in [segment for segment in self.segments if segment.is_unused]:
                self.release(segment)
            self.retries += 1
            found = self.from_device(size, stream, is_small)
        return found

    def from_device(self, size: int, stream: int, is_small: bool) -> tuple[Segment, Block] | None:
        large = self.settings.large_segment_bytes
        wanted = 2 * MIB if is_small else large if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        for limit in (self.cap, self.capacity):
            if limit is not None and self.reserved + wanted > limit:
                return None
        self.device_allocs += 1
        number = self.next_number()
        block = Block(-self.device_allocs << 40, wanted, number)
        segment = Segment(number, stream, is_small, [block])
        self.segments.append(segment)
        return segment, block

    def next_number(self) -> int:
        self.made += 1
        return self.made

    def release(self, segment: Segment) -> None:
        self.segments.remove(segment)
        self.device_frees += 1

    def release_oversize(self, size: int, stream: int, is_small: bool) -> bool:
        if self.settings.max_split_bytes is None:
            return False
        wanted = max(size, self.max_split)
        candidates = self.free_blocks(stream, is_small)
        for segment, block in candidates:
            if block.size >= wanted:
                if segment.is_unused:
                    self.release(segment)
                    return True
                return False
        found = 0
        for segment, block in reversed(candidates):
            if found >= wanted or block.size < self.max_split:
                break
            if segment.is_unused:
                found += block.size
                self.release(segment)
        return found >= wanted

    def collect_garbage(self) -> None:
        if not self.collects or self.cap is None:
            return
        above = int(self.settings.garbage_collection_threshold * self.cap)
        wanted = self.reserved - above
        if wanted <= 0:
            return
        unused = [segment for segment in self.segments if segment.is_unused and not segment.is_small]
        freed = 1
        total_age = sum(self.searches - segment.blocks[0].born for segment in unused)
        while wanted > 0 and unused and freed:
            threshold = total_age / len(unused)
            old = [segment for segment in unused if self.searches - segment.blocks[0].born >= threshold]
            freed = len(old)
            for segment in old:
                wanted -= segment.size
                total_age -= self.searches - segment.blocks[0].born
                unused.remove(segment)
                self.release(segment)
