"""Attributes the growth of live memory between two snapshots to stacks, though most new blocks only replace old ones.

A training loop frees and allocates all the time, so the blocks of two moments are hardly ever the same. What counts is
how many there are of each kind:

1. Blocks of one stack and one requested size are the same kind of block, wherever they lie.
2. Blocks of one stack that are left over on both sides, of sizes not too far apart, are the same tensor of another
   length: a batch of longer sequences, a buffer that is concatenated. Only the difference has grown, and what went is
   not there to be replaced by others.
3. Blocks of one requested size that are left over on both sides from different stacks are taken for replaced: the same
   tensor from another branch, or from before its stack was recorded. Those that make up least are set off first, so
   that a leak of many blocks stands when a few of its size were replaced. What remains of a size is what the number of
   blocks of that size has grown by, and no more.

The growth of a stack is what remains of all its sizes together, those that shrank set off.

Blocks without a stack (older than the history, or of backward, whose threads have no Python frames) are told apart by
their size alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from tidegauge.analysis.snapshots.live_stacks import NO_STACK_KEY, Lines, UsedBlock
from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.owners import CodeLine, CodeRoots, asking_line

ANOTHER_LENGTH = 4
"""Two blocks of one stack may be the same tensor of another length if one is at most so many times the other."""


class _Kind:
    """Blocks of one stack and one requested size: their number in each snapshot, and those not yet matched."""

    def __init__(self, stack: Lines, line: Optional[CodeLine], wanted_bytes: int) -> None:
        self.stack = stack
        self.line = line
        self.wanted_bytes = wanted_bytes
        self.sizes: tuple[list[int], list[int]] = ([], [])

    def cancel(self) -> None:
        """Step 1. What is left of a side's sizes are its largest: less of one request is needed for more of it."""
        early, late = self.sizes
        same = min(len(early), len(late))
        for side in self.sizes:
            side.sort()
            del side[:same]

    @property
    def extra(self) -> int:
        """Blocks that are left over: positive late ones, negative early ones."""
        return len(self.sizes[1]) - len(self.sizes[0])

    @property
    def block_bytes(self) -> int:
        """The size of a block that is left over; the requested size where the allocator gave some of them more."""
        sizes = {*self.sizes[0], *self.sizes[1]}
        return sizes.pop() if len(sizes) == 1 else self.wanted_bytes

    def take(self, count: int) -> int:
        """Set off ``count`` blocks, from whichever side has some; their bytes."""
        side = self.sizes[1] or self.sizes[0]
        return sum(side.pop() for _ in range(count))


def growth_by_stack(
    early: Iterable[UsedBlock], late: Iterable[UsedBlock], roots: Optional[CodeRoots] = None
) -> list[StackGrowth]:
    """The stacks whose live memory has changed, the one that grew most first. In bytes of blocks."""
    stacks: dict[int, dict[int, _Kind]] = {}
    lines: dict[int, Optional[CodeLine]] = {}
    for side, blocks in enumerate((early, late)):
        for block in blocks:
            of_stack = stacks.get(block.key)
            if of_stack is None:
                of_stack = stacks[block.key] = {}
                lines[block.key] = asking_line(block.stack, roots)
            kind = of_stack.get(block.wanted_bytes)
            if kind is None:
                kind = _Kind(block.stack, lines[block.key], block.wanted_bytes)
                of_stack[block.wanted_bytes] = kind
            kind.sizes[side].append(block.size_bytes)
    kinds = [kind for of_stack in stacks.values() for kind in of_stack.values()]
    for kind in kinds:
        kind.cancel()
    lengths = {
        key: _set_off_lengths(list(of_stack.values())) for key, of_stack in stacks.items() if key != NO_STACK_KEY
    }
    _set_off_sizes(kinds)
    grown = [_summed(list(stacks[key].values()), grown_bytes) for key, grown_bytes in lengths.items()]
    grown += [_summed([kind], 0) for kind in stacks.get(NO_STACK_KEY, {}).values()]
    changed = (one for one in grown if one.grown_bytes or one.blocks)
    return sorted(changed, key=lambda one: (-one.grown_bytes, -one.blocks, one.stack))


def _set_off_lengths(kinds: list[_Kind]) -> int:
    """Step 2, for the kinds of one stack; the bytes by which the pairs have grown."""
    late = sorted((kind for kind in kinds if kind.extra > 0), key=lambda kind: kind.wanted_bytes)
    early = sorted((kind for kind in kinds if kind.extra < 0), key=lambda kind: kind.wanted_bytes)
    grown_bytes = 0
    while late and early:
        more, less = late[-1], early[-1]
        if more.wanted_bytes > ANOTHER_LENGTH * less.wanted_bytes:
            late.pop()
        elif less.wanted_bytes > ANOTHER_LENGTH * more.wanted_bytes:
            early.pop()
        else:
            count = min(more.extra, -less.extra)
            grown_bytes += more.take(count) - less.take(count)
            _drop_used_up(late, early)
    return grown_bytes


def _set_off_sizes(kinds: Iterable[_Kind]) -> None:
    """Step 3: first within one line of the user's, then anywhere."""
    by_line: dict[tuple[int, Optional[CodeLine]], list[_Kind]] = {}
    by_size: dict[int, list[_Kind]] = {}
    for kind in kinds:
        if kind.extra:
            by_line.setdefault((kind.wanted_bytes, kind.line), []).append(kind)
            by_size.setdefault(kind.wanted_bytes, []).append(kind)
    for groups in (by_line, by_size):
        for group in groups.values():
            _set_off(group)


def _set_off(kinds: list[_Kind]) -> None:
    late = sorted((kind for kind in kinds if kind.extra > 0), key=lambda kind: -kind.extra)
    # What went without a stack is most likely what came with one: history began between its allocation and its end.
    early = sorted((kind for kind in kinds if kind.extra < 0), key=lambda kind: (not kind.stack, kind.extra))
    while late and early:
        more, less = late[-1], early[-1]
        count = min(more.extra, -less.extra)
        more.take(count)
        less.take(count)
        _drop_used_up(late, early)


def _drop_used_up(*sides: list[_Kind]) -> None:
    for side in sides:
        if side[-1].extra == 0:
            side.pop()


def _summed(kinds: list[_Kind], by_length_bytes: int) -> StackGrowth:
    extra = [kind for kind in kinds if kind.extra]
    blocks = sum(kind.extra for kind in extra)
    grown_bytes = sum(sum(kind.sizes[1]) - sum(kind.sizes[0]) for kind in extra)
    size = extra[0].block_bytes if len(extra) == 1 else None
    return StackGrowth(grown_bytes + by_length_bytes, blocks, kinds[0].stack, kinds[0].line, size)
