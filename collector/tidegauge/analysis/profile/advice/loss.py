"""Cross-entropy over a large vocabulary: logits, their logarithms and their gradients, all at once or in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from tidegauge.analysis.profile.advice.checkpointing import place_of
from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, advised, left_out
from tidegauge.analysis.profile.advice.steps import Pass, RecordedSteps
from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.allocator.trace import Stack
from tidegauge.core.profile.advice import AdvisedMeasure, Measure
from tidegauge.core.profile.categories import Category

CHUNKS = 8
_LOSSES = ("cross_entropy", "nll_loss", "log_softmax")
_FUNCTIONAL = "/torch/nn/functional.py"


def chunked_loss(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """Head and loss computed for an eighth of the tokens at a time, and again in the backward pass."""
    changes: list[LifeChange] = []
    place = None
    for one in steps.passes:
        kept = [block for block in steps.activations(one) if _is_loss(steps.stack_of(block))]
        if not kept:
            continue
        largest = max(kept, key=lambda block: block.block.size_bytes)
        place = place_of(steps.stack_of(largest))
        changes += _changes(steps, one, largest)
    if place is not None:
        yield advised(
            Measure.CHUNKED_LOSS,
            curve,
            changes,
            action=f"Compute the loss ({place}) in {CHUNKS} chunks, head included, or take a fused cross-entropy",
            price="the head's forward pass is computed twice",
        )


def _is_loss(stack: Stack) -> bool:
    return any(frame.name in _LOSSES and frame.filename.endswith(_FUNCTIONAL) for frame in stack)


def _changes(steps: RecordedSteps, one: Pass, largest: NamedBlock) -> Iterator[LifeChange]:
    """An eighth of everything of the logits' size from the head on; the head's gradient grows chunk by chunk."""
    size = largest.block.requested_bytes
    sizes = (size, size // 2, 2 * size)
    alike = [
        block
        for block in steps.made_in(one.forward, one.end)
        if block.block.requested_bytes in sizes and block.category in (Category.ACTIVATIONS, Category.TEMPORARIES)
    ]
    for block in alike:
        yield left_out(block.block, 1 - 1 / CHUNKS)
    weight = _head_gradient(steps, one, largest.block.freed)
    if weight is not None:
        made = weight.block.made
        # The sum over the chunks is there from the first of them on, and each chunk's part beside it.
        yield LifeChange(one.backward, made, weight.block.size_bytes)
        yield LifeChange(made, min(steps.next_but_gradients(made), one.end), weight.block.size_bytes)
        # So are the parts of the gradient of the head's input, which its backward pass makes right after.
        for block in steps.made_in(made + 1, one.end)[:1]:
            yield LifeChange(one.backward, block.block.made, block.block.size_bytes)


def _head_gradient(steps: RecordedSteps, one: Pass, since: Optional[int]) -> Optional[NamedBlock]:
    """The first large gradient of the backward pass: of the head's weight."""
    gradients = [block for block in steps.gradients(one) if since is None or block.block.made >= since]
    return max(gradients[:2], key=lambda block: block.block.size_bytes, default=None)
