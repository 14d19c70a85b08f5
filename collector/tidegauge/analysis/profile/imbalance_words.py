"""What is said of a job's ranks that have unequal memory. Pure; texts from profiles are made printable where shown."""

from __future__ import annotations

from typing import Optional

from tidegauge.analysis.profile.words import line_of_change
from tidegauge.core.profile.imbalance import Imbalance, ImbalanceCause, ImbalanceKind
from tidegauge.core.units import format_bytes, format_bytes_apart

_ADVICE = {
    ImbalanceKind.MODEL_COPY: "Keep such a copy in host memory, or a part of it on each rank.",
    ImbalanceKind.MODEL_PART: "If the ranks are stages of a pipeline, give this one fewer layers.",
    ImbalanceKind.OPTIMIZER_STATE: "FSDP2 shards each tensor evenly; ZeRO-1 deals out whole parameters.",
    ImbalanceKind.BATCH: "Deal out samples by their length, so that all ranks have as many tokens.",
    ImbalanceKind.OTHER_PROCESS: (
        "If they are another job's, nothing is wrong with this one. If they are other ranks of this job, have each "
        "call `torch.cuda.set_device` before anything else, and load checkpoints with `map_location`."
    ),
}


def imbalance_sentence(found: Imbalance, cause: ImbalanceCause) -> str:
    """Which rank has how much more, and why."""
    share = f", {found.excess_bytes / found.median_bytes:.0%}" if found.median_bytes else ""
    worst, median = format_bytes_apart(found.worst_bytes, found.median_bytes)
    what = f"Rank {found.rank} has"
    if cause.kind is ImbalanceKind.OTHER_PROCESS:
        what = f"The GPU of rank {found.rank}, with other processes, has"
    return (
        f"{what} {format_bytes(found.excess_bytes)} more than the median{share} ({worst} against {median} of rank "
        f"{found.peer}): {_why(cause)}."
    )


def imbalance_advice(cause: ImbalanceCause) -> Optional[str]:
    """What would help, where something would."""
    return _ADVICE.get(cause.kind)


def _why(cause: ImbalanceCause) -> str:
    grown = format_bytes(cause.bytes)
    line = cause.line
    if cause.kind is ImbalanceKind.MODEL_COPY:
        copies = "an extra copy" if cause.times == 1 else f"{cause.times:g} extra copies"
        return f"{grown} of {cause.part.value} are as large as {copies} of the model's parameters"
    if cause.kind is ImbalanceKind.MODEL_PART:
        where = _modules(cause)
        return f"{grown} are more of the model, with what belongs to it{f', most in {where}' if where else ''}"
    if cause.kind is ImbalanceKind.OPTIMIZER_STATE:
        where = _modules(cause)
        return f"{grown} of optimizer state for as many parameters{f', most in {where}' if where else ''}"
    if cause.kind is ImbalanceKind.BATCH:
        at = "" if line is None else f", most at {line_of_change(line)}"
        return f"the same lines hold {grown} more, {cause.times:.2g} times as much, as with a larger batch{at}"
    if cause.kind is ImbalanceKind.OTHER_LIBRARY:
        return f"its process holds {grown} more outside PyTorch, by NVML: another library, or NCCL"
    if cause.kind is ImbalanceKind.OTHER_PROCESS:
        return f"those other processes hold {grown} more on it, by NVML"
    if line is not None:
        before, after = format_bytes_apart(line.before_bytes, line.after_bytes)
        return f"{grown} of {cause.part.value}; {line_of_change(line)} holds {after} against {before}"
    return f"{grown} are {cause.part.value}, of which no more is known"


def _modules(cause: ImbalanceCause) -> str:
    return " and ".join(f"{one.path} ({format_bytes(one.grown_bytes)})" for one in cause.modules)
