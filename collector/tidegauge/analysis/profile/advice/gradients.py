"""Gradients that live shorter: freed before the next forward pass, or as soon as they are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, left_out, left_out_from
from tidegauge.analysis.profile.advice.steps import Pass, RecordedSteps
from tidegauge.analysis.profile.lives import BEFORE
from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.profile.advice import AdvisedMeasure, Measure
from tidegauge.core.profile.categories import Category

_LATE = 0.9
"""Part of a backward pass's gradients after which a second use of a parameter adds its own."""


def gradients_freed(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """Both measures, where the recording shows that they apply."""
    today = curve.peak_bytes()
    earlier = curve.peak_bytes(_freed_by_the_optimizer(steps))
    yield AdvisedMeasure(
        Measure.ZERO_GRAD_EARLIER,
        earlier,
        today - earlier,
        action="Call optimizer.zero_grad() right after optimizer.step()",
        price="it costs nothing",
        condition="if nothing reads the gradients after the step",
    )
    if not steps.of(Category.COMMUNICATION) and _steps_after_each_pass(steps):
        at_once = curve.peak_bytes(_freed_at_once(steps))
        yield AdvisedMeasure(
            Measure.OPTIMIZER_IN_BACKWARD,
            at_once,
            today - at_once,
            action="Step the optimizer in the backward pass (register_post_accumulate_grad_hook)",
            price="an optimizer for each parameter takes longer than one for all",
            condition="without gradient accumulation, and without clipping by the norm of all gradients"
            + (", which this job seems to do" if any(one.is_clipped for one in steps.passes) else ""),
        )


def _freed_by_the_optimizer(steps: RecordedSteps) -> Iterator[LifeChange]:
    """Gradients that outlive the optimizer's step, freed behind it; those of a step before the recording as well, which
    are gone before the first backward pass: of accumulation they would not be."""
    for gradient in steps.of(Category.GRADIENTS):
        block = gradient.block
        if block.made == BEFORE and block.freed is not None and block.freed <= steps.passes[0].backward:
            yield left_out(block)
    for one, following in zip(steps.passes, [*steps.passes[1:], None]):
        for gradient in steps.gradients(one):
            freed = gradient.block.freed
            if one.optimizer is not None:
                yield left_out_from(gradient.block, one.optimizer[1] - 1)
            elif following is not None and freed is not None and freed <= following.backward:  # no accumulation
                yield left_out_from(gradient.block, one.end)


def _steps_after_each_pass(steps: RecordedSteps) -> bool:
    """Whether an optimizer follows each backward pass, or none is seen at all: one that allocates nothing. LBFGS takes
    several passes for one step."""
    recording = steps.recording
    numbers = zip(recording.closure_steps, (one.backward_pass for one in recording.stretches))
    of_closures = {one for one in numbers if min(one) >= 0}
    if len({step for step, _ in of_closures}) < len(of_closures):
        return False
    return not steps.optimizers or all(one.optimizer is not None for one in steps.passes[:-1])


def _freed_at_once(steps: RecordedSteps) -> Iterator[LifeChange]:
    for one in steps.passes:
        gradients = steps.gradients(one)
        scratch = _scratch_of_optimizer(steps, one)
        if one.optimizer is not None:
            yield from map(left_out, (two.block for two in scratch))
        share = _scratch_share(scratch, gradients)
        late = gradients[int(_LATE * (len(gradients) - 1))].block.made if gradients else one.end
        for number, gradient in enumerate(gradients):
            block = gradient.block
            part = next(steps.further_parts(gradient, late, one.end), None) if number < _LATE * len(gradients) else None
            end = steps.next_but_gradients((part or gradient).block.made)
            end = min(end, one.end)
            yield left_out_from(block, end)
            yield LifeChange(end - 1, end, round(share * block.size_bytes))


def _scratch_of_optimizer(steps: RecordedSteps, one: Pass) -> list[NamedBlock]:
    made = () if one.optimizer is None else steps.made_in(*one.optimizer)
    return [two for two in made if two.category is Category.TEMPORARIES]


def _scratch_share(scratch: Sequence[NamedBlock], gradients: Sequence[NamedBlock]) -> float:
    """What the optimizer takes beside the state for one gradient, in times of its size."""
    changes = [(two.block.made, 1, two.block.size_bytes) for two in scratch]
    changes += [(two.block.freed, -1, -two.block.size_bytes) for two in scratch if two.block.freed is not None]
    held = count = 0
    highest = (0, 0)
    for _, one_more, more_bytes in sorted(changes):
        held, count = held + more_bytes, count + one_more
        highest = max(highest, (held, count))
    sizes = [two.block.size_bytes for two in gradients]
    if not sizes:
        return 0.0
    # Either for all parameters at once (`foreach`), or for one after the other.
    return highest[0] / (sum(sizes) if highest[1] >= len(sizes) / 2 else max(sizes))
