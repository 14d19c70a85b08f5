"""Computes an incident's figures from its ranks' findings, and detects whether they have moved. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from tidegauge.core.incidents import Incident, IncidentCause, OomForecast, RankFinding
from tidegauge.core.verdicts import Band
from tidegauge.core.views import JobView, job_array_name

MAX_CONCERNED = 16_384
"""Ranks of one incident: more than any job has that was ever watched."""
MAX_ERRORS = 1024
"""Ranks of one incident that ran out of memory, which stay in it to its end: half of them the first that did, half the
latest. Rank numbers are what processes call themselves; a job that starts again and again has ever new ones."""


def with_findings(
    incident: Incident, findings: Sequence[RankFinding], job: JobView, *, now_s: float, failed: int = 0
) -> Incident:
    """``incident`` as these findings, the one to look at first first, show it now; those that find no place are
    counted. ``failed``: ranks that are known to have run out of memory in this incident."""
    verdicts = [finding.verdict for finding in findings]
    onsets = [_first_bad_step(incident.key.cause, finding) for finding in findings]
    growth = [verdict.grown_bytes for verdict in verdicts if verdict.grown_bytes is not None]
    is_growth = incident.key.cause.is_growth
    kept = _with_places(findings, incident.key.cause)
    left_out = len(findings) - len(kept)
    if not is_growth and (left_out or incident.ranks_left_out):  # what has found no place before is not among these
        left_out = max(left_out, incident.ranks_left_out, failed - len(kept))
    most = len(job.ranks) > 1 and (len(kept) + left_out) * 2 > len(job.ranks)
    soonest = _soonest([verdict.seconds_to_oom for verdict in verdicts]) if is_growth else None
    forecast = None if soonest is None or math.isinf(soonest.low) else OomForecast(now_s, soonest)
    return replace(
        incident,
        world_size=job.world_size,
        group_name=job.group_name or incident.group_name,
        array_name=job_array_name(job) or incident.array_name,
        change=job.change or incident.change,
        replicas=job.replicas or incident.replicas,
        findings=tuple(kept),
        ranks_left_out=left_out,
        common=most and (job.common or not is_growth),
        updated_unix_s=now_s,
        onset_step=min((step for step in onsets if step is not None), default=None),
        bytes_per_step=_largest([verdict.bytes_per_step for verdict in verdicts]) if is_growth else None,
        seconds_to_oom=soonest,
        grown_bytes=max(growth, default=None) if is_growth else None,
        foreseen=incident.foreseen or forecast,
    )


def moved(told: Incident, now: Incident, *, share: float) -> bool:
    """Other ranks or other errors, or a figure that changed by more than ``share`` of itself."""
    if {(one.rank, one.oom) for one in told.findings} != {(one.rank, one.oom) for one in now.findings}:
        return True
    return any(
        (old is None) is not (new is None)
        or (old is not None and new is not None and not math.isclose(old, new, rel_tol=share))
        for old, new in zip(_figures(told), _figures(now))
    )


def halved(told: Incident, now: Incident) -> bool:
    """Whether the likely time to out-of-memory is less than half of the reported one."""
    if now.seconds_to_oom is None:
        return False
    before_s = math.inf if told.seconds_to_oom is None else told.seconds_to_oom.likely
    return now.seconds_to_oom.likely < before_s / 2


def put_off(told: Incident, now: Incident, *, within_s: float, ahead_s: float) -> bool:
    """Whether out-of-memory will come much later than reported. It was reported as likely within ``within_s`` from now,
    or is past, and is now more than twice as far away or out of sight. One that is now more than twice as far away as
    it was reported counts ``ahead_s`` earlier."""
    if told.seconds_to_oom is None:
        return False
    gone_s = now.updated_unix_s - told.updated_unix_s
    left_s = told.seconds_to_oom.likely - gone_s
    now_s = math.inf if now.seconds_to_oom is None else now.seconds_to_oom.likely
    if now_s > 2 * told.seconds_to_oom.likely and told.seconds_to_oom.low - gone_s <= within_s + ahead_s:
        return True
    return left_s <= within_s and now_s > 2 * max(left_s, 0.0)


def _with_places(findings: Sequence[RankFinding], cause: IncidentCause) -> Sequence[RankFinding]:
    if cause is IncidentCause.OUT_OF_MEMORY and len(findings) > MAX_ERRORS:
        return (*findings[: MAX_ERRORS // 2], *findings[-(MAX_ERRORS // 2) :])
    return findings[:MAX_CONCERNED]


def _figures(incident: Incident) -> tuple[Optional[float], ...]:
    return (
        None if incident.bytes_per_step is None else incident.bytes_per_step.likely,
        None if incident.seconds_to_oom is None else incident.seconds_to_oom.likely,
        incident.grown_bytes,
        sum(finding.reserved_bytes for finding in incident.findings),
    )


def _first_bad_step(cause: IncidentCause, finding: RankFinding) -> Optional[int]:
    if cause is IncidentCause.OUT_OF_MEMORY:
        return None if finding.oom is None else finding.oom.step
    return finding.verdict.onset_step if cause.is_growth else None


def _largest(bands: Sequence[Optional[Band]]) -> Optional[Band]:
    return max((band for band in bands if band is not None), key=lambda band: band.likely, default=None)


def _soonest(bands: Sequence[Optional[Band]]) -> Optional[Band]:
    return min((band for band in bands if band is not None), key=lambda band: band.likely, default=None)
