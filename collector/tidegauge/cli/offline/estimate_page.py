"""An estimate for people: the number first, then where it fits, what it consists of, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.cli.output import print_table, print_wrapped
from tidegauge.core.units import format_bytes
from tidegauge.estimator.results import Breakdown, ClosedForm, Estimate, Fit, LargestBatch, Saving

BAR_CHARACTERS = 40
_PART_WORDS = {
    "optimizer_state": "optimizer state",
    "allocator": "allocator: rounding and fragmentation",
    "context": "CUDA context and kernels",
    "nccl": "NCCL",
}


def print_estimate(function: str, estimate: Estimate) -> None:
    """Everything to stdout."""
    print("\n".join(headline(function, estimate)))
    _section("Fits?")
    print_table(
        ("GPU", "memory", "verdict", "free", "largest batch"), fit_rows(estimate.fits, estimate.largest_batches)
    )
    print_wrapped("Largest batch: ", estimate.batch_note)
    _section("Breakdown at peak allocated memory")
    print_table(("part", "bytes", "share", ""), breakdown_rows(estimate.breakdown, estimate.device_bytes))
    _section("Per step")
    print_table(
        ("step", "peak allocated", "peak reserved so far"),
        [(str(s.step), format_bytes(s.allocated_bytes), format_bytes(s.reserved_bytes)) for s in estimate.steps],
    )
    if estimate.savings:
        _section("Memory savings (each measured in its own run)")
        print_table(("change", "new total", "saves", ""), [saving_row(saving) for saving in estimate.savings])
    if estimate.closed_forms:
        _section("For comparison: textbook formulas")
        print_table(("formula", "result", "estimate", "ratio"), [form_row(form) for form in estimate.closed_forms])
    _section("Assumptions")
    for assumption in estimate.assumptions:
        print_wrapped("- ", assumption)


def headline(function: str, estimate: Estimate) -> list[str]:
    """The number, and how it comes about."""
    ranks = f", each of {estimate.world_size} ranks ({estimate.strategy})" if estimate.world_size > 1 else ""
    conf = estimate.alloc_conf or "default settings"
    return [
        f"{function} needs {format_bytes(estimate.device_bytes)} of device memory{ranks}.",
        f"  peak allocated {format_bytes(estimate.peak_allocated_bytes)}, "
        f"peak reserved {format_bytes(estimate.peak_reserved_bytes)} (torch {estimate.torch_version}, {conf})",
        f"  peak at: {estimate.peak_at}",
    ]


def fit_rows(fits: Sequence[Fit], batches: Sequence[LargestBatch]) -> list[tuple[str, ...]]:
    by_gpu = {batch.gpu: batch for batch in batches}
    return [
        (
            fit.gpu,
            format_bytes(fit.total_bytes),
            fit.verdict.value + (f" ({fit.note})" if fit.note else ""),
            f"{fit.margin:.0%}",
            _batch(by_gpu.get(fit.gpu)),
        )
        for fit in fits
    ]


def _batch(batch: LargestBatch | None) -> str:
    if batch is None:
        return "-"
    if not batch.batch_size:
        return "none"
    return str(batch.batch_size) if batch.tried else f"about {batch.batch_size}"


def breakdown_rows(breakdown: Breakdown, device_bytes: int) -> list[tuple[str, ...]]:
    """Largest first, each with a bar; parts without a byte are left out."""
    parts = sorted(breakdown._asdict().items(), key=lambda part: -part[1])
    return [
        (
            _PART_WORDS.get(name, name),
            format_bytes(size_bytes),
            f"{size_bytes / device_bytes:.0%}",
            "#" * round(BAR_CHARACTERS * size_bytes / device_bytes),
        )
        for name, size_bytes in parts
        if size_bytes
    ]


def saving_row(saving: Saving) -> tuple[str, ...]:
    if saving.device_bytes is None or saving.saved_bytes is None:
        return (saving.change, "-", "-", f"not tried: {saving.note}")
    return (saving.change, format_bytes(saving.device_bytes), format_bytes(saving.saved_bytes), saving.note)


def form_row(form: ClosedForm) -> tuple[str, ...]:
    ratio = f"{form.estimate_bytes / form.bytes:.2f}" if form.bytes else "-"
    estimate = f"{format_bytes(form.estimate_bytes)} ({form.of})"
    return (f"{form.name}: {form.formula}", format_bytes(form.bytes), estimate, ratio)


def _section(title: str) -> None:
    print(f"\n{title}")
