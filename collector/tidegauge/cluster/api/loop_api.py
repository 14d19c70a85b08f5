"""Pages of the HTTP API on incidents, decisions and the policy, and figures for scrapes. Read only, bounded."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tidegauge.cluster.api.http_api import NotFoundError, Request, Route, UnavailableError, json_route
from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.cluster.api.usage_figures import UsageFigures
from tidegauge.cluster.views import NodeHealth, NodeStatus
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import MAX_FINDINGS, ChangeKind, Incident, IncidentChange
from tidegauge.core.incidents.actions import AuditError, DecisionRecord, JobFacts, LoopStatus
from tidegauge.core.incidents.acts import PersonAct, acknowledgement
from tidegauge.core.incidents.loop_figures import JobFigures, LoopFigures, OpenIncident, SlurmLabels
from tidegauge.core.incidents.wording import change_in_words
from tidegauge.core.views import JobView
from tidegauge.core.wire import Wire, to_json, to_wire
from tidegauge.http.access import EVERYBODY, Viewer
from tidegauge.http.server import Response
from tidegauge_exporter.messages.values import Story

FEW, MANY = 200, 1000
"""Incidents, decisions or lines of one history in an answer: by default, and at most."""
HISTORY = {"most": MANY - FEW, "most_figures": FEW}
"""Lines of one history, the newest: those that only tell new figures do not take the place of the others."""
MAX_MARKS = 5000
"""Incidents whose marks are in one answer: of 60 bytes each. Beyond that, some that are open would seem to be gone."""
MAX_CHANGES = 5000
"""Changes of all incidents in one answer; of more, those that only tell new figures are left out first."""
MAX_CHANGES_READ = 4 * MAX_CHANGES
"""Changes that are read for one answer, the newest: a database of months may hold more than fits into memory."""
FINDINGS_IN_ALL = 30_000
"""Ranks with their figures over all changes that are read for one answer: 20 to 30 MB."""
UNTOLD = "(admins see why)"
POLICY_FILE_UNTOLD = "(a file; admins see which)"
"""In the place of words that are for those who see all jobs."""
LAST_ACTIONS_S = 86_400.0
"""How far back a scrape looks for what was last done to a job."""


def loop_routes(store: Callable[[], LoopStore], status: Callable[[], LoopStatus]) -> dict[str, Route]:
    """Routes by path. ``store`` raises ``AuditError`` while the database is not open."""
    pages = _Pages(store)
    return {
        "/api/v1/incidents": store_route(pages.incidents),
        "/api/v1/incident": store_route(pages.incident),
        "/api/v1/incident-marks": store_route(pages.marks),
        "/api/v1/incident-changes": store_route(pages.changes),
        "/api/v1/decisions": store_route(pages.decisions),
        "/api/v1/policy": json_route(lambda request: status_for(request.viewer, status())),
    }


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns an ``AuditError`` of the block into ``UnavailableError``."""
    try:
        yield
    except AuditError as error:
        raise UnavailableError(f"the database of incidents and actions is unavailable: {error}") from error


def store_route(page: Callable[[Request], object]) -> Route:
    """A route that answers with JSON of what ``page`` returns, which may read the database while it is written."""

    def answer(request: Request) -> Response:
        with store_errors():
            return Response(to_json(page(request)))

    return answer


def status_for(viewer: Viewer, status: LoopStatus) -> LoopStatus:
    """The status as a viewer may see it. Reasons name other people, their jobs, files and hosts: viewers who do not see
    all jobs learn that there is one, not which."""
    if viewer.sees_all:
        return status
    return replace(
        status,
        policy_file=None if status.policy_file is None else POLICY_FILE_UNTOLD,
        policy_problem=_untold(status.policy_problem),
        paused=_untold(status.paused),
        breaker=_untold(status.breaker),
        user_breakers=(UNTOLD,) * len(status.user_breakers),
        store_problem=_untold(status.store_problem),
        records_problem=_untold(status.records_problem),
        scheduler_problems=dict.fromkeys(status.scheduler_problems, UNTOLD),
        under_way=(),
        telling={who: how if how == "ok" else UNTOLD for who, how in status.telling.items()},
    )


