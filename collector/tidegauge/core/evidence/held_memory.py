"""Memory held by one device's allocator at one moment: owners of blocks in use, and free blocks that did not help.

Pure: made of the blocks of a snapshot, of the own process or from a file. Bytes throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

from tidegauge.core.allocator_sizes import SMALL_SEGMENT_BYTES, segment_bytes
from tidegauge.core.evidence.owners import CodeLine, CodeRoots, LiveBlock, Owner, owners_of
from tidegauge.core.units import format_bytes, format_count

DEFAULT_POOL = (0, 0)
MAX_TOLD_OWNERS = 5
MAX_NAME_CHARS = 100
MIN_COPIED_BYTES = 64 << 20
"""Requests of less are not looked at: many blocks are about as large."""


class FreeBlock(NamedTuple):
    """A free block."""

    size_bytes: int
    stream: int
    """``cudaStream_t``: a block serves requests of its stream alone."""
    is_large: bool
    pool: tuple[int, int]
    """``segment_pool_id``."""


class HeldMemory(NamedTuple):
    """The held memory of one device."""

    owners: tuple[Owner, ...]
    """The largest first."""
    live_bytes: int
    live_blocks: int
    without_stack_bytes: int
    """Of ``live_bytes``: allocated when no stacks were recorded."""
    pending_bytes: int
    """Freed by their owners, and kept until other streams are done with them (``record_stream``)."""
    free_bytes: int
    """Unused, outside of private pools."""
    private_free_bytes: int
    """Unused in the private pools of CUDA graphs and ``MemPool``."""
    free: tuple[FreeBlock, ...]
    """Outside of private pools, the largest first."""

    def largest_for(self, wanted_bytes: Optional[int], stream: Optional[int] = None) -> Optional[FreeBlock]:
        """The largest free block of the small or large pool, whichever a segment of ``wanted_bytes`` belongs to."""
        for block in self.free:
            fits_pool = wanted_bytes is None or block.is_large == (wanted_bytes > SMALL_SEGMENT_BYTES)
            if fits_pool and stream in (None, block.stream):
                return block
        return None


def hold(
    live: Iterable[LiveBlock], free: Iterable[FreeBlock], *, pending_bytes: int, roots: Optional[CodeRoots] = None
) -> HeldMemory:
    """Sum up the blocks of a device. ``roots``: of the process, where they are known."""
    live = tuple(live)
    common, private_free_bytes = [], 0
    for block in free:
        if block.pool == DEFAULT_POOL:
            common.append(block)
        else:
            private_free_bytes += block.size_bytes
    return HeldMemory(
        owners=tuple(owners_of(live, roots)),
        live_bytes=sum(block.size_bytes for block in live),
        live_blocks=len(live),
        without_stack_bytes=sum(block.size_bytes for block in live if not block.stack),
        pending_bytes=pending_bytes,
        free_bytes=sum(block.size_bytes for block in common),
        private_free_bytes=private_free_bytes,
        free=tuple(sorted(common, reverse=True)),
    )


def free_words(held: HeldMemory, wanted_bytes: Optional[int]) -> str:
    """A sentence for people about the free memory."""
    if not held.free_bytes:
        return "The allocator had no free blocks."
    largest = held.largest_for(wanted_bytes)
    text = f"The allocator had {format_bytes(held.free_bytes)} free, in {format_count(len(held.free), 'block')}"
    if largest is not None:
        text += f"; largest usable by the request: {format_bytes(largest.size_bytes)}"
    else:
        text += ", none of them in the pool of this request"
    streams = len({block.stream for block in held.free})
    return text + (f". They belong to {streams} streams." if streams > 1 else ".")


def longer_copy_words(held: HeldMemory, wanted_bytes: int) -> Optional[str]:
    """A sentence for people where the request looks like a longer copy of one live block, as ``torch.cat`` makes it;
    ``None`` where it does not, or where several blocks are as large."""
    if wanted_bytes < MIN_COPIED_BYTES:
        return None
    alike = [
        owner
        for owner in held.owners
        if owner.block_bytes is not None and 0 < wanted_bytes - segment_bytes(owner.block_bytes) <= wanted_bytes // 16
    ]
    if len(alike) != 1 or alike[0].blocks > 1:
        return None
    return (
        f"The request is slightly larger than one live block of {format_bytes(alike[0].held_bytes)} "
        f"({owner_name(alike[0])}). If it extends that tensor with torch.cat, both are in memory at once: allocate it "
        "at full length once and write into it, or limit its length."
    )


def owner_words(owner: Owner, live_bytes: int) -> str:
    """One owner for people: "3.2 GiB (41 %) in 51 blocks of 64.0 MiB: train.py:32 in forward"."""
    size = "" if owner.block_bytes is None or owner.blocks == 1 else f" of {format_bytes(owner.block_bytes)}"
    text = f"{format_bytes(owner.held_bytes)} ({_share(owner.held_bytes, live_bytes)}) in "
    return f"{text}{format_count(owner.blocks, 'block')}{size}: {owner_name(owner)}"


def owner_name(owner: Owner) -> str:
    """The source of an owner's blocks: "train.py:18 in helper, from train.py:32 in forward". Not yet printable."""
    if owner.line is None:
        return owner.what or "no stack was recorded"
    return line_name(owner.line) + (f", from {line_name(owner.caller)}" if owner.caller is not None else "")


def line_name(line: CodeLine) -> str:
    """The end of its path, its number and its function."""
    filename = line.filename if len(line.filename) <= MAX_NAME_CHARS else f"...{line.filename[-MAX_NAME_CHARS:]}"
    return f"{filename}:{line.line} in {line.function[:MAX_NAME_CHARS]}"


def owner_lines(held: HeldMemory, most: int = MAX_TOLD_OWNERS) -> Sequence[str]:
    """The largest owners; where no stacks were recorded, the largest groups of blocks of one size."""
    worth_bytes = held.live_bytes / 200  # less than half a per cent explains nothing
    return [owner_words(owner, held.live_bytes) for owner in held.owners[:most] if owner.held_bytes >= worth_bytes]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
