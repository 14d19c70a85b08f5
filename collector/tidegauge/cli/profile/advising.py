"""The advice of a recording, for the card that it was made on or a given one."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from tidegauge.analysis.profile.advice.advise import advice_of, fitting_cards
from tidegauge.analysis.profile.recording import NamedRecording
from tidegauge.core.profile.advice import FittingCard, StepAdvice
from tidegauge.estimator.gpus import CONTEXT_BYTES, GPU_TYPES, MIG_SLICES


def advise(
    recording: NamedRecording,
    *,
    ranks: Optional[int] = None,
    card_bytes: Optional[int] = None,
    with_settings: bool = True,
) -> StepAdvice:
    """``card_bytes``: the memory of the card (default: of the recording's, where it is known). Smaller ones are looked
    for below it. ``with_settings``: also try those of the allocator."""
    known = card_bytes or recording.trace.total_bytes
    limit_bytes = None if known is None else max(1, known - CONTEXT_BYTES)
    cap_bytes = recording.trace.cap_bytes
    if card_bytes is None and cap_bytes is not None:
        limit_bytes = min(cap_bytes, limit_bytes or cap_bytes)
    return advice_of(
        recording, ranks=ranks, limit_bytes=limit_bytes, cards=_smaller_cards(known), with_settings=with_settings
    )


def with_cards(advice: StepAdvice) -> StepAdvice:
    """The advice of a service's profile, with the smaller cards that would do."""
    if advice.room is None:
        return advice
    smaller = _smaller_cards(advice.room.limit_bytes + CONTEXT_BYTES)
    return replace(advice, cards=fitting_cards(smaller, advice.reserved_bytes))


def _smaller_cards(known_bytes: Optional[int]) -> list[FittingCard]:
    """All cards where the present one's size is not known."""
    sizes = [(gpu.name, gpu.target.total_bytes) for gpu in GPU_TYPES]
    sizes += [(f"MIG {name}", size) for name, size in MIG_SLICES]
    return [
        FittingCard(name, size - CONTEXT_BYTES)
        for name, size in sizes
        if known_bytes is None or size < 0.95 * known_bytes
    ]
