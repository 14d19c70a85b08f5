"""A Ray cluster's job API on a loopback port, answering with what a real one said (tests/data/ray_jobs).

It keeps jobs, refuses ids that it knows, forgets uploaded packages when their job ends unless they were asked for, and
fails when it is told to.
"""

from __future__ import annotations

import contextlib
import copy
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from serving import Serving

RECORDED = Path(__file__).parent / "data" / "ray_jobs"
ENDED = {"STOPPED", "SUCCEEDED", "FAILED"}

Fault = Callable[["FakeRayJobs", BaseHTTPRequestHandler], None]
"""What becomes of one answer instead of what would have been said."""


def recorded(name: str) -> dict[str, Any]:
    """One recorded answer: ``status``, ``content_type`` and ``body``."""
    answer: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return answer


def drop(server: FakeRayJobs, handler: BaseHTTPRequestHandler) -> None:
    """The connection ends without a word."""
    handler.connection.shutdown(socket.SHUT_RDWR)


def half(server: FakeRayJobs, handler: BaseHTTPRequestHandler) -> None:
    """The answer breaks off."""
    handler.send_response(200)
    handler.send_header("Content-Length", "4000")
    handler.end_headers()
    handler.wfile.write(b'[{"type": "SUBMISSION", "entrypoint": "')


def drip(server: FakeRayJobs, handler: BaseHTTPRequestHandler) -> None:
    """The answer comes, but never ends."""
    _drip(server, handler, {"Content-Length": "4000000"})


def drip_unmeasured(server: FakeRayJobs, handler: BaseHTTPRequestHandler) -> None:
    """The same, and nothing says how long it would be."""
    _drip(server, handler, {})


def _drip(server: FakeRayJobs, handler: BaseHTTPRequestHandler, headers: dict[str, str]) -> None:
    handler.send_response(200)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not server.closing.wait(0.02):
            handler.wfile.write(b" ")


def silence(server: FakeRayJobs, handler: BaseHTTPRequestHandler) -> None:
    """Nothing comes, and the connection stays."""
    server.closing.wait()


def says(status: int, body: str, content_type: str = "text/plain") -> Fault:
    """Another answer."""

    def fault(server: FakeRayJobs, handler: BaseHTTPRequestHandler) -> None:
        _send(handler, status, content_type, body.encode())

    return fault


@dataclass
class FakeRayJobs:
    """The cluster. Jobs are entries as the API lists them, by submission id."""

    token: str | None = None
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    """Packages that were asked for, and so outlive their job."""
    requests: list[str] = field(default_factory=list)
    """Method and path of each request, in order."""
    submitted: list[dict[str, Any]] = field(default_factory=list)
    """What was asked for in each submission that was taken."""
    stops: list[str] = field(default_factory=list)
    """Each stop that ended a job."""
    instead: Callable[[str], Fault | None] = lambda _: None
    """Asked before a request is looked at: the fault, if there is to be one."""
    afterwards: Callable[[str], Fault | None] = lambda _: None
    """The same once it has been done, for the answer."""
    runs: Callable[[dict[str, Any]], None] = lambda _: None
    """What a submission that was taken does at once, given its entry."""
    ignores_stops: bool = False
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def add(self, submission_id: str, **changes: Any) -> dict[str, Any]:
        """A running job as recorded, with what a test wants changed."""
        entry = {**copy.deepcopy(recorded("job")["body"]), "submission_id": submission_id, **changes}
        self.jobs[submission_id] = entry
        return entry

    def end(self, submission_id: str, status: str) -> None:
        """The job has ended, and what only it has used is deleted."""
        job = self.jobs[submission_id]
        job["status"] = status
        self.packages -= {value for value in job["runtime_env"].values() if isinstance(value, str)} - self.kept

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        """What the cluster says."""
        parts = [unquote(part) for part in path.split("/")[2:]]
        if parts[0] == "packages":
            return self._package(method, f"{parts[1]}://{parts[2]}")
        if parts == ["jobs", ""]:
            if method == "POST":
                return self._submit(json.loads(body))
            return _as_recorded("jobs", list(self.jobs.values()))
        job = next((job for job in self.jobs.values() if parts[1] in (job["submission_id"], job["job_id"])), None)
        if job is None:
            return _as_recorded("no_such_job")
        if parts[2:] == ["stop"]:
            return self._stop(job)
        if method == "DELETE":
            del self.jobs[job["submission_id"]]
            return 200, "application/json", b'{"deleted": true}'
        return _as_recorded("job", job)

    def _submit(self, request: dict[str, Any]) -> tuple[int, str, bytes]:
        submission_id = request["submission_id"]
        if submission_id in self.jobs:
            return _as_recorded("submit_again")
        self.submitted.append(request)
        shown = {key: request.get(key) or {} for key in ("runtime_env", "metadata")}
        entry = self.add(
            submission_id, entrypoint=request["entrypoint"], start_time=int(time.time() * 1000),
            job_id=f"{len(self.jobs) + 2:02x}000000", **shown,
        )  # fmt: skip
        self.runs(entry)
        return _as_recorded("submit")

    def _stop(self, job: dict[str, Any]) -> tuple[int, str, bytes]:
        if job["submission_id"] is None:
            return _as_recorded("stop_of_a_driver")
        if job["status"] in ENDED:
            return _as_recorded("stop_of_a_finished_job")
        if not self.ignores_stops:
            self.stops.append(job["submission_id"])
            self.end(job["submission_id"], "STOPPED")
        return _as_recorded("stop")

    def _package(self, method: str, uri: str) -> tuple[int, str, bytes]:
        if method == "PUT":
            self.packages.add(uri)
            return _as_recorded("put_package")
        self.kept.add(uri)
        return _as_recorded("package" if uri in self.packages else "no_package")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away is what some tests are about."""


@contextmanager
def ray_jobs_server(token: str | None = None) -> Iterator[FakeRayJobs]:
    """The cluster, listening until the block ends."""
    cluster = FakeRayJobs(token)
    server = _Server(("127.0.0.1", 0), _handler(cluster))
    cluster.url = f"http://127.0.0.1:{server.server_port}"
    with Serving(server):
        try:
            yield cluster
        finally:
            cluster.closing.set()


def _handler(cluster: FakeRayJobs) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            request = f"{self.command} {self.path}"
            cluster.requests.append(request)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = cluster.instead(request)
            if fault is not None:
                fault(cluster, self)
                return
            refusal = self._refusal()
            status, content_type, said = refusal or cluster.answer(self.command, self.path, body)
            fault = cluster.afterwards(request)
            if fault is not None:
                fault(cluster, self)
            else:
                _send(self, status, content_type, said)

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def _refusal(self) -> tuple[int, str, bytes] | None:
            given = self.headers.get("Authorization")
            if cluster.token is None or given == f"Bearer {cluster.token}":
                return None
            return _as_recorded("no_token" if given is None else "wrong_token")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Nothing: the tests ask ``requests``."""

    return Handler


def _as_recorded(name: str, body: object = None) -> tuple[int, str, bytes]:
    answer = recorded(name)
    said = answer["body"] if body is None else body
    text = said if isinstance(said, str) else json.dumps(said)
    return answer["status"], answer["content_type"] or "", text.encode()


def _send(handler: BaseHTTPRequestHandler, status: int, content_type: str, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", content_type)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
