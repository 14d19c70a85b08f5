"""The state machine of one incident: pure functions from its state and an observation to its next state.

============  ==================================================================  ============  ============
it is         what is seen                                                        it becomes    told as
============  ==================================================================  ============  ============
--            a rank does it for sure                                             open          OPENED
open          it is done with more severity                                       open          ESCALATED
open          more ranks do it                                                    open          SPREAD
open          it has been done with less severity for ``ease_after_s``            open          EASED
open          its figures have moved; it became stale, or is not any more         open          UPDATED
any           its line, holder or cause has become known, or better known         the same      EVIDENCE
open          nobody does it (an event: for ``ease_after_s``)                     recovering    RECOVERING
recovering    a rank does it for sure again                                       open          REOPENED
recovering    all its ranks are heard and quiet for ``recover_after_s`` or more   closed        CLOSED
not closed    all ranks of the job have ended, or a later attempt runs            closed        CLOSED
not closed    nobody has heard of the job for ``absent_grace_s``                  closed        CLOSED
not closed    all its ranks have ended for ``culprits_ended_after_s``             closed        CLOSED
not closed    ranks that it is about are stale or not heard of                    the same      --
============  ==================================================================  ============  ============

What has ended by an out-of-memory error is closed by that: ``oom_ends``.

Only what is watched counts: a rank that is not heard of proves nothing, neither growth nor its end. While one is
missing, all waiting begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Optional

from tidegauge.core.incidents import (
    ChangeKind,
    Closure,
    Incident,
    IncidentCause,
    IncidentChange,
    IncidentKey,
    IncidentState,
    RankFinding,
)
from tidegauge.core.incidents.figures import halved, moved, put_off, with_findings
from tidegauge.core.incidents.observations import Observation, severity_of
from tidegauge.core.verdicts import Severity
from tidegauge.core.views import JobView


@dataclass(frozen=True)
class IncidentRules:
    """Thresholds and times for opening, changing and closing incidents."""

    min_severity: Severity = Severity.CRITICAL
    """Growth of a rank opens or joins an incident from this severity on: once it is dangerous. One that is in it stays
    until it is quiet."""
    recover_after_s: float = 120.0
    """Quiet for so long is recovered. A detector withdraws an alarm only when growth ended, so minutes are enough."""
    recover_at_most_s: float = 1200.0
    """Every time that it came back asks for ``recover_after_s`` more, up to this."""
    ease_after_s: float = 120.0
    """Severity falls after so long at less, but rises at once. Also how long an incident without a detector behind it
    (out of memory, share exceeded) stays open after it was last seen."""
    update_every_s: float = 60.0
    """Figures are told no more often, unless the time to out-of-memory was halved."""
    update_age_share: float = 0.05
    """… and, as the incident grows older, no more often than once in this part of its age: figures that swing for a
    week are 150 lines, not ten thousand."""
    put_off_ahead_s: float = 3600.0
    """Out-of-memory that was told to come so soon after the next figures, and is put off, is told before them: a
    policy acts some time ahead of it."""
    update_share: float = 0.1
    """Figures that moved by less than this share of themselves are not told: a history grows with the logarithm of
    what is lost, not with time."""
    absent_grace_s: float = 900.0
    """A job that nobody has heard of for so long has ended: longer than a node may be out of reach, which goes on
    judging meanwhile, and than a restart of coordinator and agents takes."""
    culprits_ended_after_s: float = 30.0
    """An incident whose ranks have all ended stays open for so long: most jobs end with one of their ranks, and a rank
    that is started again may go on where it was."""
    longest_gap_s: float = 30.0
    """A longer time between two looks was not watched: whoever was quiet before and after may not have been between."""
    share_tolerance: float = 0.05
    """More than a job's share of a GPU by this part of the share is too much."""
    remember_ooms_s: float = 86400.0
    """An out-of-memory error of a job that was not heard of for so long may be taken for a new one."""
    evidence_every_s: float = 60.0
    """It is told no more often that evidence came: a job may give as much of it as it likes."""
    late_evidence_s: float = 900.0
    """For so long after its end an incident takes evidence: what a rank laid down before it died is read, compared and
    sent by its node some seconds to minutes later."""
    most_per_tenant: int = 100
    """Incidents of one user that are open or were opened within the last hour; more are not opened. Jobs cost nothing
    to make up, and each incident takes place in the database for months. Nobody reads more of one user's. What is told
    as one (``Incident.told_as``) counts once."""
    most_with_replicas_per_tenant: int = 1000
    """The same, where each counts: a server may have pods without end."""

    def update_after_s(self, age_s: float) -> float:
        """The minimum time between two reports of figures of an incident of this age."""
        return max(self.update_every_s, age_s * self.update_age_share)


DEFAULT_RULES = IncidentRules()


