"""Every measure that would lower the peak of a recording, the largest saving first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

from tidegauge.analysis.profile.advice.batch import accumulation, room_for_batch
from tidegauge.analysis.profile.advice.checkpointing import checkpointing
from tidegauge.analysis.profile.advice.curve import Curve
from tidegauge.analysis.profile.advice.evaluation import smaller_evaluation
from tidegauge.analysis.profile.advice.fully_sharded import fully_sharded
from tidegauge.analysis.profile.advice.gradients import gradients_freed
from tidegauge.analysis.profile.advice.inference import inference
from tidegauge.analysis.profile.advice.loss import chunked_loss
from tidegauge.analysis.profile.advice.settings import allocator_settings
from tidegauge.analysis.profile.advice.state import half_activations, sharded_state, smaller_state
from tidegauge.analysis.profile.advice.steps import RecordedSteps
from tidegauge.analysis.profile.recording import NamedRecording
from tidegauge.core.profile.advice import AdvisedMeasure, FittingCard, StepAdvice

MIN_SAVED_SHARE = 0.01
"""Of the peak, allocated or reserved, below which a measure is not worth a line."""


def advice_of(
    recording: NamedRecording,
    *,
    ranks: Optional[int] = None,
    limit_bytes: Optional[int] = None,
    cards: Iterable[FittingCard] = (),
    with_settings: bool = True,
) -> StepAdvice:
    """What would help the rank that a recording is of.

    ``ranks``: of the job, or that it could have; without it nothing is said about sharding. ``limit_bytes``: what its
    device has for PyTorch, without CUDA context. ``cards``: those to choose a smaller one from. ``with_settings``: also
    try those of the allocator, each by a replay.
    """
    steps = RecordedSteps(recording)
    curve = Curve(steps.events, (one.block for one in recording.blocks))
    peak_bytes = curve.peak_bytes()
    measures = [*_measures(steps, curve, ranks)]
    if with_settings:
        measures += allocator_settings(recording, curve)
    found = [one for one in measures if one.saved_bytes >= MIN_SAVED_SHARE * _today(one) > 0]
    return StepAdvice(
        peak_bytes=peak_bytes,
        reserved_bytes=recording.reserved_bytes,
        measures=tuple(sorted(found, key=lambda one: -one.saved_bytes)),
        room=room_for_batch(steps, curve, limit_bytes) if limit_bytes else None,
        cards=fitting_cards(cards, recording.reserved_bytes),
    )


def fitting_cards(cards: Iterable[FittingCard], reserved_bytes: int) -> tuple[FittingCard, ...]:
    """Those that have as much for PyTorch, the smallest first."""
    fitting = [card for card in cards if reserved_bytes <= card.total_bytes]
    return tuple(sorted(fitting, key=lambda card: card.total_bytes))


def _measures(steps: RecordedSteps, curve: Curve, ranks: Optional[int]) -> Iterator[AdvisedMeasure]:
    if steps.passes:
        yield from checkpointing(steps, curve)
        yield from gradients_freed(steps, curve)
        yield from chunked_loss(steps, curve)
        yield from half_activations(steps, curve)
        yield from accumulation(steps, curve)
        yield from smaller_evaluation(steps, curve)
    elif not steps.optimizers:
        yield from inference(steps, curve)
    yield from smaller_state(steps, curve)
    if ranks is not None and ranks > 1:
        yield from sharded_state(steps, curve, ranks)
        yield from fully_sharded(steps, curve, ranks)


def _today(one: AdvisedMeasure) -> int:
    return one.peak_bytes + one.saved_bytes
