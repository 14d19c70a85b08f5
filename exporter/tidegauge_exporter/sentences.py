"""Verdicts in plain words: what a person reads first, in a report or a message."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidegauge.core.units import format_band, format_bytes
from tidegauge.core.verdicts import Band, LeakState, Severity, Signal, Verdict
from tidegauge_exporter.report_values import RankReport, ReportInput, leaking, worst_first

_GROWTH = {
    Signal.ALLOCATED: ("leaks {rate}", "leak"),
    Signal.RESERVED: ("loses {rate} to fragmentation", "lose memory to fragmentation"),
    Signal.NONTORCH: ("grows by {rate} outside PyTorch's allocator", "grow outside PyTorch's allocator"),
    Signal.HOST: ("leaks {rate} of host memory", "leak host memory"),
}
"""What one rank does, and what several do."""

_HINTS = {
    Signal.ALLOCATED: (
        "Live tensors pile up: something keeps a reference from step to step. The usual places are lists of losses or "
        "outputs without .detach(), module hooks that store activations, and caches without a bound."
    ),
    Signal.RESERVED: (
        "The allocator holds ever more memory while live tensors do not grow: free pieces do not fit what is asked "
        "for. The usual cure is expandable_segments:True in PyTorch's allocator configuration."
    ),
    Signal.NONTORCH: (
        "The process takes device memory that PyTorch does not know of: new NCCL communicators (process groups made "
        "in a loop), other CUDA libraries or extensions that call cudaMalloc."
    ),
    Signal.HOST: (
        "The rank's memory on the host grows: often a loss that is kept with its graph, which costs little on the GPU "
        "and much in RAM. It ends with the node's OOM killer."
    ),
}


def headline(report: ReportInput) -> str:
    """The job in one sentence."""
    if not any(rank.readings for rank in report.ranks):
        return "Nothing was recorded for this job."
    culprits = leaking(report.ranks)
    if culprits:
        return _accusation(culprits)
    suspects = [rank for rank in worst_first(report.ranks) if rank.verdict.state is LeakState.SUSPECTED]
    if suspects:
        verb = "may be leaking" if len(suspects) > 1 else "may leak"
        return f"{_ranks(suspects)} {verb}: memory grows, but not for long enough to be sure."
    steps = max(rank.readings[-1].step for rank in report.ranks if rank.readings)
    where = "the rank" if len(report.ranks) == 1 else f"any of the {len(report.ranks):,} ranks"
    return f"No leak in {steps:,} steps: memory does not keep growing on {where}."


def hint(signal: Signal | None) -> str | None:
    """Where to look, by what grows."""
    return None if signal is None else _HINTS[signal]


def time_to_oom(verdict: Verdict) -> str | None:
    """ "14-22 min", or in steps where time is not known; ``None`` without an end in sight."""
    if verdict.seconds_to_oom is not None:
        return None if math.isinf(verdict.seconds_to_oom.low) else format_band(verdict.seconds_to_oom)
    if verdict.steps_to_oom is not None and not math.isinf(verdict.steps_to_oom.low):
        return format_band(verdict.steps_to_oom, _steps)
    return None


def rate(band: Band | None) -> str | None:
    """The likely growth per step: "12.0 MiB"."""
    return None if band is None else format_bytes(band.likely)


def _accusation(culprits: Sequence[RankReport]) -> str:
    worst = culprits[0]
    verdict = worst.verdict
    one, several = _GROWTH[verdict.signal or Signal.ALLOCATED]
    amount = rate(verdict.bytes_per_step)
    does = one.format(rate=f"{amount} per step" if amount else "memory")
    since = f" since step {verdict.onset_step:,}" if verdict.onset_step is not None else ""
    if len(culprits) == 1:
        return f"{_ranks(culprits)} {does}{since}{_outlook(verdict)}"
    same = several if len({rank.verdict.signal for rank in culprits}) == 1 else "leak"
    return f"{_ranks(culprits)} {same}. The worst, rank {worst.identity.rank}, {does}{since}{_outlook(verdict)}"


def _outlook(verdict: Verdict) -> str:
    if verdict.severity is Severity.NOTE:
        return "; at this rate it would take weeks to matter."
    end = time_to_oom(verdict)
    return f"; at this rate it runs out of memory in {end}." if end else "."


def _ranks(ranks: Sequence[RankReport]) -> str:
    numbers = [str(number) for number in sorted(rank.identity.rank for rank in ranks)]
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    if len(numbers) > 6:
        return f"{len(numbers)} ranks"
    return f"Ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _steps(count: float) -> str:
    return f"{count:,.0f} steps"