def _untold(words: str | None) -> str | None:
    return None if words is None else UNTOLD


def incident_story(store: Callable[[], LoopStore], number: int, *, viewer: Viewer = EVERYBODY) -> Story:
    """The story of incident ``number``. Raises ``NotFoundError``, ``UnavailableError``."""
    with store_errors():
        tables = store()
        found = visible_incident(tables, number, viewer)
        history = tuple(tables.incidents.lines(number, **HISTORY))
        acts = tuple(tables.acts.of_incident(number))
        return Story(found, history, tuple(tables.audit.records_of(number)), acts=acts)


def visible_incident(tables: LoopStore, number: int, viewer: Viewer) -> Incident:
    """The incident. Raises ``NotFoundError``, also for another user's, and ``AuditError``."""
    found = tables.incidents.incident(number)
    if found is None or not viewer.sees(found.user_name, found.key.job.job_id):
        raise NotFoundError(f"no incident {number}; `tidegauge incidents --all` lists all incidents")
    return found


def loop_figures(
    store: Callable[[], LoopStore],
    status: LoopStatus,
    *,
    slurm: Mapping[JobKey, SlurmLabels],
    jobs: Iterable[JobView],
    nodes: Iterable[NodeStatus],
    now_unix_s: float,
    usage: Callable[[], UsageFigures] = dict,
) -> LoopFigures:
    """Figures of incidents and actions for one scrape, of these jobs and nodes. Never raises ``AuditError``."""
    figures = LoopFigures(
        store_works=False,
        acting=status.mode == "act",
        paused=status.paused is not None,
        breaker_open=status.breaker is not None,
        user_breakers_open=len(status.user_breakers),
        slurm=slurm,
        nodes={health.value: 0 for health in NodeHealth} | Counter(node.health.value for node in nodes),
    )
    keys = [job.key for job in jobs if job.ranks]
    try:
        tables = store()
        open_now = tables.incidents.open_figures(keys)
        return replace(
            figures,
            store_works=True,
            usage=usage(),
            incidents_total=tables.incidents.totals(),
            incidents_open=Counter((one.cause, one.severity) for _, one in open_now),
            actions_total=tables.audit.action_totals(),
            of_jobs=_of_jobs(keys, open_now, tables.audit.last_finished(keys, since_s=now_unix_s - LAST_ACTIONS_S)),
        )
    except AuditError:
        return figures


def _of_jobs(
    jobs: Iterable[JobKey],
    open_now: Iterable[tuple[JobKey | None, OpenIncident]],
    last_actions: Mapping[tuple[JobKey, str, str], float],
) -> dict[JobKey, JobFigures]:
    incidents: dict[JobKey, list[OpenIncident]] = defaultdict(list)
    for about, one in open_now:
        if about is not None:
            incidents[about].append(one)
    actions: dict[JobKey, dict[tuple[str, str], float]] = defaultdict(dict)
    for (job, action, outcome), finished_s in last_actions.items():
        actions[job][action, outcome] = finished_s
    return {
        job: JobFigures(tuple(incidents.get(job, ())), actions.get(job, {}))
        for job in jobs
        if job in incidents or job in actions
    }


