"""Routes of the web UI: its pages by path, and their style sheet and script.

Every page is made of what the viewer may see, as the HTTP API has it. A page without the database says so and shows the
rest: whoever looks while something is broken needs it most.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from tidegauge.cluster.api.http_api import (
    STATUS,
    BadRequestError,
    NotFoundError,
    Request,
    Route,
    UnavailableError,
    html_answer,
    is_browser,
    seen_from,
)
from tidegauge.cluster.api.loop_api import incident_story, status_for, store_errors
from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.cluster.api.memory_api import JobAsked, rank_asked
from tidegauge.cluster.api.overview import MAX_RANKS
from tidegauge.cluster.api.overview_api import KeptEach, OverviewReads
from tidegauge.cluster.api.profile_api import NO_SUCH_JOB, ProfilePages
from tidegauge.cluster.api.record_api import RecordPage, RecordPages
from tidegauge.cluster.api.route_access import seen_by
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.web.history_page import DAY_S, DAYS, ENDS, SPANS, HistoryAsked, history_page
from tidegauge.cluster.web.incidents_page import MAX_INCIDENTS, SHOW, incidents_page
from tidegauge.cluster.web.job_page import MAX_CURVES, MAX_ROWS, JobShown, LiveJob, job_page, job_title
from tidegauge.cluster.web.jobs_page import JobsAsked, JobsShown, jobs_page
from tidegauge.cluster.web.markup import job_link
from tidegauge.cluster.web.nodes_page import nodes_page, tenancies
from tidegauge.cluster.web.policy_page import DAYS as POLICY_DAYS
from tidegauge.cluster.web.policy_page import MAX_DECISIONS, policy_page
from tidegauge.cluster.web.profile_pages import ProfileChoice, choices_of, compare_page, profile_parts
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord, LoopStatus
from tidegauge.core.incidents.wording import capitalised
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.job_records.search import RecordFilter
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.views import JobView
from tidegauge.http.access import Refusal
from tidegauge.http.server import Response
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.reports.html_page import Site, asset, lead, site_page
from tidegauge_exporter.reports.report import ReportParts

PAGES: Final[Mapping[str, str]] = {
    "Jobs": "jobs", "Incidents": "incidents", "Nodes": "nodes", "History": "history", "Policy": "policy",
    "Compare": "compare",
}  # fmt: skip
"""In the order of the navigation; addresses are relative, for a proxy that serves the UI below a path."""
LIVE_S: Final = 3
SLOW_S: Final = 15
"""How often a browser asks for a page again: of what moves, and of what is kept."""
MAX_TEXT_CHARS: Final = 200
MAX_KEPT_JOBS: Final = 64
"""Pages of jobs that are kept, some 100 KB each."""
RECENT_ENDED: Final = 8
_HEADERS: Final = (
    ("Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
     "form-action 'self'; frame-ancestors 'none'"),
    ("Referrer-Policy", "same-origin"),
)  # fmt: skip
"""A page runs and fetches nothing but what this server serves."""
_ASSET_HEADERS: Final = (("Cache-Control", "private, max-age=31536000, immutable"),)
"""Their addresses change with their content."""
_BUILT: Final = ("report_page", "built")


@dataclass(frozen=True)
class WebReads:
    """What the pages are made of."""

    coordinator: Coordinator
    overviews: OverviewReads
    records: RecordPages
    store: Callable[[], LoopStore]
    """Raises ``AuditError`` while the database is not open."""
    status: Callable[[], LoopStatus]
    jobs: Callable[[], tuple[JobView, ...]]
    profiles: ProfilePages
    incident_report: Callable[[Story], ReportParts]
    story: Callable[[Story], Story]
    """Adds what only the coordinator knows: the memory of the rank to look at first."""
    cluster: str


def web_routes(reads: WebReads) -> dict[str, Route]:
    """Routes by path."""
    site, assets = _WebPages(reads), web_assets()
    pages = {
        "/": site.jobs,
        "/jobs": site.jobs,
        "/job": site.job,
        "/incidents": site.incidents,
        "/report": site.report,
        "/nodes": site.nodes,
        "/history": site.history,
        "/policy": site.policy,
        "/profile": site.profile,
        "/compare": site.compare,
    }
    return {
        **{path: site.with_errors(page) for path, page in pages.items()},
        "/ui/site.css": lambda _: Response(assets.style, "text/css; charset=utf-8", _ASSET_HEADERS),
        "/ui/site.js": lambda _: Response(assets.script, "text/javascript; charset=utf-8", _ASSET_HEADERS),
    }


class WebAssets(NamedTuple):
    """What the pages fetch."""

    style: bytes
    script: bytes
    version: str


@cache
def web_assets() -> WebAssets:
    """The style sheet and the script, with their digest."""
    style = (asset(*_BUILT, "uplot.css") + asset("report.css") + asset("site.css")).encode()
    script = asset(*_BUILT, "site.js").encode()
    return WebAssets(style, script, hashlib.sha256(style + script).hexdigest()[:12])


def refusal_page(path: str, refusal: Refusal) -> Response:
    """A refusal as a page with the way back. It says nothing of the cluster: whoever asked may not be let in."""
    site = Site("", None, pages=tuple(PAGES.items()), root=seen_from(path, "/").removeprefix("./"))
    parts = (_what_is_wrong(refusal.text), f'<p><a href="{site.root}jobs">All jobs</a></p>')
    page = site_page(site, "Not here", parts, version=web_assets().version)
    return html_answer(page, (*_HEADERS, *refusal.headers), status=refusal.status)


def _what_is_wrong(text: str) -> str:
    return lead(f"{capitalised(text)}.", tone="warning")


class _WebPages:
    def __init__(self, reads: WebReads) -> None:
        self._reads = reads
        self._kept_jobs = KeptEach[tuple[str, Sequence[str], int]](
            most=MAX_KEPT_JOBS, kept_s=0.0, monotonic_s=time.monotonic
        )
        self._version = web_assets().version

    def with_errors(self, page: Route) -> Route:
        """The same page, which shows errors to a browser as a page with the way back."""

        def answer(request: Request) -> Response:
            try:
                return page(request)
            except tuple(STATUS) as error:
                if not is_browser(request.accept):
                    raise
                parts = [_what_is_wrong(str(error)), '<p><a href="jobs">All jobs</a></p>']
                return self._page(request, "Not here", "", parts, status=STATUS[type(error)])

        return answer

    def jobs(self, request: Request) -> Response:
        viewer, problem = request.viewer, None
        ended: Sequence[JobRecord] = ()
        incidents: defaultdict[JobKey, list[int]] = defaultdict(list)
        try:
            with store_errors():
                store = self._reads.store()
                for one in store.incidents.each(
                    open_only=True, since_s=0.0, limit=MAX_INCIDENTS, user_name=viewer.only
                ):
                    incidents[one.key.job].append(one.number)
                ended = tuple(store.jobs.ended(RecordFilter(within=viewer.only), limit=RECENT_ENDED))
        except UnavailableError as error:
            problem = f"Not known: {error}"
        shown = JobsShown(self._reads.overviews.overview(viewer), incidents, ended, problem)
        asked = JobsAsked(_text(request, "words"), _text(request, "sort") or "alarm")
        return self._page(request, "Jobs", "Jobs", jobs_page(shown, asked), refresh_s=LIVE_S)

    def job(self, request: Request) -> Response:
        """The page of a job, made once for all viewers of the same rights who ask for the same within a while."""
        key = (request.viewer.only, *sorted(request.query.items()))
        title, parts, refresh_s = self._kept_jobs(key, lambda: self._job(request))
        return self._page(request, title, "Jobs", parts, refresh_s=refresh_s)

    def _job(self, request: Request) -> tuple[str, Sequence[str], int]:
        """Title and parts of the page of a job, and how often it is asked for again."""
        asked, rank, problem = JobAsked.of(request), rank_asked(request), None
        record: RecordPage | None = None
        incidents: Sequence[Incident] = ()
        live = self._live(request, asked, rank)
        try:
            with store_errors():
                record = self._reads.records.job_record(request)
                found = self._reads.store().incidents.of_job(record.record.job, limit=MAX_INCIDENTS)
                incidents = [one for one in found if request.viewer.sees(one.user_name, one.key.job.job_id)]
        except UnavailableError as error:
            if live is None:
                raise
            problem = f"Not known: {error}"
        except NotFoundError:
            if live is None:
                raise NotFoundError(
                    f"job {asked.job_id!r} is neither watched nor on record, or it belongs to someone else"
                ) from None
            problem = "Not written yet: it is kept once the job has run for some seconds."
        shown = JobShown(asked, time.time(), live, record, incidents, rank, _text(request, "words"), problem)
        refresh_s = LIVE_S if live is not None and live.view.running else SLOW_S
        return job_title(shown), job_page(shown), refresh_s

    def _live(self, request: Request, asked: JobAsked, rank: int | None) -> LiveJob | None:
        """The job, if it is watched: that attempt, or without one the latest."""
        reads, viewer = self._reads, request.viewer
        same = [
            job
            for job in reads.overviews.overview(viewer).jobs
            if job.job_id == asked.job_id and asked.uid in (None, job.uid)
        ]
        if "attempt" not in request.query and same:
            asked = asked._replace(attempt=max(job.attempt for job in same))
        try:
            view = reads.overviews.job_view(asked, viewer)
        except NotFoundError:
            return None
        page = reads.overviews.ranks_page(view, most=MAX_RANKS if _text(request, "words") else MAX_ROWS)
        key = view.key
        curves = dict(reads.coordinator.memory(key.job_id, key.attempt, key.uid, group=key.group, most=MAX_CURVES))
        if rank is not None and rank not in curves:
            curves.update(
                reads.coordinator.memory(key.job_id, key.attempt, key.uid, group=key.group, rank=rank, most=1)
            )
        others = [job for job in same if (job.attempt, job.uid, job.group) != (key.attempt, key.uid, key.group)]
        return LiveJob(view, page, curves, others)

    def incidents(self, request: Request) -> Response:
        show = _text(request, "show")
        show = show if show in SHOW else "open"
        with store_errors():
            each = self._reads.store().incidents.each(
                open_only=show == "open", since_s=0.0, limit=MAX_INCIDENTS, user_name=request.viewer.only
            )
            found = tuple(each)
        return self._page(request, "Incidents", "Incidents", incidents_page(found, show=show), refresh_s=LIVE_S)

    def report(self, request: Request) -> Response:
        if "incident" not in request.query:
            raise BadRequestError(
                "the address names no incident: use /report?incident=N, or choose one below Incidents"
            )
        number = request.number("incident", default=0)
        story = self._reads.story(incident_story(self._reads.store, number, viewer=request.viewer))
        title, parts, data, _ = self._reads.incident_report(story)
        job = story.incident.key.job
        link = job_link(job, words="Page of the job")
        parts = [parts[0], f'<p class="links">{link}</p>', *parts[1:]]
        refresh_s = SLOW_S if story.incident.is_open else 0
        return self._page(request, title, "Incidents", parts, data=data, refresh_s=refresh_s)

    def nodes(self, request: Request) -> Response:
        jobs = self._reads.jobs()
        on = tenancies(seen_by(request.viewer, jobs), jobs)
        parts = nodes_page(
            self._reads.coordinator.nodes(), on, words=_text(request, "words"), show=_text(request, "show")
        )
        return self._page(request, "Nodes", "Nodes", parts, refresh_s=LIVE_S)

    def history(self, request: Request) -> Response:
        days = _text(request, "days") or DAYS
        asked = HistoryAsked(
            _text(request, "user"), _text(request, "name"), _text(request, "account"), _text(request, "ended"),
            days if days in SPANS else DAYS,
        )  # fmt: skip
        if asked.ended not in ENDS:
            raise BadRequestError(f"ended must be one of {', '.join(filter(None, ENDS))}")
        since = int(time.time()) - int(asked.days) * DAY_S
        fields = {"since": str(since), **{name: value for name, value in asked._asdict().items() if value}}
        fields.pop("days")
        with store_errors():
            found = self._reads.records.ended_jobs(Request(fields, None, request.viewer))
        return self._page(request, "History", "History", history_page(found, asked), refresh_s=SLOW_S)

    def policy(self, request: Request) -> Response:
        status = status_for(request.viewer, self._reads.status())
        since_s, whose = time.time() - POLICY_DAYS * DAY_S, request.viewer.only
        decisions: Sequence[DecisionRecord] = ()
        left_out = 0
        try:
            with store_errors():
                audit = self._reads.store().audit
                decisions = tuple(audit.each(since_s=since_s, limit=MAX_DECISIONS, user_name=whose))
                left_out = max(audit.count(since_s=since_s, user_name=whose) - MAX_DECISIONS, 0)
        except UnavailableError:
            pass  # the page says why
        parts = policy_page(status, decisions, left_out=left_out)
        return self._page(request, "Policy", "Policy", parts, refresh_s=LIVE_S)

    def profile(self, request: Request) -> Response:
        with store_errors():
            job, found = self._reads.profiles.of_job(request)
        if not found:
            raise NotFoundError(NO_SUCH_JOB)
        try:
            parts = profile_parts(found, job, made_unix_s=time.time())
        except ValueError as error:
            raise UnavailableError(f"the profiles of this job cannot be read: {error}") from error
        return self._page(request, f"Memory profile of job {job.job_id}", "Jobs", parts)

    def compare(self, request: Request) -> Response:
        with store_errors():
            store = self._reads.store()
            known = choices_of(store, [one.job for one in self._reads.profiles.profiled(request.viewer)])

        def profile_of(one: ProfileChoice) -> StepProfile | None:
            with store_errors():
                found = store.profiles.of_rank(one.job, one.rank)
            try:
                return None if found is None else found.profile()
            except ValueError:
                return None

        chosen = {name: _text(request, name, most=2000) for name in ("before", "after")}
        parts = compare_page(known, chosen, profile_of, made_unix_s=time.time())
        return self._page(request, "Compare", "Compare", parts)

    def _page(
        self,
        request: Request,
        title: str,
        current: str,
        parts: Sequence[str],
        *,
        refresh_s: int = 0,
        data: str = "",
        status: int = 200,
    ) -> Response:
        viewer = request.viewer
        site = Site(
            self._reads.cluster, viewer.name, viewer.sees_all, viewer.by_session, tuple(PAGES.items()), current,
            refresh_s, left_out=viewer.unchecked,
        )  # fmt: skip
        return html_answer(site_page(site, title, parts, data=data, version=self._version), _HEADERS, status=status)


def _text(request: Request, name: str, *, most: int = MAX_TEXT_CHARS) -> str:
    """A text of the query, cut to ``most`` characters; empty without one."""
    return request.query.get(name, "")[:most]
