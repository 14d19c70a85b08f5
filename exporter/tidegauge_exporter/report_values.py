"""What a report is made of: one job, its ranks, their readings and verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tidegauge.core.ids import DeviceUuid, RankIdentity
from tidegauge.core.verdicts import LeakState, Severity, Verdict


class Reading(NamedTuple):
    """One rank after a step. ``time_s`` counts from any one moment; only differences are shown."""

    step: int
    time_s: float
    allocated_bytes: int
    reserved_bytes: int
    nontorch_bytes: int | None = None


@dataclass(frozen=True)
class RankReport:
    """One rank of the job. ``gpu`` is the NVML index, ``limit_bytes`` what the rank may take on its GPU."""

    identity: RankIdentity
    verdict: Verdict
    readings: tuple[Reading, ...]
    gpu: int | None = None
    uuid: DeviceUuid | None = None
    gpu_name: str | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True)
class ReportInput:
    """One job. ``notes`` are sentences about how and on what it was measured; they are shown as they are."""

    job_id: str
    ranks: tuple[RankReport, ...]
    made_unix_s: float
    job_name: str | None = None
    user_name: str | None = None
    cluster: str | None = None
    notes: tuple[str, ...] = ()


_URGENCY = (Severity.CRITICAL, Severity.WARNING, Severity.NOTE, None)


def worst_first(ranks: tuple[RankReport, ...]) -> list[RankReport]:
    """Surest first, then the gravest, then the one that ends soonest."""

    def place(rank: RankReport) -> tuple[int, int, float, int]:
        verdict = rank.verdict
        end = verdict.seconds_to_oom or verdict.steps_to_oom
        return (
            -verdict.state.level,
            _URGENCY.index(verdict.severity),
            end.likely if end is not None else math.inf,
            rank.identity.rank,
        )

    return sorted(ranks, key=place)


def leaking(ranks: tuple[RankReport, ...]) -> list[RankReport]:
    """The ranks with an established leak, worst first."""
    return [rank for rank in worst_first(ranks) if rank.verdict.state is LeakState.LEAK]