class _Pages:
    def __init__(self, store: Callable[[], LoopStore]) -> None:
        self._store = store

    def incidents(self, request: Request) -> object:
        closed_too = request.number("all", default=0, most=1) == 1
        limit = request.number("limit", default=FEW, most=MANY)
        since_s = float(request.number("since", default=0))
        store = self._store()
        found = store.incidents.each(
            open_only=not closed_too, since_s=since_s, limit=limit, user_name=request.viewer.only
        )
        lines = (
            incident_line(one, store.audit.records_of(one.number), store.acts.of_incident(one.number)) for one in found
        )
        return {"incidents": lines, "seen_as": request.viewer.seen_as}

    def marks(self, request: Request) -> object:
        """The marks that a follower reads every few seconds, to know which incidents it has to read again."""
        since_s = float(request.number("since", default=0))
        found = self._store().incidents.marks(since_s=since_s, limit=MAX_MARKS, user_name=request.viewer.only)
        return {"marks": found}

    def incident(self, request: Request) -> object:
        number, store = request.number("number", default=0), self._store()
        return {
            "incident": visible_incident(store, number, request.viewer),
            "history": map(_told, store.incidents.lines(number, **HISTORY)),
            "decisions": map(_short_record, store.audit.records_of(number)),
            "answers": store.grades.answers(number),
            "acts": store.acts.of_incident(number),
            "left_out": store.incidents.count_left_out(number, **HISTORY),
        }

    def decisions(self, request: Request) -> object:
        limit = request.number("limit", default=FEW, most=MANY)
        since_s, audit = float(request.number("since", default=0)), self._store().audit
        whose = request.viewer.only
        shown = audit.each(since_s=since_s, limit=limit, user_name=whose)
        left_out = max(audit.count(since_s=since_s, user_name=whose) - limit, 0)
        acts = self._store().acts.latest(since_s=since_s, limit=limit, user_name=whose)
        return {"decisions": map(_short_record, shown), "left_out": left_out, "acts": acts}

    def changes(self, request: Request) -> object:
        store = self._store()
        changes = store.incidents.changes(
            since_s=float(request.number("since", default=0)), limit=MAX_CHANGES_READ, user_name=request.viewer.only,
            most_findings=FINDINGS_IN_ALL,
        )  # fmt: skip
        shown = _thinned(changes, MAX_CHANGES)
        numbers = {change.incident.number for change in shown}
        facts = {number: facts for number in numbers if (facts := _facts(store.audit.records_of(number)))}
        return {"changes": shown, "facts": facts, "left_out": len(changes) - len(shown)}


def incident_line(incident: Incident, records: Sequence[DecisionRecord], acts: Sequence[PersonAct]) -> Wire:
    """An incident in a list: with the numbers of all its ranks, the last decision about it, and who looks at it."""
    by = acknowledgement(acts)
    last = _short_record(records[-1]) if records else None
    raw = to_wire(incident.shortened(MAX_FINDINGS))
    assert isinstance(raw, dict), "an incident is an object"
    return {**raw, "ranks": list(incident.ranks), "last_decision": to_wire(last),
            "acknowledged_by": None if by is None else by.by}  # fmt: skip


def _told(change: IncidentChange) -> Wire:
    return {
        "kind": change.kind.value,
        "at_unix_s": change.at_unix_s,
        "text": change_in_words(change),
        "incident": to_wire(change.incident),
    }


def _thinned(changes: Sequence[IncidentChange], most: int) -> Sequence[IncidentChange]:
    """At most ``most`` changes: every n-th of those that only update figures, then the newest."""
    figures = sum(change.kind is ChangeKind.UPDATED for change in changes)
    room = max(most - (len(changes) - figures), 0)
    keep_every = -(-figures // room) if room else figures + 1
    places = itertools.count(1)
    kept = [c for c in changes if c.kind is not ChangeKind.UPDATED or next(places) % keep_every == 0]
    return kept[max(len(kept) - most, 0) :]


def _facts(records: Sequence[DecisionRecord]) -> JobFacts | None:
    """The facts of the first decision on an incident, preferably one with facts from the scheduler."""
    known = [record.decision.facts for record in records]
    return next((facts for facts in known if facts.scheduler_facts is not None), known[0] if known else None)


def _short_record(record: DecisionRecord) -> DecisionRecord:
    return replace(record, decision=replace(record.decision, incident=record.decision.incident.shortened(MAX_FINDINGS)))