@dataclass
class Announced:
    """The changes of an incident that were announced, and when."""

    last: IncidentChange
    ranks: IncidentChange
    """The last line that was about its ranks: they have spread if there are more than then, whatever was told since."""
    put_off_s: float = float("-inf")
    """When it was last told that out-of-memory is put off."""
    stale_s: float = float("-inf")
    """When it was last told that it had become stale or unheard, or was not any more."""

    def take(self, change: IncidentChange, rules: IncidentRules) -> None:
        """Record a change as announced."""
        before, now = self.last.incident, change.incident
        if _hearing(now) != _hearing(before):
            self.stale_s = change.at_unix_s
        if is_put_off(self, now, change.at_unix_s, rules):
            self.put_off_s = change.at_unix_s
        if change.kind not in (ChangeKind.UPDATED, ChangeKind.EVIDENCE):
            self.ranks = change
        self.last = change


def is_put_off(told: Announced, now: Incident, now_s: float, rules: IncidentRules) -> bool:
    """Whether out-of-memory was announced for a time that is near, and will come later."""
    pace_s = rules.update_after_s(now_s - now.opened_unix_s)
    return put_off(told.last.incident, now, within_s=pace_s, ahead_s=rules.put_off_ahead_s)


def is_stale_news(told: Announced, now: Incident, now_s: float, rules: IncidentRules) -> bool:
    """Whether to announce that the incident became stale or unheard, or is so no more: the first time within a minute,
    and no more often than figures."""
    if now.state is not IncidentState.OPEN or _hearing(now) == _hearing(told.last.incident):
        return False
    is_due = now_s - told.last.at_unix_s >= rules.update_every_s
    return is_due and now_s - told.stale_s >= rules.update_after_s(now_s - now.opened_unix_s)


def _hearing(incident: Incident) -> tuple[bool, bool]:
    return incident.stale, incident.unheard


def kind_of_news(told: Announced, now: Incident) -> ChangeKind:
    """The kind of change to announce with new figures: SPREAD if ranks joined."""
    return ChangeKind.SPREAD if _has_joined(told, now) else ChangeKind.UPDATED


class IncidentStep(NamedTuple):
    """An incident after one look, and the kind of change to announce, if any."""

    incident: Incident
    kind: Optional[ChangeKind] = None


def open_incident(number: int, key: IncidentKey, job: JobView, observation: Observation, now_s: float) -> IncidentStep:
    """A new one, of the ranks that do it for sure."""
    severity = _severity(key.cause, observation.sure)
    incident = Incident(
        number=number,
        key=key,
        state=IncidentState.OPEN,
        severity=severity,
        user_name=job.user_name,
        job_name=job.job_name,
        scheduler=job.scheduler,
        world_size=job.world_size,
        findings=(),
        common=False,
        opened_unix_s=now_s,
        updated_unix_s=now_s,
        worst_severity=severity,
        stale=bool(job.stale),
        explanation=observation.explanation,
    )
    return IncidentStep(with_findings(incident, observation.sure, job, now_s=now_s), ChangeKind.OPENED)


def step_while_open(
    incident: Incident, told: Announced, job: JobView, observation: Observation, now_s: float, rules: IncidentRules
) -> IncidentStep:
    """The next step of an open incident. ``observation.unheard`` includes ranks that are missing."""
    cause, concerned = incident.key.cause, frozenset(incident.ranks)
    shown = (*observation.sure, *(one for one in observation.doubtful if one.rank in concerned))
    if not shown:
        return _step_unseen(incident, bool(concerned & observation.unheard), now_s, rules)
    findings = _with_earlier(incident, shown, observation.unheard)
    after = with_findings(incident, findings, job, now_s=now_s, failed=observation.failed)
    after = replace(after, explanation=observation.explanation or incident.explanation)
    seen = _severity(cause, after.findings)
    if seen.level > incident.severity.level:
        return IncidentStep(_with_severity(after, seen), ChangeKind.ESCALATED)
    since_s = None
    if seen.level < incident.severity.level:
        since_s = now_s if incident.easing_since_unix_s is None else incident.easing_since_unix_s
    after = replace(after, easing_since_unix_s=since_s)
    if _has_spread(told, after, now_s, rules):
        return IncidentStep(after, ChangeKind.SPREAD)
    if since_s is not None and now_s - since_s >= rules.ease_after_s:
        return IncidentStep(_with_severity(after, seen), ChangeKind.EASED)
    return IncidentStep(after, kind_of_news(told, after) if _has_news(told, after, now_s, rules) else None)


