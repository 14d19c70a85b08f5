"""A smaller or larger batch: what grows with it, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from tidegauge.analysis.profile.advice.autocast import cached_casts
from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, left_out, left_out_from
from tidegauge.analysis.profile.advice.steps import Pass, RecordedSteps
from tidegauge.analysis.profile.lives import BlockLife
from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.profile.advice import AdvisedMeasure, BatchRoom, Measure
from tidegauge.core.profile.categories import Category, StepPhase

_IN_STEP = (StepPhase.INPUT, StepPhase.FORWARD, StepPhase.BACKWARD, StepPhase.RECOMPUTATION)


def growing_blocks(steps: RecordedSteps) -> list[BlockLife]:
    """The blocks whose size is in proportion to the batch: activations, inputs, and temporaries of forward and backward
    pass, without copies of weights and without what has the size of a parameter's gradient. An evaluation has batches
    of its own."""
    evaluated = {one.block for together in steps.evaluations for one in together}
    found = [one.block for one in steps.of(Category.INPUTS) if one.block not in evaluated]
    kept_sizes: set[int] = set()
    for one in steps.passes:
        casts = cached_casts(steps, one)
        grown = [kept.block for kept in steps.activations(one) if kept.block.made not in casts]
        kept_sizes.update(block.requested_bytes for block in grown)
        found += grown
    again = (kept for kept in steps.of(Category.ACTIVATIONS) if kept.phase is StepPhase.RECOMPUTATION)
    found += [kept.block for kept in again]
    for scratch in steps.of(Category.TEMPORARIES):
        size = scratch.block.requested_bytes
        is_of_step = scratch.phase in _IN_STEP and scratch.block not in evaluated
        if is_of_step and (size in kept_sizes or size not in steps.weight_sizes):
            found.append(scratch.block)
    return found


def batch_changes(blocks: list[BlockLife], times: float) -> list[LifeChange]:
    """A batch of ``times`` today's."""
    return [left_out(one, 1 - times) for one in blocks]


def accumulation(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """Two passes of half the batch: gradients of the first are there during the second, and are added to. Those of the
    step before meet the first half alone, where they outlive its forward pass."""
    halved = batch_changes(growing_blocks(steps), 0.5)
    second: list[LifeChange] = []
    for one in steps.passes:
        gradients = steps.gradients(one)
        for gradient in gradients:
            made, size = gradient.block.made, gradient.block.size_bytes
            second.append(LifeChange(one.forward, made, size))
            added = max(_added(steps, made), _last_part(steps, one, gradient))
            second.append(LifeChange(made, min(added, one.end), size))
        second += _without_old(steps, one, {gradient.block.requested_bytes for gradient in gradients})
    peak_bytes = max(curve.peak_bytes(halved), curve.peak_bytes([*halved, *second]))
    yield AdvisedMeasure(
        Measure.ACCUMULATION,
        peak_bytes,
        curve.peak_bytes() - peak_bytes,
        action="Halve the batch and accumulate gradients over two",
        price="smaller kernels, so a step takes longer where they do not fill the GPU",
        condition="if nothing depends on the size of the batch, as batch norm does",
    )


def _added(steps: RecordedSteps, made: int) -> int:
    """The event by which a gradient is added to what is there: the next allocation, but of a layer with a bias what its
    sum takes, and gives back at once, comes before."""
    at = steps.next_but_gradients(made)
    number = steps.made_before(made)
    beside = steps.in_order[max(0, number - 1) : number] + steps.in_order[number + 1 : number + 2]
    if all(one.category is not Category.GRADIENTS for one in beside):
        return at
    scratch = next((one.block for one in steps.made_in(at, at + 1)), None)
    if scratch is None or scratch.freed is None:
        return at
    within = (one.block.freed for one in steps.made_in(at + 1, scratch.freed))
    if any(freed is None or freed > scratch.freed for freed in within):
        return at
    return steps.next_made(scratch.freed)


def _last_part(steps: RecordedSteps, one: Pass, gradient: NamedBlock) -> int:
    """The event by which the last part of a tied parameter's gradient is there, of which the first one becomes the sum:
    only then it is added to what is there. 0: the parameter is used once, or has the size of another one."""
    if steps.parameters_of_size[gradient.block.requested_bytes] != 1:
        return 0
    parts = steps.further_parts(gradient, gradient.block.made, one.end)
    return max((part.block.freed or 0 for part in parts), default=0)


def _without_old(steps: RecordedSteps, one: Pass, sizes: set[int]) -> Iterator[LifeChange]:
    """The second half's forward pass without gradients of the step before, which may have no category."""
    for block in (old.block for old in steps.in_order[: steps.made_before(one.forward)]):
        is_dropped = block.freed is not None and one.forward < block.freed <= one.backward
        if is_dropped and block.requested_bytes in sizes:
            yield left_out_from(block, one.forward)


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
