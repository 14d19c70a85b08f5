"""A smaller or larger batch: what grows with it, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from tidegauge.analysis.profile.advice.checkpointing import cast_sizes
from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, left_out
from tidegauge.analysis.profile.advice.steps import RecordedSteps
from tidegauge.analysis.profile.lives import BlockLife
from tidegauge.core.profile.advice import AdvisedMeasure, BatchRoom, Measure
from tidegauge.core.profile.categories import Category, StepPhase

_IN_STEP = (StepPhase.INPUT, StepPhase.FORWARD, StepPhase.BACKWARD, StepPhase.RECOMPUTATION)


def growing_blocks(steps: RecordedSteps) -> list[BlockLife]:
    """The blocks whose size is in proportion to the batch: activations, inputs, and temporaries of forward and backward
    pass, without copies of weights and without what has the size of a parameter's gradient."""
    found = [one.block for one in steps.of(Category.INPUTS)]
    kept_sizes: set[int] = set()
    for one in steps.passes:
        activations = steps.activations(one)
        casts = cast_sizes(steps, activations)
        grown = [kept.block for kept in activations if kept.block.requested_bytes not in casts]
        kept_sizes.update(block.requested_bytes for block in grown)
        found += grown
    again = (kept for kept in steps.of(Category.ACTIVATIONS) if kept.phase is StepPhase.RECOMPUTATION)
    found += [kept.block for kept in again]
    of_weights = {size for whole in steps.parameter_bytes for size in (whole, whole // 2)}
    for scratch in steps.of(Category.TEMPORARIES):
        size = scratch.block.requested_bytes
        if scratch.phase in _IN_STEP and (size in kept_sizes or size not in of_weights):
            found.append(scratch.block)
    return found


def batch_changes(blocks: list[BlockLife], times: float) -> list[LifeChange]:
    """A batch of ``times`` today's."""
    return [left_out(one, 1 - times) for one in blocks]


def accumulation(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """Two passes of half the batch: gradients of the first are there during the second, and are added to."""
    changes = batch_changes(growing_blocks(steps), 0.5)
    for one in steps.passes:
        for gradient in steps.gradients(one):
            made, size = gradient.block.made, gradient.block.size_bytes
            changes.append(LifeChange(one.forward, made, size))
            added = steps.next_made(made, Category.GRADIENTS)
            changes.append(LifeChange(made, min(added, one.end), size))
    peak_bytes = curve.peak_bytes(changes)
    yield AdvisedMeasure(
        Measure.ACCUMULATION,
        peak_bytes,
        curve.peak_bytes() - peak_bytes,
        action="Halve the batch and accumulate gradients over two",
        price="smaller kernels, so a step takes longer where they do not fill the GPU",
        condition="if nothing depends on the size of the batch, as batch norm does",
    )


def room_for_batch(steps: RecordedSteps, curve: Curve, limit_bytes: int) -> Optional[BatchRoom]:
    """How much the batch can grow below a limit of memory for PyTorch. ``None``: nothing grows with it."""
    growing = growing_blocks(steps)
    today = curve.bytes_after()
    fixed = curve.bytes_after(batch_changes(growing, 0.0))
    peak_bytes = max(today)
    reserved_share = max(1.0, steps.recording.reserved_bytes / peak_bytes) if peak_bytes else 1.0

    def most(limit: float) -> tuple[float, int]:
        grows = [((limit - stays) / (now - stays), now - stays) for now, stays in zip(today, fixed) if now > stays]
        return min(grows, default=(0.0, 0))

    border_times, growing_bytes = most(limit_bytes)
    if not growing_bytes:
        return None
    safe_times = most(limit_bytes / reserved_share)[0]
    return BatchRoom(limit_bytes, max(0.0, safe_times), max(0.0, border_times), growing_bytes)


def peak_with_batch(steps: RecordedSteps, curve: Curve, times: float) -> int:
    """The peak with a batch of ``times`` today's."""
    return curve.peak_bytes(batch_changes(growing_blocks(steps), times))
