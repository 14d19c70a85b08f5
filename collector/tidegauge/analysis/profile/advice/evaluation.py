"""Evaluation within training: forward passes without a backward pass, whose batch is one of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, advised, left_out
from tidegauge.analysis.profile.advice.steps import RecordedSteps
from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.profile.advice import AdvisedMeasure, Measure

_ALIVE_AFTER = 2
"""Calls of a line after which what it made counts as collected: a variable keeps its value until the next is there."""


def smaller_evaluation(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """Half of each batch, twice as often: what is collected of all batches stays as large."""
    changes = [change for together in steps.evaluations for change in _halved(steps, together)]
    if changes:
        yield advised(
            Measure.SMALLER_EVALUATION,
            curve,
            changes,
            action="Halve the batch of the evaluation, which runs beside the training step",
            price="twice as many calls, which take longer where they do not fill the GPU",
        )


def _halved(steps: RecordedSteps, together: Sequence[NamedBlock]) -> Iterator[LifeChange]:
    by_line: dict[tuple[int, int], list[NamedBlock]] = {}
    for one in together:
        if one.block.requested_bytes not in steps.weight_sizes:
            by_line.setdefault((one.block.stack, one.block.requested_bytes), []).append(one)
    for made in by_line.values():
        if not _is_collected(made):
            yield from (left_out(one.block, 0.5) for one in made)
            continue
        begins = [together[0].block.made, *(one.block.made for one in made)]
        for begin, one in zip(begins, made):  # the first half's is there during the second half
            yield LifeChange(begin, one.block.made, round(0.5 * one.block.size_bytes))


def _is_collected(made: Sequence[NamedBlock]) -> bool:
    return any(
        one.block.freed is None or one.block.freed > later.block.made for one, later in zip(made, made[_ALIVE_AFTER:])
    )
