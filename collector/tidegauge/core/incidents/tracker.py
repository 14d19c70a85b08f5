"""`IncidentTracker`: turns the present state of all jobs into changes of their incidents. No clock, no I/O.

At most one incident per group of ranks, attempt and cause is open at a time; ``core.incidents.steps`` says what becomes
of it. Here is what surrounds that: which jobs are heard of, which have ended, and time. Time never runs backwards: an
earlier ``now_s`` is taken for the latest one. After a gap between two looks (a suspended host, a clock that was set)
all waiting begins anew, so that nothing closes for want of watching.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, Optional

from tidegauge.core.ids import DeviceUuid, JobKey
from tidegauge.core.incidents import (
    ChangeKind,
    Closure,
    Incident,
    IncidentCause,
    IncidentChange,
    IncidentKey,
    IncidentState,
    ToldAs,
)
from tidegauge.core.incidents.evidence import EvidenceNews, is_news, with_bounds, with_evidence
from tidegauge.core.incidents.known_errors import OomMemory
from tidegauge.core.incidents.observations import (
    ExplainOom,
    Observation,
    ShareUse,
    growing_causes,
    see_growth,
    see_ooms,
    see_share,
    share_uses,
)
from tidegauge.core.incidents.oom_ends import growth_of, see_end
from tidegauge.core.incidents.steps import (
    DEFAULT_RULES,
    Announced,
    IncidentRules,
    IncidentStep,
    close_incident,
    is_stale_news,
    kind_of_news,
    open_incident,
    step_while_open,
    step_while_recovering,
    wait_anew,
)
from tidegauge.core.jobs.rank_groups import launch_in_replica
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge.core.views import JobView

CROWD_S = 3600.0
"""For how long an incident that was opened counts against its user, also when it is over."""


@dataclass
class _Followed:
    """An incident that is not closed, and the state kept for it between looks."""

    incident: Incident
    told: Announced
    missing_since_s: Optional[float] = None
    """Since when its job, or a rank that it is about, has not been heard of."""
    ended: frozenset[int] = frozenset()
    """Ranks that were seen to have ended: nobody waits for them."""
    culprits_ended_since_s: Optional[float] = None
    """Since when every rank that it is about has ended, and no other does it, while the job goes on."""
    seen: Optional[tuple[JobView, Observation]] = None
    """What was last looked at, and what that showed: of most jobs nothing is heard between two looks."""
    evidence_told_s: float = float("-inf")
    """When it was last told that evidence came."""


class _Story(NamedTuple):
    """What incidents of a server's replicas have in common that are told as one."""

    key: IncidentKey
    """Of the whole job."""
    kind: str
    """``Replicas.kind``: servers of two kinds may have one name."""
    launch: str
    """``launch_in_replica``: launches within a replica are told apart."""


