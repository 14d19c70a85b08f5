"""An API over HTTP with a real store and the jobs of two people, asked for every page that it has."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from evidence_values import evidence
from rank_profiles import rank_profile
from sample_views import LEAK, identity, job_record, rank_summary
from scheduler_values import decision, finding, incident
from still_service import AwayEngine, StillLoop
from tidegauge.cluster.api.http_api import FORM_TYPE, HttpApi
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_loop import ActionLoop, Opened
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.cluster.store import Store, open_store
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge.core.incidents.actions import ActionKind, LoopStatus, Outcome, UnderWay
from tidegauge.core.incidents.acts import ActKind, PersonAct
from tidegauge.core.views import NodeSummary, RankSummary
from tidegauge.http.credentials import FILES_ALONE, BesideFiles
from tidegauge.http.door_start import open_door
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings
from waiting import PATIENCE_S

NAMES = ("ada", "bob", "root", "prometheus")
TOKENS = {name: make_token() for name in NAMES}
UIDS = {"ada": 1001, "bob": 1002}
NUMBERS = {"ada": 1, "bob": 2}
NOW_S = 1_800_000_000.0


def job_of(name: str, namespace: str | None = None) -> JobKey:
    return JobKey(f"{name}s-job" if namespace is None else f"{namespace}/{name}s-job", 0, UIDS[name])


def ranks_of(name: str, job: JobKey, owner: str) -> list[RankSummary]:
    return [
        rank_summary(
            number, identity=identity(number, job_id=JobId(job.job_id), job_name=f"{name}s-model"), uid=job.uid,
            user_name=owner, process=ProcessId(UIDS[name] * 10 + number, 5), verdict=LEAK,
        )
        for number in range(2)
    ]  # fmt: skip


def fill(store: Store, name: str, job: JobKey, owner: str) -> None:
    """An incident of this user's job, what was decided about it, evidence, and a profile."""
    opened = incident(
        job=job, number=NUMBERS[name], user_name=owner, job_name=f"{name}s-model", findings=(finding(1),),
        opened_unix_s=NOW_S - 600.0, updated_unix_s=NOW_S,
    )  # fmt: skip
    store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S - 600.0, opened)])
    store.audit.write_ahead([decision(decision_id=f"{name}s-decision", incident=opened, decided_s=NOW_S - 500.0)])
    store.audit.finish(f"{name}s-decision", Outcome.DONE, "", at_s=NOW_S - 499.0)
    store.evidence.keep([evidence(1, job=job, hostname=f"{name}s-node")], at_s=NOW_S)
    store.jobs.save([job_record(job=job, job_name=f"{name}s-model", user_name=owner)])
    store.acts.begin(PersonAct(f"{name}s-act", NUMBERS[name], ActKind.ACKNOWLEDGE, name, False, NOW_S))
    store.profiles.keep([rank_profile(1, job=job, hostname=f"{name}s-node")], at_s=NOW_S)


@dataclass
class Site:
    """An API with two users' jobs, and what it answers."""

    service: CoordinatorService
    api: HttpApi
    store: Store

    def ask(
        self, path: str, name: str | None, fields: Mapping[str, str] | Sequence[tuple[str, str]] | None = None
    ) -> tuple[int, str]:
        """``name``: one of ``NAMES``, or a token. ``fields``: of a form that is sent there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {TOKENS.get(name, name)}"} if name else {}
        try:
            if fields is None:
                connection.request("GET", path, headers=headers)
            else:
                connection.request("POST", path, urlencode(fields), {**headers, "Content-Type": FORM_TYPE})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@contextlib.contextmanager
def running_site(
    folder: Path,
    beside: BesideFiles = FILES_ALONE,
    *,
    namespaces: Mapping[str, str] = {},
    owners: Mapping[str, str] = {},
) -> Iterator[Site]:
    """With one job of each of ``UIDS``, in these namespaces, and with these names as their owners'."""
    tokens = folder / "tokens"
    tokens.write_text("\n".join(token_line(name, TOKENS[name]) for name in NAMES))
    tokens.chmod(0o600)
    settings = Settings(cluster="lab", api_tokens_file=tokens, api_admins="root")
    door = open_door(settings, what="a test", beside=beside)
    coordinator = Coordinator(wall_s=lambda: NOW_S, monotonic_s=lambda: 100.0, incarnation="c")
    store = open_store(f"sqlite:///{folder}/t.db")
    at_bobs_job = UnderWay("d", ActionKind.CHECKPOINT, job_of("bob"), NOW_S, "waits")
    loop = StillLoop(LoopStatus("act", None, under_way=(at_bobs_job,)))
    action_loop = ActionLoop(lambda: Opened(store, loop, lambda: NOW_S), keep_incidents_s=1e9)
    action_loop.turn()
    service = CoordinatorService(
        coordinator, AwayEngine(), exporter_pages(settings), action_loop, cluster="lab", host="127.0.0.1", port=0,
        advertise_host="127.0.0.1", asks=EvidenceAsks(folder / "asks"), door=door,
    )  # fmt: skip
    ranks = list[RankSummary]()
    for name in UIDS:
        job, owner = job_of(name, namespaces.get(name)), owners.get(name) or namespaces.get(name) or name
        fill(store, name, job, owner)
        ranks += ranks_of(name, job, owner)
    for sent_s in (1.0, 2.0):  # verdicts become events with the second report
        coordinator.report(NodeSummary("id", "node7", 321, "i", "node7:9494", sent_s, tuple(ranks)))
    api = HttpApi(
        service.routes(), forms=service.forms(), host="127.0.0.1", port=0, door=door, namespaces=service._namespaces
    )
    service._api = api  # /sd asks it for its own address
    api.start()
    try:
        yield Site(service, api, store)
    finally:
        api.stop()
        store.database.close()


