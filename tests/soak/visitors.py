"""Those who ask the service all the time: Prometheus, scripts, people at terminals, and requests that make no sense."""

from __future__ import annotations

import gzip
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from tidegauge.cluster.api.client import ApiError

SCRAPE_EVERY_S = 5.0
REQUEST_EVERY_S = 0.25
COMMAND_EVERY_S = 20.0
PATHS = (
    "/api/v1/status", "/api/v1/nodes", "/api/v1/jobs", "/api/v1/overview", "/api/v1/job?job_id={job}&attempt=0",
    "/api/v1/memory?job_id={job}&attempt=0", "/api/v1/events?after=0", "/api/v1/incidents?all=1",
    "/api/v1/incident?number={incident}", "/api/v1/incident-marks?since=0", "/api/v1/decisions?since=0",
    "/api/v1/incident-changes?since={recent}", "/api/v1/policy", "/report?incident={incident}", "/runbooks",
    "/api/v1/ended-jobs", "/api/v1/job-record?job_id={job}", "/sd", "/healthz",
    "/no/such/page", "/api/v1/incident?number=x", "/api/v1/job?job_id=nobody&attempt=7",
    "/api/v1/evidence?job_id={job}&attempt=0&rank=0",
)  # fmt: skip
"""{job} and {incident} are filled in from earlier answers. {recent} is some minutes ago: the history of all incidents
since the beginning is an answer that grows with them, and what holds it grows too."""
RECENT_S = 300.0
COMMANDS = (
    ("top", "--once"), ("status",), ("jobs", "--json"), ("incidents", "--all"), ("incidents", "show", "{incident}"),
    ("report", "{incident}", "-o", "-"), ("policy", "status"), ("top", "--once", "--json"), ("policy", "log"),
)  # fmt: skip


class Finished(Protocol):
    """How a command ended."""

    code: int


class Service(Protocol):
    """The part of ``integration.service.Service`` that is needed."""

    def call(self, *arguments: str) -> Any: ...

    def get(self, path: str) -> dict[str, Any]: ...


class Visitors:
    """Three threads from ``start`` to ``stop``; what they got is counted in ``answers``."""

    def __init__(self, service: Service, api_url: str, metrics_url: str) -> None:
        self.answers: Counter[str] = Counter()
        self._service = service
        self._api_url = api_url
        self._scraped = (metrics_url, f"{api_url}/metrics")
        self._job = self._incident = "0"
        self._stopped = threading.Event()
        loops = ((self._scrape, SCRAPE_EVERY_S), (self._request(), REQUEST_EVERY_S), (self._command(), COMMAND_EVERY_S))
        self._threads = [threading.Thread(target=self._every, args=loop, daemon=True) for loop in loops]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _every(self, act: Callable[[], None], period_s: float) -> None:
        while not self._stopped.wait(period_s):
            self._try(act)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, HTTPException, AssertionError, ApiError) as error:
            self.answers[f"{type(error).__name__}: {error}"[:80]] += 1

    def _scrape(self) -> None:
        for url in self._scraped:
            for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
                status, body = _get(url, {"Accept": accept, "Accept-Encoding": "gzip"})
                assert status == 200, f"a scrape was answered with {status}"
                assert b"tidegauge_" in body
                self.answers["scrapes"] += 1

    def _request(self) -> Callable[[], None]:
        paths = itertools.cycle(PATHS)

        def act() -> None:
            path = next(paths)
            filled_in = path.format(job=quote(self._job), incident=self._incident, recent=int(time.time() - RECENT_S))
            status, _ = _get(self._api_url + filled_in, {})
            self.answers[f"API {status}"] += 1
            if path == "/api/v1/jobs":
                self._look_around()

        return act

    def _look_around(self) -> None:
        jobs = self._service.get("/api/v1/jobs")["jobs"]
        incidents = self._service.get("/api/v1/incidents?all=1&limit=5")["incidents"]
        self._job = str(jobs[0]["job_id"]) if jobs else "0"
        self._incident = str(incidents[0]["number"]) if incidents else "0"

    def _command(self) -> Callable[[], None]:
        commands = itertools.cycle(COMMANDS)

        def act() -> None:
            command = [word.format(incident=self._incident) for word in next(commands)]
            self.answers[f"tidegauge {command[0]}: {self._service.call(*command).code}"] += 1

        return act


def _get(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        packed = answer.headers.get("Content-Encoding") == "gzip"
        return answer.status, gzip.decompress(body) if packed else body
    finally:
        connection.close()
