"""An estimate as a value, for tests that show or send one."""

from __future__ import annotations

from tidegauge.estimator.results import (
    Breakdown,
    ClosedForm,
    Estimate,
    Fit,
    FitVerdict,
    LargestBatch,
    Saving,
    StepPeak,
)

MIB = 1 << 20
BREAKDOWN = Breakdown(
    parameters=500 * MIB, buffers=0, gradients=500 * MIB, optimizer_state=1000 * MIB, activations=1500 * MIB,
    temporaries=100 * MIB, workspaces=64 * MIB, inputs=1 * MIB, other=0, allocator=335 * MIB, context=762 * MIB, nccl=0,
)  # fmt: skip
ESTIMATE = Estimate(
    peak_allocated_bytes=3700 * MIB,
    peak_reserved_bytes=4000 * MIB,
    device_bytes=4762 * MIB,
    breakdown=BREAKDOWN,
    peak_at="step 2, backward, model.head: aten.mm",
    steps=(StepPeak(1, 3000 * MIB, 3200 * MIB), StepPeak(2, 3700 * MIB, 4000 * MIB)),
    parameters=131_072_000,
    world_size=1,
    strategy="none",
    alloc_conf="",
    torch_version="2.13.0+cpu",
    fits=(
        Fit("h200", 140_000 * MIB, FitVerdict.FITS, 0.966, "measured"),
        Fit("tiny", 3000 * MIB, FitVerdict.DOES_NOT_FIT, -0.587, "quoted"),
    ),
    savings=(
        Saving("activation checkpointing of each block", 3500 * MIB, 1262 * MIB),
        Saving("bfloat16 autocast", None, None, "already used by the job"),
    ),
    largest_batches=(
        LargestBatch("h200", 300, 127_000 * MIB, tried=True, border_batch_size=331),
        LargestBatch("tiny", 0, None, tried=True),
    ),
    batch_note="searched with 5 runs",
    closed_forms=(ClosedForm("model states, AdamW", "16 bytes a parameter", 2000 * MIB, "states", 2000 * MIB),),
    assumptions=("Kernels and their workspaces: those of an H200.",),
)