class IncidentTracker:
    """Tracks all incidents. Not thread-safe: one thread calls ``update``, about once a second."""

    def __init__(
        self,
        open_incidents: Iterable[Incident],
        *,
        next_number: int,
        rules: IncidentRules = DEFAULT_RULES,
        explain_oom: Optional[ExplainOom] = None,
        closed: Iterable[Incident] = (),
    ) -> None:
        """Take up where another tracker ended. ``closed``: incidents of the last hours that are over, so that their
        out-of-memory errors are not taken for new ones while the ranks are still shown."""
        self._next_number = next_number
        self._rules = rules
        self._explain_oom = explain_oom
        self._followed = {incident.key.as_seen: _taken_up(incident) for incident in open_incidents}
        closed = tuple(closed)
        self._ooms = OomMemory((*closed, *self.incidents), keep_s=rules.remember_ooms_s)
        self._opened_s: dict[Tenant, dict[int, dict[int, float]]] = {}
        """When each one's incidents were opened, by the number that they are told by and their own: those of the last
        hour and those not closed."""
        for incident in (*closed, *self.incidents):
            self._count(incident)
        ended = sorted((one for one in closed if not one.is_open), key=lambda incident: incident.number)
        self._over = {incident.key.as_seen: _taken_up(incident) for incident in ended}
        """Those that ended a moment ago: a job that died gives its evidence afterwards."""
        self._stories: dict[_Story, ToldAs] = {}
        """What incidents of servers' replicas are told as, at this look."""
        self._now_s: Optional[float] = None

    @property
    def next_number(self) -> int:
        """The number that the next incident gets."""
        return self._next_number

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The incidents that are not closed, by number, with the latest figures (``update`` reports less often)."""
        return tuple(sorted((one.incident for one in self._followed.values()), key=lambda incident: incident.number))

    @property
    def crowded(self) -> Set[Tenant]:
        """Tenants with so many incidents that no more of theirs are opened for now."""
        return {who for who in self._opened_s if not self._has_room(who)}

    def update(
        self,
        jobs: Iterable[JobView],
        *,
        now_s: float,
        gpu_total_bytes: Optional[Mapping[DeviceUuid, int]] = None,
        evidence: Optional[Mapping[JobKey, Sequence[EvidenceNews]]] = None,
    ) -> tuple[IncidentChange, ...]:
        """Look at all jobs. ``gpu_total_bytes``: what a share of a GPU is a share of, where it is known. ``evidence``:
        all that is kept of these jobs.

        An incident changes at most once a look.
        """
        now_s, evidence = self._pass_time(now_s), evidence or {}
        known = reversed(self.incidents)
        self._stories = {
            _told_together(one.key, one.group_name, one.replicas): one.told_as for one in known if one.told_as
        }
        self._forget_opened(now_s)
        views = {job.key: job for job in jobs if job.ranks}
        uses = share_uses(views.values(), gpu_total_bytes or {})
        attempts = _newest_attempts(views)
        followed_jobs = {key.job for key in self._followed}
        evidence = {job: with_bounds(news, views[job]) if job in views else news for job, news in evidence.items()}
        reporting = frozenset() if followed_jobs <= views.keys() else _reporting(views.values())
        changes: dict[IncidentKey, IncidentChange] = {}
        for job, view in views.items():
            if not (view.growing_signals or view.has_oom or job in uses or job in followed_jobs):
                continue  # most jobs have nothing to show
            self._see_ends(job, view)
            for key in self._keys_to_look_at(job, view, uses):
                step = self._look(key, view, self._see(key, view, uses.get(job, ())), now_s)
                if step is not None and step.kind is not None:
                    opens = step.kind is ChangeKind.OPENED  # with what came while it was only suspected
                    incident = with_evidence(step.incident, evidence.get(job, ())) if opens else step.incident
                    changes[key] = self._change(incident, step.kind, now_s)
        for key in [key for key in self._followed if key not in changes]:
            followed = self._followed[key]
            if self._takes_evidence(followed, evidence.get(key.job, ()), now_s):
                changes[key] = self._change(followed.incident, ChangeKind.EVIDENCE, now_s)
            elif self._has_ended(followed, views.get(key.job), attempts, reporting, now_s):
                followed.incident = self._with_error(followed.incident)
                goes_on = _goes_on(followed.incident, views)
                closure = Closure.CULPRITS_ENDED if goes_on else Closure.JOB_ENDED
                closed = close_incident(followed.incident, closure, now_s).incident
                changes[key] = self._change(closed, ChangeKind.CLOSED, now_s)
            elif is_stale_news(followed.told, followed.incident, now_s, self._rules):
                changes[key] = self._change(followed.incident, kind_of_news(followed.told, followed.incident), now_s)
        self._ooms.pass_time(views.keys(), now_s)
        return (*changes.values(), *self._late_evidence(evidence, now_s))

    def _pass_time(self, now_s: float) -> float:
        if self._now_s is None:
            self._now_s = max([now_s, *(_newest_s(incident) for incident in self.incidents)])
            for followed in self._followed.values():
                # A moment to be heard of again, before it is told that nobody was.
                followed.told.last = followed.told.last._replace(at_unix_s=self._now_s)
        gap_s, self._now_s = now_s - self._now_s, max(now_s, self._now_s)
        if gap_s > self._rules.longest_gap_s:
            for followed in self._followed.values():
                followed.incident = wait_anew(followed.incident, self._now_s)
                followed.missing_since_s = followed.culprits_ended_since_s = None
        return self._now_s

    def _keys_to_look_at(
        self, job: JobKey, view: JobView, uses: Mapping[JobKey, tuple[ShareUse, ...]]
    ) -> list[IncidentKey]:
        """Keys of the causes that an incident or a rank shows, in the order of ``IncidentCause``."""
        causes = set(growing_causes(view))
        if view.has_oom:
            causes.add(IncidentCause.OUT_OF_MEMORY)
        if job in uses:
            causes.add(IncidentCause.SHARE_EXCEEDED)
        keys = [IncidentKey(job, cause) for cause in IncidentCause]
        return [key for key in keys if key.cause in causes or key in self._followed]

    def _see(self, key: IncidentKey, view: JobView, uses: Iterable[ShareUse]) -> Observation:
        if key.cause is IncidentCause.OUT_OF_MEMORY:
            return see_ooms(view, self._ooms.of(key.job), self._explain_oom)
        if key.cause is IncidentCause.SHARE_EXCEEDED:
            return see_share(view, uses, self._rules.share_tolerance)
        followed = self._followed.get(key)
        if followed is not None and followed.seen is not None and followed.seen[0] is view:
            return followed.seen[1]
        observation = see_growth(view, key.cause, self._rules.min_severity)
        if followed is not None:
            followed.seen = view, observation
        return observation

    def _look(self, key: IncidentKey, view: JobView, observation: Observation, now_s: float) -> Optional[IncidentStep]:
        followed = self._followed.get(key)
        if followed is None:
            return self._opened(key, view, observation, now_s) if observation.sure else None
        if not observation.sure and not any(rank.alive for rank in view.ranks):
            return None  # nothing can be seen of it any more: it ends, or is waited for
        self._learn(key, observation)
        missing = self._missing(followed, view, now_s)
        incident = replace(followed.incident, stale=bool(view.stale or missing), unheard=False)
        incident = self._with_error(self._with_growth(incident, view))
        if self._culprits_ended(followed, view, observation, now_s):
            closed = close_incident(incident, Closure.CULPRITS_ENDED, now_s)
            followed.incident = closed.incident
            return closed
        observation = observation._replace(unheard=observation.unheard | missing)
        if incident.state is IncidentState.RECOVERING:
            step = step_while_recovering(incident, view, observation, now_s, self._rules)
        else:
            step = step_while_open(incident, followed.told, view, observation, now_s, self._rules)
        followed.incident = step.incident
        return step

    def _opened(
        self, key: IncidentKey, view: JobView, observation: Observation, now_s: float
    ) -> Optional[IncidentStep]:
        """A new incident, if its tenant may have one more."""
        told_as = self._told_as(key, view, now_s)
        if not self._has_room(tenant_of(key.job), told_as):
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        self._learn(key, observation)
        opened = open_incident(number, key, view, observation, now_s)
        incident = replace(self._with_growth(opened.incident, view), told_as=told_as)
        self._count(incident)
        if told_as is not None:
            self._stories[_told_together(key, view.group_name, view.replicas)] = told_as
        return opened._replace(incident=incident)

    def _told_as(self, key: IncidentKey, view: JobView, now_s: float) -> Optional[ToldAs]:
        """What a replica's new incident is told as: with those of the same cause in others of its server."""
        if view.replicas is None:
            return None
        story = _told_together(key, view.group_name, view.replicas)
        return self._stories.get(story) or ToldAs(self._next_number, now_s)

    def _count(self, incident: Incident) -> None:
        """Note a new incident, or one of before, as what it is told as."""
        opened = self._opened_s.setdefault(tenant_of(incident.key.job), {})
        told = opened.setdefault(incident.told_under.number, {})
        told[incident.number] = incident.opened_unix_s

    def _has_room(self, who: Tenant, told_as: Optional[ToldAs] = None) -> bool:
        """Whether one more incident may be opened, which is told as ``told_as``."""
        told, rules = self._opened_s.get(who, {}), self._rules
        if len(told) >= rules.most_per_tenant and (told_as is None or told_as.number not in told):
            return False
        return sum(map(len, told.values())) < rules.most_with_replicas_per_tenant

    def _see_ends(self, job: JobKey, view: JobView) -> None:
        """Take what is seen of the errors that ranks of the job's incidents have ended by."""
        for followed in self._of_job(job):
            if view.has_oom or followed.incident.ran_out is not None:
                followed.incident = replace(followed.incident, ran_out=see_end(followed.incident, view))

    def _with_growth(self, incident: Incident, view: JobView) -> Incident:
        """A new error with the incident of growth that it came in, and whether ranks have ended by it."""
        if incident.key.cause is not IncidentCause.OUT_OF_MEMORY or incident.grew_in is not None:
            return incident
        found = growth_of(incident, (followed.incident for followed in self._of_job(incident.key.job)))
        return replace(incident, grew_in=found, ran_out=see_end(incident, view))

    def _with_error(self, incident: Incident) -> Incident:
        """Growth that a rank has run out of memory by, with the incident of the error and what that explains."""
        key = incident.key._replace(cause=IncidentCause.OUT_OF_MEMORY)
        followed = self._followed.get(key) or self._over.get(key)
        if incident.ran_out is None or followed is None or not incident.key.cause.is_growth:
            return incident
        error = followed.incident
        if all(finding.oom != incident.ran_out.oom for finding in error.findings):
            return incident
        ran_out = incident.ran_out._replace(number=error.number)
        return replace(incident, ran_out=ran_out, explanation=error.explanation)

    def _of_job(self, job: JobKey) -> list[_Followed]:
        keys = (IncidentKey(job, cause) for cause in IncidentCause)
        return [self._followed[key] for key in keys if key in self._followed]

    def _learn(self, key: IncidentKey, observation: Observation) -> None:
        if key.cause is IncidentCause.OUT_OF_MEMORY:
            if key not in self._followed:
                self._ooms.begin(key.job)
            self._ooms.learn(key.job, observation.sure)

    def _forget_opened(self, now_s: float) -> None:
        is_open = {followed.incident.number for followed in self._followed.values()}
        counts: dict[Tenant, dict[int, dict[int, float]]] = {}
        for who, told in self._opened_s.items():
            for told_number, opened_s in told.items():
                kept = {
                    number: at_s for number, at_s in opened_s.items() if number in is_open or now_s - at_s < CROWD_S
                }
                if kept:
                    counts.setdefault(who, {})[told_number] = kept
        self._opened_s = counts

    def _culprits_ended(self, followed: _Followed, view: JobView, observation: Observation, now_s: float) -> bool:
        """Whether the incident's ranks have ended for long enough. A rank whose node does not report may live."""
        concerned = frozenset(followed.incident.ranks)
        shown = {finding.rank for finding in (*observation.sure, *observation.doubtful)}
        over = (
            followed.incident.key.cause.is_growth
            and not observation.sure
            and concerned.isdisjoint(shown)
            and concerned <= followed.ended - frozenset(view.stale)
        )
        if not over:
            followed.culprits_ended_since_s = None
            return False
        if followed.culprits_ended_since_s is None:
            followed.culprits_ended_since_s = now_s
        return now_s - followed.culprits_ended_since_s >= self._rules.culprits_ended_after_s

    def _missing(self, followed: _Followed, view: JobView, now_s: float) -> frozenset[int]:
        """Ranks of the incident that the job's view lacks: not reported yet, after a restart of the coordinator."""
        alive, known = view.living_numbers, view.numbers
        concerned = frozenset(followed.incident.ranks)
        # Of others nobody asks: a job that goes on forever may have as many rank numbers as it likes.
        followed.ended = ((followed.ended | (known - alive)) - alive) & (concerned | known)
        missing = concerned - known - followed.ended
        if not missing:
            followed.missing_since_s = None
        elif self._waited_s(followed, now_s) >= self._rules.absent_grace_s:
            followed.ended |= missing
            return frozenset()
        return missing

    def _has_ended(
        self,
        followed: _Followed,
        view: Optional[JobView],
        attempts: Mapping[tuple[str, int], int],
        reporting: Set[str],
        now_s: float,
    ) -> bool:
        """Whether no process of the job lives. While nobody can tell, the incident stays open and is stale.
        ``reporting``: hosts that report ranks."""
        job = followed.incident.key.job
        if view is not None and view.is_known_to_live:
            return False
        alive = frozenset() if view is None else view.living_numbers
        stale = () if view is None else view.stale
        if attempts.get((job.job_id, job.uid), job.attempt) > job.attempt:
            return True
        if alive:
            return False
        if view is not None and not stale:
            return True
        waited_s = self._waited_s(followed, now_s)
        unheard = view is None and waited_s >= self._rules.culprits_ended_after_s
        followed.incident = wait_anew(replace(followed.incident, stale=True, unheard=unheard), now_s)
        # Pods come and go while a server serves: where a replica's nodes report others, they have none of it any more.
        hosts = {finding.hostname for finding in followed.incident.findings}
        is_past = unheard and followed.incident.told_as is not None and hosts and hosts <= reporting
        return waited_s >= (self._rules.recover_after_s if is_past else self._rules.absent_grace_s)

    def _takes_evidence(self, followed: _Followed, pieces: Sequence[EvidenceNews], now_s: float) -> bool:
        """Whether there is something to tell of it. What only brings newer figures is taken without a word."""
        after = with_evidence(followed.incident, pieces)
        if is_news(followed.incident, after):
            if now_s - followed.evidence_told_s < self._rules.evidence_every_s:
                return False
            followed.incident, followed.evidence_told_s = after, now_s
            return True
        followed.incident = after
        return False

    def _late_evidence(
        self, evidence: Mapping[JobKey, Sequence[EvidenceNews]], now_s: float
    ) -> Iterable[IncidentChange]:
        """Changes of incidents that are over; what comes while another of the same kind is open is the other's."""
        for key, over in list(self._over.items()):
            closed_s = over.incident.closed_unix_s
            if key in self._followed or closed_s is None or now_s - closed_s > self._rules.late_evidence_s:
                del self._over[key]
            elif self._takes_evidence(over, evidence.get(key.job, ()), now_s):
                yield IncidentChange(ChangeKind.EVIDENCE, now_s, over.incident)

    def _waited_s(self, followed: _Followed, now_s: float) -> float:
        """For how long what is missing has been so."""
        followed.missing_since_s = now_s if followed.missing_since_s is None else followed.missing_since_s
        return now_s - followed.missing_since_s

    def _change(self, incident: Incident, kind: ChangeKind, now_s: float) -> IncidentChange:
        change, key = IncidentChange(kind, now_s, incident), incident.key.as_seen
        if kind is ChangeKind.CLOSED:
            self._over[key] = self._followed.pop(key)
            self._over[key].incident = incident
        elif kind is ChangeKind.OPENED:
            self._followed[key] = _Followed(incident, Announced(change, change))
        else:
            self._followed[key].told.take(change, self._rules)
        return change


