"""Incidents and decisions without the person they are about, for an audit that outlives a person's data. Pure.

What stays: numbers, times, causes, states, severities, figures, ranks, rules, and whether an
action took place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Optional

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents import Closure, Incident, IncidentState, RankFinding
from tidegauge.core.incidents.actions import Decision, JobFacts, JobTarget

PREFIX = "forgotten-"
"""How pseudonyms begin."""
FORGOTTEN_UID = (1 << 32) - 1
"""In place of the uid: (uid_t)-1, which no user has."""
REMOVED = "removed with the user's data"
"""In place of texts that tell of the job."""
_NO_PROCESS = ProcessId(0, 0)


@dataclass(frozen=True)
class Alias:
    """The pseudonyms of one person and of each of the jobs."""

    name: str
    job_ids: Mapping[str, str]

    def job(self, key: JobKey) -> JobKey:
        return JobKey(self.job_ids.get(key.job_id, self.name), key.attempt, FORGOTTEN_UID)


def alias_of(name: str, job_ids: Iterable[str]) -> Alias:
    """Jobs are numbered, so that incidents of one job are still known as such."""
    numbered = enumerate(sorted(set(job_ids)), start=1)
    return Alias(name, {job_id: f"{name}-{number}" for number, job_id in numbered})


def incident_without_person(incident: Incident, alias: Alias, *, ended_s: Optional[float] = None) -> Incident:
    """``ended_s``: when to close it if it is open; ``None``: it stays as it is, as a line of the history does."""
    bare = replace(
        incident,
        key=incident.key._replace(job=alias.job(incident.key.job)),
        user_name=alias.name,
        job_name=None,
        findings=tuple(_without_place(finding) for finding in incident.findings),
        explanation=None,
        snapshots=(),
        reports=(),
        evidence=(),
        group_name="",
        array_name=None,
        change=None,
    )
    if ended_s is None or not bare.is_open:
        return bare
    return replace(
        bare, state=IncidentState.CLOSED, closed_unix_s=ended_s, closure=Closure.JOB_ENDED, easing_since_unix_s=None,
        recovering_since_unix_s=None,
    )  # fmt: skip


def decision_without_person(decision: Decision, alias: Alias) -> Decision:
    target = JobTarget(alias.job(decision.target.job), decision.target.scheduler, incarnation="")
    return replace(
        decision,
        target=target,
        incident=incident_without_person(decision.incident, alias),
        facts=_bare_facts(decision.facts, target, alias),
        reason=REMOVED,
        parameters={},
    )


def _bare_facts(facts: JobFacts, target: JobTarget, alias: Alias) -> JobFacts:
    return replace(
        facts,
        target=target,
        scheduler_facts=None,
        user_name=alias.name,
        job_name=None,
        torch_version=None,
        alloc_conf=None,
        cap_explanation=None,
        groups_without_checkpoint=(),
    )


def _without_place(finding: RankFinding) -> RankFinding:
    return replace(
        finding, hostname="", node_id="", process=_NO_PROCESS, gpu=None, uuid=None, host_process=None, pod=None
    )