def step_while_recovering(
    incident: Incident, job: JobView, observation: Observation, now_s: float, rules: IncidentRules
) -> IncidentStep:
    """It opens again on what would open it, and is over when all its ranks were quiet for long enough."""
    if observation.sure:
        findings = _with_earlier(incident, observation.sure, frozenset())
        back = replace(
            with_findings(incident, findings, job, now_s=now_s, failed=observation.failed),
            state=IncidentState.OPEN,
            recovering_since_unix_s=None,
            flaps=incident.flaps + 1,
            explanation=observation.explanation or incident.explanation,
        )
        # Not the severity of before: what is acted on must be what is seen now.
        return IncidentStep(_with_severity(back, _severity(incident.key.cause, observation.sure)), ChangeKind.REOPENED)
    since_s = incident.recovering_since_unix_s
    if since_s is None or frozenset(incident.ranks) & (observation.unheard | observation.uneasy):
        return IncidentStep(replace(incident, recovering_since_unix_s=now_s))
    wanted_s = min(rules.recover_after_s * (1 + incident.flaps), rules.recover_at_most_s)
    return close_incident(incident, Closure.RECOVERED, now_s) if now_s - since_s >= wanted_s else IncidentStep(incident)


def close_incident(incident: Incident, closure: Closure, now_s: float) -> IncidentStep:
    """The end; its findings stay as they were. Growth that a rank has run out of memory by ended by that."""
    if incident.ran_out is not None and closure is not Closure.RECOVERED:
        incident = replace(incident, ran_out=incident.ran_out._replace(ended_job=closure is Closure.JOB_ENDED))
        closure = Closure.RAN_OUT_OF_MEMORY if incident.key.cause.is_growth else closure
    incident = replace(incident, stale=False, unheard=False)
    closed = replace(incident, state=IncidentState.CLOSED, closed_unix_s=now_s, closure=closure)
    return IncidentStep(closed, ChangeKind.CLOSED)


def wait_anew(incident: Incident, now_s: float) -> Incident:
    """Something was not watched: whatever it waits for, to ease or to have recovered, begins now."""
    if incident.state is IncidentState.RECOVERING:
        return replace(incident, recovering_since_unix_s=now_s)
    return replace(incident, easing_since_unix_s=None)


def _step_unseen(incident: Incident, is_unheard: bool, now_s: float, rules: IncidentRules) -> IncidentStep:
    if is_unheard:
        return IncidentStep(wait_anew(incident, now_s))
    since_s = now_s if incident.easing_since_unix_s is None else incident.easing_since_unix_s
    # The detector has waited already before it withdrew its verdict; nobody has for an event.
    if not incident.key.cause.is_growth and now_s - since_s < rules.ease_after_s:
        return IncidentStep(replace(incident, easing_since_unix_s=since_s))
    recovering = replace(
        incident, state=IncidentState.RECOVERING, recovering_since_unix_s=now_s, easing_since_unix_s=None
    )
    return IncidentStep(recovering, ChangeKind.RECOVERING)


def _with_earlier(incident: Incident, shown: Sequence[RankFinding], unheard: frozenset[int]) -> list[RankFinding]:
    """Findings of ranks that cannot be asked stay as they were, and so does an out-of-memory error that was told."""
    now = {finding.rank for finding in shown}
    is_event = incident.key.cause is IncidentCause.OUT_OF_MEMORY
    earlier = [one for one in incident.findings if one.rank not in now and (is_event or one.rank in unheard)]
    return [*earlier, *shown] if is_event else [*shown, *earlier]


def _severity(cause: IncidentCause, findings: Sequence[RankFinding]) -> Severity:
    return max((severity_of(cause, finding) for finding in findings), key=lambda severity: severity.level)


def _with_severity(incident: Incident, severity: Severity) -> Incident:
    worst = incident.worst_severity or severity
    return replace(
        incident,
        severity=severity,
        worst_severity=max(worst, severity, key=lambda one: one.level),
        easing_since_unix_s=None,
    )


def _has_joined(told: Announced, now: Incident) -> bool:
    return not frozenset(now.ranks) <= frozenset(told.ranks.incident.ranks)


def _has_spread(told: Announced, now: Incident, now_s: float, rules: IncidentRules) -> bool:
    """Told at every doubling, and once a minute where they became a tenth more: ranks that do alike begin within a
    minute. Else no more often than figures."""
    if not _has_joined(told, now):
        return False
    before, count = (len(one.findings) + one.ranks_left_out for one in (told.ranks.incident, now))
    silent_s = now_s - told.ranks.at_unix_s
    if silent_s >= rules.update_every_s:
        is_due = silent_s >= rules.update_after_s(now_s - now.opened_unix_s)
        return is_due or count - before >= before * rules.update_share
    return count >= 2 * before


def _has_news(told: Announced, now: Incident, now_s: float, rules: IncidentRules) -> bool:
    """Whether to report its figures: at once when the time left halved, once per interval when moved or put off."""
    last, silent_s = told.last.incident, now_s - told.last.at_unix_s
    pace_s = rules.update_after_s(now_s - now.opened_unix_s)
    if halved(last, now) or (silent_s >= pace_s and moved(last, now, share=rules.update_share)):
        return True
    may_put_off = silent_s >= rules.update_every_s and now_s - told.put_off_s >= pace_s
    return may_put_off and is_put_off(told, now, now_s, rules)
