"""The coordinator at work: serves its HTTP API, keeps agents alive, acts, and collects evidence. No Ray.

The exporter package makes the pages, which are passed in.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge import __version__
from tidegauge.cluster.api.act_api import ActPage, ActPages
from tidegauge.cluster.api.grade_api import GradePage, GradePages
from tidegauge.cluster.api.heat_map import HeatMaps
from tidegauge.cluster.api.http_api import HttpApi, Request, Route, html_route, json_route
from tidegauge.cluster.api.login_api import LoginPage, LoginPages, LogoutPage
from tidegauge.cluster.api.loop_api import UNTOLD, loop_figures, loop_routes, store_errors
from tidegauge.cluster.api.memory_api import curves_of_incident, evidence_routes, memory_routes
from tidegauge.cluster.api.openapi import openapi_json
from tidegauge.cluster.api.overview_api import KEPT_S, Kept, OverviewReads
from tidegauge.cluster.api.profile_api import ProfilePages
from tidegauge.cluster.api.record_api import RecordPages
from tidegauge.cluster.api.route_access import ownership, seen_by
from tidegauge.cluster.api.usage_figures import KEPT_S as USAGE_KEPT_S
from tidegauge.cluster.api.usage_figures import lately_used
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_loop import ActionLoop
from tidegauge.cluster.incident_loops.escalation_loop import open_escalation
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.incident_loops.profile_loop import open_profiles
from tidegauge.cluster.ray_service.agent_reconciler import AgentReconciler, Engine, EngineError
from tidegauge.cluster.views import NodeHealth, ServiceStatus
from tidegauge.cluster.web.routes import WebReads, refusal_page, web_routes
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.incidents.loop_figures import LoopFigures
from tidegauge.core.jobs.kubernetes import namespace_of
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import JobView, NodeSummary
from tidegauge.http.access import EVERYBODY, OPEN_DOOR, DoorProblem, LoginDoor, LoginMethod, Viewer
from tidegauge.http.served_hosts import ServedHosts
from tidegauge.http.server import Response
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.reports.report import ReportParts

if TYPE_CHECKING:
    from tidegauge_exporter.metrics.families import Exposition

log = logging.getLogger(__name__)

KEEP_PERIOD_S = 1.0
COLLECT_EVERY_S = 600.0
"""Between two full garbage collections. One takes 0.2 s at 10,000 ranks; cycles that outlive the young generations are
few, because reference counts free at once what reports replace."""
NAMESPACES_KEPT_S = 30.0
"""Those of watched jobs are added at once; finding those of all records reads them all."""
NEVER = 1_000_000
SWITCH_INTERVAL_S = 0.001
"""A reply needs the interpreter's lock a few times, and waits this long for it while another thread works. Python's
own 5 ms made that 20 ms and more."""


@dataclass(frozen=True)
class Pages:
    """The pages that the exporter adds to the API."""

    job_metrics: Callable[[tuple[JobView, ...], LoopFigures, float, str | None], Exposition]
    """Jobs, incidents and actions, unix time and the request's ``Accept`` header in; the whole ``/metrics`` out."""
    http_sd: Callable[[Iterable[NodeSummary], str], Sequence[Mapping[str, object]]]
    """Nodes and the coordinator's own address (``host:port``, ``https://host:port``) in; groups for ``http_sd`` out."""
    incident_report: Callable[[Story], ReportParts]
    """The story of an incident in; the parts of a page for people out."""
    grade: GradePage
    """Asks whether an incident was a leak: a page for people."""
    act: ActPage
    """Asks what to do about an incident: a page for people."""
    runbooks: Callable[[], str]
    """What each alert means, and what to do: a page for people."""
    login: LoginPage
    """Asks who somebody is: a page for people."""
    logout: LogoutPage


