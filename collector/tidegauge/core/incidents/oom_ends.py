"""Finds the out-of-memory error that an incident ended by. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from tidegauge.core.ids import DeviceUuid
from tidegauge.core.incidents import Closure, Incident, IncidentCause, OomEnd
from tidegauge.core.samples import OomRecord
from tidegauge.core.views import JobView, RankSummary

CRASH_WITHIN_S = 120.0
"""Seconds between an out-of-memory error and the end of the process, or of the incident, within which it ended by the
error."""


def see_end(incident: Incident, job: JobView) -> Optional[OomEnd]:
    """The first error that a rank of the incident has ended by, of those that are shown now; ``None``: there is none,
    or its rank runs again. A rank that has the GPU of one of the incident's counts to them: they filled it together."""
    if incident.key.cause is IncidentCause.HOST_MEMORY:
        return None
    concerned = _Concerned(incident)
    heard = [rank for rank in job.ranks if int(rank.identity.rank) not in job.stale]
    died = [
        (rank.last_oom.at_unix_s, int(rank.identity.rank), rank.last_oom)
        for rank in heard
        if rank.last_oom is not None
        and _died_of(rank, rank.last_oom)
        and concerned.has(int(rank.identity.rank), rank.uuid)
    ]
    if not died:
        before = incident.ran_out
        return None if before is None or before.rank in job.living_numbers else before
    _, number, oom = min(died)
    return OomEnd(number, oom, sum(rank.last_oom is not None for rank in heard) - 1)


def oom_end(incident: Incident) -> Optional[OomEnd]:
    """The error that ranks of the incident have ended by; ``None``: none that is known. Incidents of earlier versions
    have it in their findings alone."""
    ended_s = incident.closed_unix_s
    if incident.ran_out is not None or ended_s is None:
        return incident.ran_out
    if incident.closure not in (Closure.JOB_ENDED, Closure.CULPRITS_ENDED):
        return None
    failed = [
        (one.oom.at_unix_s, one.rank, one.oom)
        for one in incident.findings
        if one.oom is not None and one.step <= one.oom.step and abs(ended_s - one.oom.at_unix_s) <= CRASH_WITHIN_S
    ]
    if not failed:
        return None
    _, number, oom = min(failed)
    others = sum(one.oom is not None for one in incident.findings) - 1
    others += incident.ranks_left_out if incident.key.cause is IncidentCause.OUT_OF_MEMORY else 0
    return OomEnd(number, oom, others, ended_job=incident.closure is Closure.JOB_ENDED)


def growth_of(error: Incident, growth: Iterable[Incident]) -> Optional[int]:
    """The number of the incident of growth that this out-of-memory error came in: the most severe of those open ones
    of its job that concern one of its ranks."""
    found = [
        (-one.severity.level, one.number)
        for one in growth
        if one.key.cause.is_growth and one.key.cause is not IncidentCause.HOST_MEMORY and _shares_ranks(one, error)
    ]
    return min(found)[1] if found else None


def _died_of(rank: RankSummary, oom: OomRecord) -> bool:
    lived_s = rank.last_sample_unix_s - oom.at_unix_s
    return not rank.alive and rank.step <= oom.step and lived_s <= CRASH_WITHIN_S


def _shares_ranks(growth: Incident, error: Incident) -> bool:
    concerned = _Concerned(growth)
    return any(concerned.has(finding.rank, finding.uuid) for finding in error.findings)


class _Concerned:
    """Ranks and GPUs that an incident is about."""

    def __init__(self, incident: Incident) -> None:
        self._all = incident.ranks_left_out > 0
        self._ranks = frozenset(incident.ranks)
        self._uuids = frozenset(finding.uuid for finding in incident.findings if finding.uuid is not None)

    def has(self, rank: int, uuid: Optional[DeviceUuid]) -> bool:
        return self._all or rank in self._ranks or uuid in self._uuids
