"""The copies of weights that autocast makes and keeps until its region ends."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from tidegauge.analysis.profile.advice.steps import Pass, RecordedSteps
from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.profile.categories import Category


def cached_casts(steps: RecordedSteps, one: Pass) -> frozenset[int]:
    """The events that made them, of what the forward pass of ``one`` keeps.

    The backward pass of such a copy turns its gradient of half the parameter's size into one of the whole size, and
    gives the half back at once. The copy itself goes just before: with the operation that made the half.
    """
    kept = _by_end(steps.activations(one))
    ends = [freed for freed, _ in kept]
    left = steps.parameters_of_size.copy()
    found = set()
    # The same happens to activations that are cast; of those of a parameter's size gradients tell the parameters.
    for half, whole in sorted(_halves(steps, one), key=lambda pair: pair[1].category is not Category.GRADIENTS):
        gone = [block for _, block in kept[bisect_right(ends, half.block.made) : bisect_left(ends, whole.block.made)]]
        made = [own.block.made for own in gone if own.block.requested_bytes == half.block.requested_bytes]
        if made and left[whole.block.requested_bytes]:
            left[whole.block.requested_bytes] -= 1
            found.add(made[0])
    return frozenset(found)


def _halves(steps: RecordedSteps, one: Pass) -> Iterator[tuple[NamedBlock, NamedBlock]]:
    """Blocks of half a parameter's size that are given back as soon as one of the whole size is made, and that one."""
    made = steps.made_in(one.backward, one.end)
    by_end = _by_end(made)
    ends = [freed for freed, _ in by_end]
    for whole, behind in zip(made, [*(following.block.made for following in made[1:]), one.end]):
        if whole.block.requested_bytes in steps.parameters_of_size:
            gone = by_end[bisect_right(ends, whole.block.made) : bisect_left(ends, behind)]
            for _, half in gone:
                if 2 * half.block.requested_bytes == whole.block.requested_bytes and half is not whole:
                    yield half, whole
                    break


def _by_end(blocks: list[NamedBlock]) -> list[tuple[int, NamedBlock]]:
    freed = ((one.block.freed, one) for one in blocks)
    return sorted(((end, one) for end, one in freed if end is not None), key=lambda pair: pair[0])