def keep_pauses_short() -> None:
    """Set up this process for quick replies to reports while other threads judge ten thousand ranks.

    From now on ``CoordinatorService`` alone makes full collections. Python's own rule (a quarter of all objects is new)
    made one every four seconds at 10,000 ranks, 0.17 s each: one report in twenty waited for it.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


class CoordinatorService:
    """Runs from ``start`` to ``stop``, inside one actor for as long as the service runs."""

    def __init__(
        self, coordinator: Coordinator, engine: Engine, pages: Pages, actions: ActionLoop, *, cluster: str, host: str,
        port: int, advertise_host: str, asks: EvidenceAsks, door: LoginDoor = OPEN_DOOR,
        local_socket: Path | None = None, public_url: str | None = None, admins: Collection[str] = (),
    ) -> None:  # fmt: skip
        """``door`` guards the API; ``local_socket`` is the socket for commands on this node; ``public_url`` is the
        address for people, if it is known; ``admins`` are the names in ``api_admins``."""
        self.coordinator = coordinator
        self._actions = actions
        self._lately_used = Kept(
            lambda: lately_used(self._actions.store, now_s=time.time()), kept_s=USAGE_KEPT_S, monotonic_s=time.monotonic
        )
        self._namespaces_kept = Kept(self._read_namespaces, kept_s=NAMESPACES_KEPT_S, monotonic_s=time.monotonic)
        self._pages = pages
        self._cluster = cluster
        self._host, self._port = host, port
        self._advertise_host = advertise_host
        self._door = door
        self._local_socket = local_socket
        self._public_url = public_url
        self._escalation = open_escalation(coordinator, lambda: actions.store().evidence, asks)
        self._profiles = open_profiles(coordinator, lambda: actions.store().profiles)
        self._jobs_kept = Kept(coordinator.jobs, kept_s=KEPT_S, monotonic_s=time.monotonic)
        self._profile_pages = ProfilePages(
            actions.store, self._profiles,
            ownership(self._jobs_kept, lambda: actions.store().incidents, lambda: actions.store().jobs),
        )  # fmt: skip
        self._keeper = AgentReconciler(engine, coordinator, monotonic_s=time.monotonic)
        self._grades = GradePages(actions.store, actions.now_s, pages.grade)
        self._acts = ActPages(actions.store, actions.now_s, self._ask_evidence, pages.act, admins=admins)
        self._logins = LoginPages(door, pages.login, pages.logout)
        self._started_unix_s = time.time()
        self._stopped = threading.Event()
        self._api: HttpApi | None = None

    def start(self) -> None:
        """Serve and keep agents, in threads. Raises ``OSError`` if ``host`` is not an address of this machine."""
        self._api = self._bind()
        threading.Thread(target=self._keep, name="tidegauge-keeper", daemon=True).start()
        self._actions.start()
        self._escalation.start()
        self._profiles.start()

    def stop(self) -> None:
        self._stopped.set()
        self._escalation.stop()
        self._profiles.stop()
        self._actions.stop()
        if self._api is not None:
            self._api.stop()

    @property
    def url(self) -> str:
        assert self._api is not None, "not started"
        return self._api.url

    def status(self, viewer: Viewer = EVERYBODY) -> ServiceStatus:
        nodes = self.coordinator.nodes()
        jobs = [job for job in self.coordinator.jobs() if job.running]
        present = [node for node in nodes if node.health is not NodeHealth.GONE]
        return ServiceStatus(
            cluster=self._cluster,
            version=__version__,
            coordinator=self.coordinator.incarnation,
            coordinator_pid=os.getpid(),
            started_unix_s=self._started_unix_s,
            now_unix_s=time.time(),
            nodes=nodes,
            jobs_running=len(jobs),
            jobs_leaking=sum(job.state is LeakState.LEAK for job in jobs),
            healthy=bool(present) and all(node.health is NodeHealth.OK for node in present),
            web_access_problem=_told(viewer, self._door.problem()),
            login_methods=tuple(method for method in LoginMethod if method in self._door.login_methods()),
        )

    def routes(self) -> dict[str, Route]:
        """All pages by path; ``ROUTE_ACCESS`` says who may read each."""
        jobs = self._jobs_kept
        owns = ownership(jobs, lambda: self._actions.store().incidents)
        document = openapi_json()
        records = RecordPages(self._actions.store)
        overviews = OverviewReads(self.coordinator, jobs, self._actions.status, cluster=self._cluster)
        return {
            "/api/v1/status": json_route(lambda request: self.status(request.viewer)),
            "/api/v1/nodes": json_route(lambda _: {"nodes": self.coordinator.nodes()}),
            "/api/v1/jobs": json_route(self._jobs),
            "/api/v1/events": json_route(self._events),
            **memory_routes(self.coordinator, self._actions.store),
            **overviews.routes(),
            **loop_routes(self._actions.store, self._actions.status),
            **records.routes(),
            **evidence_routes(self._actions.store, owns),
            **self._profile_pages.routes(),
            **self._grades.routes(),
            **self._acts.routes(),
            **HeatMaps(overviews, self.coordinator.history_of).routes(),
            **web_routes(self._web_reads(overviews, records)),
            **self._logins.routes(),
            "/api/v1/openapi.json": lambda _: Response(document),
            "/runbooks": html_route(lambda _: self._pages.runbooks()),
            "/sd": json_route(lambda _: self._pages.http_sd(self.coordinator.reporting(), self._own_address())),
            "/metrics": self._metrics,
            "/healthz": lambda _: Response(b"ok\n", "text/plain; charset=utf-8"),
        }

    def forms(self) -> dict[str, Route]:
        return {**self._grades.forms(), **self._acts.forms(), **self._profile_pages.forms(), **self._logins.forms()}

    def _ask_evidence(self, incident: Incident, evidence_id: str) -> str:
        """Ask the rank to look at first. Raises ``LookupError``."""
        rank = next(iter(incident.ranks), None)
        if rank is None:
            raise LookupError(f"incident {incident.number} names no rank")
        reply = self._escalation.ask_rank(incident.key.job, rank, evidence_id)
        if reply.error is not None:
            raise LookupError(f"rank {rank} gives no evidence now: {reply.error}")
        return f"Rank {rank} records evidence; it is in the incident in one or two minutes."

    def _bind(self) -> HttpApi:
        api = self._api_at(self._port)
        try:
            api.start()
        except OSError as error:
            if self._port == 0 or isinstance(error, PermissionError):
                raise
            free = self._api_at(0)
            free.start()
            log.warning("port %d is in use (%s): the API is at %s", self._port, error.strerror, free.url)
            return free
        log.info("the API is at %s", api.url)
        return api

    def _api_at(self, port: int) -> HttpApi:
        return HttpApi(
            self.routes(), host=self._host, port=port, door=self._door, forms=self.forms(),
            local_socket=self._local_socket, public_url=self._public_url,
            hosts=ServedHosts(self._host, self._advertise_host, self._public_url), refusal_page=refusal_page,
            namespaces=self._namespaces,
        )  # fmt: skip

    def _namespaces(self) -> Collection[str]:
        """Of Kubernetes, of all jobs that are watched or kept."""
        watched = {namespace_of(job.job_id) for job in self._jobs_kept()}
        return {one for one in watched if one is not None} | self._namespaces_kept()

    def _read_namespaces(self) -> frozenset[str]:
        try:
            store = self._actions.store()
            return store.jobs.namespaces() | store.incidents.namespaces()
        except AuditError:  # then the pages have nothing of them either
            return frozenset()

    def _jobs(self, request: Request) -> object:
        return {"jobs": seen_by(request.viewer, self.coordinator.jobs()), "seen_as": request.viewer.seen_as}

    def _events(self, request: Request) -> object:
        viewer = request.viewer
        events = self.coordinator.events(request.number("after", default=0))
        return {
            "events": [one for one in events if one.user_name is None or viewer.sees(one.user_name, one.job_id or "")]
        }

    def _web_reads(self, overviews: OverviewReads, records: RecordPages) -> WebReads:
        return WebReads(
            self.coordinator, overviews, records, self._actions.store, self._actions.status, self._jobs_kept,
            self._profile_pages, self._pages.incident_report, self._with_memory, self._cluster,
        )  # fmt: skip

    def _with_memory(self, story: Story) -> Story:
        """The story with the memory of the rank to look at first."""
        with store_errors():
            curves = curves_of_incident(self.coordinator, self._actions.store().incidents, story.incident)
        first = next(iter(story.incident.ranks), None)
        return replace(story, memory=next((one.points for one in curves if one.rank == first), ()))

    def _own_address(self) -> str:
        assert self._api is not None, "not started"
        host = self._advertise_host if self._host in ("0.0.0.0", "::") else self._host
        address = f"[{host}]:{self._api.port}" if ":" in host else f"{host}:{self._api.port}"
        return address if self._door.scheme == "http" else f"{self._door.scheme}://{address}"

    def _metrics(self, request: Request) -> Response:
        jobs, now_unix_s = self.coordinator.jobs(), time.time()
        figures = loop_figures(
            self._actions.store,
            self._actions.status(),
            slurm=self._actions.slurm_labels(),
            jobs=jobs,
            nodes=self.coordinator.nodes(),
            now_unix_s=now_unix_s,
            usage=self._lately_used,
        )
        page = self._pages.job_metrics(jobs, figures, now_unix_s, request.accept)
        return Response(page.body, page.content_type)

    def _keep(self) -> None:
        collect_s = time.monotonic() + COLLECT_EVERY_S
        while not self._stopped.wait(KEEP_PERIOD_S):
            self._keep_once()
            if time.monotonic() >= collect_s:
                gc.collect()
                collect_s = time.monotonic() + COLLECT_EVERY_S

    def _keep_once(self) -> None:
        try:
            self._keeper.tick()
        except EngineError as error:
            log.warning("no answer from the engine: %s", error)
        except Exception:
            # The loop is what keeps the agents alive: it must outlive a defect in one round.
            log.exception("a check of the agents failed; continuing")


def _told(viewer: Viewer, problem: DoorProblem | None) -> DoorProblem | None:
    """The problem; its text, which names files of the head, only for viewers who see all jobs."""
    if problem is None or viewer.sees_all:
        return problem
    return DoorProblem(problem.closed, None, UNTOLD, "tell an admin of this service")
