"""A tracker of incidents, driven second by second, and the jobs that it is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sample_views import GIB, LEAK, NOW_S, identity, rank_summary
from tidegauge.core.detector.peers import judge_job
from tidegauge.core.ids import DeviceUuid, JobId
from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge.core.incidents.steps import IncidentRules
from tidegauge.core.incidents.tracker import IncidentTracker, _Followed
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import OK, Verdict
from tidegauge.core.views import JobView, RankSummary

RULES = IncidentRules()
OOM = OomRecord(
    at_unix_s=NOW_S, step=412, wanted_bytes=2 * GIB, free_bytes=GIB, limit_bytes=80 * GIB,
    allocated_bytes=70 * GIB, reserved_bytes=78 * GIB,
)  # fmt: skip


def job(*ranks: RankSummary, stale: tuple[int, ...] = (), **changes: Any) -> JobView:
    """The ranks side by side, as the coordinator shows them."""
    judged = judge_job({int(rank.identity.rank): rank.verdict for rank in ranks})
    first = ranks[0].identity
    view = JobView(
        job_id=first.job_id,
        attempt=first.attempt,
        job_name=first.job_name,
        user_name=ranks[0].user_name,
        scheduler=first.scheduler,
        world_size=len(ranks),
        hostnames=("node7",),
        ranks=ranks,
        state=judged.state,
        severity=judged.severity,
        signal=judged.signal,
        suspects=tuple(suspect.rank for suspect in judged.suspects),
        running=any(rank.alive for rank in ranks),
        stale=stale,
        common=judged.common,
        rank_nodes=tuple(f"engine-{int(rank.identity.rank) // 8}" for rank in ranks),
        rank_hostnames=tuple(f"node{int(rank.identity.rank) // 8}" for rank in ranks),
    )
    return replace(view, **changes)


def two_ranks(first: Verdict, second: Verdict = OK, **changes: Any) -> JobView:
    return job(rank_summary(0, verdict=first), rank_summary(1, verdict=second), **changes)


def replica(name: str | int, verdict: Verdict = LEAK, *, server: str = "team-a/vllm", **changes: Any) -> JobView:
    """One of eight replicas of an inference server, "pod NAME" of a Deployment; ``changes`` are its rank's."""
    group = f"replica {name}" if isinstance(name, int) else name
    kind = "Deployment" if group.startswith("pod ") else "StatefulSet"
    rank = rank_summary(0, identity=identity(0, job_id=JobId(server)), verdict=verdict, **changes)
    return job(rank, group=group, group_name=group, replicas=Replicas(kind, 8, 1))


def ended(view: JobView) -> JobView:
    return replace(view, ranks=tuple(replace(rank, alive=False) for rank in view.ranks), running=False)


class Watch:
    """A tracker, the clock it is driven by, and everything that it told."""

    def __init__(self, rules: IncidentRules = RULES, **values: Any) -> None:
        self.tracker = IncidentTracker((), next_number=1, rules=rules, **values)
        self.rules = rules
        self.now_s = NOW_S
        self.told: list[IncidentChange] = []

    def see(self, *jobs: JobView, for_s: float = 1.0, totals: Mapping[DeviceUuid, int] | None = None) -> list[str]:
        """Look once a second for ``for_s``; what was told, in words."""
        before = len(self.told)
        for _ in range(math.ceil(for_s)):
            self.now_s += 1.0
            self.told += self.tracker.update(jobs, now_s=self.now_s, gpu_total_bytes=totals)
        return [change.kind.value for change in self.told[before:]]

    def look(self, *jobs: JobView, after_s: float) -> list[str]:
        """Look once, ``after_s`` after the last time; what was told, in words."""
        self.now_s += after_s
        told = self.tracker.update(jobs, now_s=self.now_s)
        self.told += told
        return [change.kind.value for change in told]

    def restart(self, **values: Any) -> None:
        tracker = self.tracker
        self.tracker = IncidentTracker(tracker.incidents, next_number=tracker.next_number, rules=self.rules, **values)

    @property
    def incident(self) -> Incident:
        (only,) = self.tracker.incidents
        return only

    @property
    def followed(self) -> _Followed:
        """What is remembered beside ``incident``."""
        (only,) = self.tracker._followed.values()
        return only

    @property
    def last(self) -> Incident:
        return self.told[-1].incident