class Page(NamedTuple):
    """A page as a user asks for it about somebody's job."""

    path: str
    about_one: bool = False
    """Of one job or incident alone: 404, or nothing, for anybody but its owner."""


def pages(whose: str, namespace: str | None = None) -> dict[str, Page]:
    """Every page that some decision is needed for, asked about ``whose`` job where it is about one."""
    key = job_of(whose, namespace)._asdict()
    job = urlencode(key)
    without_uid = urlencode({"job_id": key["job_id"], "attempt": 0})
    number = NUMBERS[whose]
    return {
        "/healthz": Page("/healthz"),
        "/": Page("/"),
        "/jobs": Page("/jobs"),
        "/job": Page(f"/job?{job}", about_one=True),
        "/job without uid": Page(f"/job?{without_uid}", about_one=True),
        "/incidents": Page("/incidents"),
        "/nodes": Page("/nodes"),
        "/history": Page("/history"),
        "/policy": Page("/policy"),
        "/profile": Page(f"/profile?{job}", about_one=True),
        "/compare": Page("/compare"),
        "/ui/site.css": Page("/ui/site.css"),
        "/ui/site.js": Page("/ui/site.js"),
        "/login": Page("/login"),
        "/logout": Page("/logout"),
        "/api/v1/me": Page("/api/v1/me"),
        "/runbooks": Page("/runbooks"),
        "/api/v1/openapi.json": Page("/api/v1/openapi.json"),
        "/api/v1/status": Page("/api/v1/status"),
        "/api/v1/nodes": Page("/api/v1/nodes"),
        "/api/v1/policy": Page("/api/v1/policy"),
        "/api/v1/jobs": Page("/api/v1/jobs"),
        "/api/v1/job": Page(f"/api/v1/job?{job}", about_one=True),
        "/api/v1/job without uid": Page(f"/api/v1/job?{without_uid}", about_one=True),
        "/api/v1/overview": Page("/api/v1/overview"),
        "/api/v1/node-overview": Page("/api/v1/node-overview"),
        "/api/v1/node": Page("/api/v1/node?node_id=id"),
        "/api/v1/events": Page("/api/v1/events"),
        "/api/v1/heat-map": Page(f"/api/v1/heat-map?{job}", about_one=True),
        "/api/v1/memory": Page(f"/api/v1/memory?{job}"),
        "/api/v1/memory without uid": Page(f"/api/v1/memory?{without_uid}"),
        "/api/v1/incidents": Page("/api/v1/incidents?all=1"),
        "/api/v1/incident": Page(f"/api/v1/incident?number={number}", about_one=True),
        "/api/v1/incident-marks": Page("/api/v1/incident-marks?since=0"),
        "/api/v1/incident-changes": Page("/api/v1/incident-changes?since=0"),
        "/api/v1/decisions": Page("/api/v1/decisions?since=0"),
        "/api/v1/evidence": Page(f"/api/v1/evidence?{job}"),
        "/api/v1/evidence of an incident": Page(f"/api/v1/evidence?incident={number}", about_one=True),
        "/api/v1/profiled-jobs": Page("/api/v1/profiled-jobs"),
        "/api/v1/profiles": Page(f"/api/v1/profiles?{job}", about_one=True),
        "/api/v1/profile": Page(f"/api/v1/profile?{job}&rank=1", about_one=True),
        "/api/v1/ended-jobs": Page("/api/v1/ended-jobs"),
        "/api/v1/usage": Page("/api/v1/usage"),
        "/api/v1/ended-jobs of a user": Page(f"/api/v1/ended-jobs?user={whose}"),
        "/api/v1/job-record": Page(f"/api/v1/job-record?{urlencode({'job_id': key['job_id']})}", about_one=True),
        "/api/v1/job-record by name": Page(f"/api/v1/job-record?name={whose}s-model", about_one=True),
        "/api/v1/grades": Page("/api/v1/grades"),
        "/api/v1/acts": Page(f"/api/v1/acts?incident={number}", about_one=True),
        "/act": Page(f"/act?incident={number}", about_one=True),
        "/report": Page(f"/report?incident={number}", about_one=True),
        "/grade": Page(f"/grade?incident={number}", about_one=True),
        "/sd": Page("/sd"),
        "/metrics": Page("/metrics"),
    }