def _told_together(key: IncidentKey, group_name: str, replicas: Optional[Replicas]) -> _Story:
    kind = "" if replicas is None else replicas.kind
    return _Story(key.as_seen._replace(job=key.job.whole), kind, launch_in_replica(group_name))


def _reporting(views: Iterable[JobView]) -> Set[str]:
    """The hosts that report ranks."""
    return {
        host
        for view in views
        for host, rank in zip(view.rank_hostnames, view.ranks)
        if int(rank.identity.rank) not in view.stale
    }


def _goes_on(incident: Incident, views: Mapping[JobKey, JobView]) -> bool:
    """Of a replica's incident: whether other replicas of the server live."""
    server, group = incident.replicas, incident.key.job
    return server is not None and any(
        job.whole == group.whole
        and job != group
        and view.replicas is not None
        and view.replicas.kind == server.kind
        and bool(view.living_numbers)
        for job, view in views.items()
    )


def _taken_up(incident: Incident) -> _Followed:
    change = IncidentChange(ChangeKind.UPDATED, incident.updated_unix_s, incident)
    return _Followed(incident, Announced(change, change))


def _newest_attempts(views: Mapping[JobKey, JobView]) -> Mapping[tuple[str, int], int]:
    """The latest attempt of each job, by id and owner, of which a process is known to live."""
    newest: dict[tuple[str, int], int] = {}
    for job, view in views.items():
        if view.is_known_to_live:
            newest[job.job_id, job.uid] = max(job.attempt, newest.get((job.job_id, job.uid), job.attempt))
    return newest


def _newest_s(incident: Incident) -> float:
    times = (incident.updated_unix_s, incident.recovering_since_unix_s, incident.easing_since_unix_s)
    return max(time_s for time_s in times if time_s is not None)
