"""Optimizer state and activations that take fewer bytes: sharded over ranks, or in smaller numbers."""

from __future__ import annotations

from collections.abc import Iterator

from tidegauge.analysis.profile.advice.autocast import cached_casts
from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, advised, left_out
from tidegauge.analysis.profile.advice.steps import RecordedSteps
from tidegauge.core.profile.advice import AdvisedMeasure, Measure
from tidegauge.core.profile.categories import Category, StepPhase

EIGHT_BIT_SHARE = (1 + 4 / 256) / 4
"""One byte a number, and a scale of four for every 256 numbers, instead of four a number (bitsandbytes, torchao)."""
MIN_EIGHT_BIT_BYTES = 4096 * 4
"""Smaller tensors stay as they are, in both."""
_FROM_FP32 = "if it is fp32 now (sizes do not tell)"


def sharded_state(steps: RecordedSteps, curve: Curve, ranks: int) -> Iterator[AdvisedMeasure]:
    """ZeRO-1: each rank steps its part of the parameters."""
    share = 1 - largest_part(steps.parameter_bytes, ranks)
    changes = [left_out(one.block, share) for one in steps.of(Category.OPTIMIZER_STATE)]
    changes += [
        left_out(one.block, share) for one in steps.of(Category.TEMPORARIES) if one.phase is StepPhase.OPTIMIZER
    ]
    yield advised(
        Measure.SHARDED_STATE,
        curve,
        changes,
        action=f"Shard the optimizer's state over {ranks} ranks (ZeroRedundancyOptimizer, ZeRO-1)",
        price="each step ends with a broadcast of the parameters",
        condition="with whole replicas of the model, as under DDP",
    )


def largest_part(sizes: list[int], ranks: int) -> float:
    """The part of the rank that has most, where whole parameters are dealt out: the largest first, each to the rank
    that has least, as ``ZeroRedundancyOptimizer`` does."""
    if not sizes:
        return 1 / ranks
    parts = [0] * ranks
    for size in sorted(sizes, reverse=True):
        parts[parts.index(min(parts))] += size
    return max(parts) / sum(sizes)


def smaller_state(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """Optimizer state in fewer bits."""
    state = [one.block for one in steps.of(Category.OPTIMIZER_STATE)]
    yield advised(
        Measure.EIGHT_BIT_STATE,
        curve,
        [left_out(one, 1 - EIGHT_BIT_SHARE) for one in state if one.requested_bytes >= MIN_EIGHT_BIT_BYTES],
        action="Take an 8-bit optimizer (bitsandbytes, torchao)",
        price="the state is rounded to 8 bits: check that training still converges",
        condition=_FROM_FP32,
    )
    yield advised(
        Measure.HALF_STATE,
        curve,
        [left_out(one, 0.5) for one in state],
        action="Keep the optimizer's state in bf16",
        price="the state is rounded to 8 significant bits: check that training still converges",
        condition=_FROM_FP32,
    )


def half_activations(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """The most that autocast could save: it leaves norms, softmax and the loss in fp32, and copies the weights."""
    changes = []
    for one in steps.passes:
        if cached_casts(steps, one):
            return  # autocast is on
        changes += [left_out(two.block, 0.5) for two in steps.activations(one)]
        changes.append(LifeChange(one.forward, one.end, sum(steps.parameter_bytes) // 2))
    yield advised(
        Measure.HALF_ACTIVATIONS,
        curve,
        changes,
        action="Compute in bf16 (torch.autocast)",
        price="activations are rounded to 8 significant bits; on most GPUs a step is faster",
        condition=_FROM_FP32.replace("it is", "they are"),
        is_bound=True,
    )
