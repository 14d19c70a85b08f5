"""The part of Ray's job REST API that the adapter needs: https://docs.ray.io, "Ray Jobs REST API".

The token goes to the configured address alone (``tidegauge.http.client``), and is in no message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidegauge.core.text import one_line
from tidegauge.http.client import HttpAnswer, HttpClient, NoResponseError
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

TIMEOUT_S = 15.0
"""For a whole answer. The longest seen on a busy two-core head was 2 s; Ray waits 5 s for its own parts."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""A failed job carries up to 20,000 characters of its log, so that this holds about 3,000 of them."""
MAX_ERROR_CHARS = 300

FINISHED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
"""The states that a submission never leaves; the others are PENDING and RUNNING."""


@dataclass(frozen=True)
class RayJob:
    """One job of the cluster (``JobDetails`` of the API)."""

    submission_id: str | None
    """``None``: a driver that somebody started by hand; Ray can neither stop nor start that."""
    ray_job_id: str | None
    """``RAY_JOB_ID`` of its (last) driver: counted from 01000000 in every cluster. ``None``: it has not connected."""
    status: str
    entrypoint: str
    started_unix_ms: int
    """When it was submitted; stays the same for as long as Ray knows the job."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that the owner set for driver and workers (``env_vars``)."""
        return _texts(self.runtime_env.get("env_vars"))

    @property
    def finished(self) -> bool:
        return self.status in FINISHED


class RayJobsApi:
    """The job API at ``address`` (``http://head:8265``, or ``https://`` with the path of a gateway).

    ``token_file`` holds the cluster's token and is read for every call, so that it may be replaced; ``None``: no token.
    Raises ``ValueError`` for an invalid address. Every method raises ``TemporaryError`` if the answer is missing, late,
    cut off or not Ray's, and ``PermanentError`` if it is a refusal."""

    def __init__(self, address: str, *, token_file: Path | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._client = HttpClient(
            address, timeout_s=timeout_s, max_answer_bytes=MAX_ANSWER_BYTES,
            looks_like="the address of a Ray cluster's job API looks like http://head:8265",
        )  # fmt: skip
        self.address = address.rstrip("/")
        self._token_file = token_file

    def jobs(self) -> list[RayJob]:
        """Every job that the cluster remembers, finished ones and hand-started drivers included."""
        to = "list its jobs"
        answer = self._ask("GET", "/api/jobs/", to=to)
        entries = self._json(answer, to)
        if not isinstance(entries, list):
            raise self._odd(answer, to)
        return [self._job(entry, answer, to) for entry in entries]

    def job(self, job_id: str) -> RayJob | None:
        """The job with this submission id or Ray job id; ``None``: the cluster does not know it."""
        to = f"describe job {job_id}"
        answer = self._ask("GET", f"/api/jobs/{quote(job_id, safe='')}", to=to, may_be_missing=True)
        return None if answer.status == 404 else self._job(self._json(answer, to), answer, to)

    def submit(self, request: Mapping[str, Any]) -> None:
        """Start a job: ``entrypoint``, ``submission_id``, ``runtime_env`` … as the API names them.

        An id that exists is refused; whatever is raised, the job may have been taken."""
        to = f"start job {request['submission_id']}"
        self._json(self._ask("POST", "/api/jobs/", json.dumps(request).encode(), to=to), to)

    def stop(self, submission_id: str) -> bool:
        """Have a job ended: SIGTERM, three seconds later SIGKILL, unless its owner or the cluster set another signal or
        time. Returns at once; false if nothing of it runs."""
        to = f"stop job {submission_id}"
        answer = self._ask("POST", f"/api/jobs/{quote(submission_id, safe='')}/stop", b"", to=to, may_be_missing=True)
        if answer.status == 404:
            return False
        said = self._json(answer, to)
        return isinstance(said, dict) and said.get("stopped") is True

    def delete(self, submission_id: str) -> None:
        """Have the cluster forget a finished job."""
        self._ask("DELETE", f"/api/jobs/{quote(submission_id, safe='')}", to=f"delete job {submission_id}",
                  may_be_missing=True)  # fmt: skip

    def has_package(self, uri: str) -> bool:
        """Whether a package (``gcs://…``) is there; if so the cluster keeps it for another ten minutes."""
        return self._ask("GET", _package_path(uri), to=f"look for {uri}", may_be_missing=True).status != 404

    def put_package(self, uri: str, data: bytes) -> None:
        """Store a package, for good unless ``has_package`` is asked about it."""
        self._ask("PUT", _package_path(uri), data, to=f"take {uri}")

    def _ask(
        self, method: str, path: str, body: bytes | None = None, *, to: str, may_be_missing: bool = False
    ) -> HttpAnswer:
        """The answer, which is 200, or 404 where that ``may_be_missing``; raises for any other."""
        try:
            answer = self._client.ask(method, path, body, {"Accept": "application/json", **self._token()})
        except NoResponseError as error:
            raise TemporaryError(f"{self.address}: cannot {to}: {error}") from error
        self._check(answer, to, may_be_missing)
        return answer

    def _token(self) -> dict[str, str]:
        # Never from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH: in this process those name the token of our own engine.
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise PermanentError(f"the token for {self.address} in {self._token_file} cannot be read: "
                                 f"{error.__class__.__name__}") from error  # fmt: skip
        if not token.isprintable():
            raise PermanentError(f"{self._token_file} holds no token for {self.address}: it has several lines")
        return {"Authorization": f"Bearer {token}"}

    def _check(self, answer: HttpAnswer, to: str, may_be_missing: bool) -> None:
        status = answer.status
        if len(answer.body) > MAX_ANSWER_BYTES:
            raise PermanentError(
                f"{self.address}: cannot {to}: the answer is longer than {MAX_ANSWER_BYTES} bytes; delete finished "
                "jobs there (ray job delete)"
            )
        if status == 200 or (status == 404 and may_be_missing):
            return
        if status == 404:
            raise PermanentError(f"{self.address} has no job API: it needs ray[default] with the dashboard enabled")
        if status in (401, 403):
            hint = (
                "set ray_jobs_token_file"
                if self._token_file is None
                else f"does {self._token_file} belong to that cluster?"
            )
            raise PermanentError(f"{self.address} refuses to {to} (HTTP {status}): {hint}")
        said = f"{self.address}: cannot {to}: HTTP {status}: {_words(answer.body)}"
        # The head passes on what the node said, a refusal too, as an internal error of its own.
        if (status < 500 and status != 429) or b"Request failed with status code 400" in answer.body:
            raise PermanentError(said)
        raise TemporaryError(said)

    def _json(self, answer: HttpAnswer, to: str) -> object:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise self._odd(answer, to) from error

    def _job(self, entry: object, answer: HttpAnswer, to: str) -> RayJob:
        try:
            return _parse(entry)
        except (KeyError, TypeError, ValueError) as error:
            raise self._odd(answer, to) from error

    def _odd(self, answer: HttpAnswer, to: str) -> TemporaryError:
        # Nothing of what it says: it may be a job with the secrets that its owner keeps in variables.
        return TemporaryError(
            f"{self.address}: cannot {to}: unexpected answer ({answer.content_type}, {len(answer.body)} bytes)"
        )


def _parse(entry: Any) -> RayJob:
    """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything that is no job."""
    return RayJob(
        submission_id=None if entry["submission_id"] is None else str(entry["submission_id"]),
        ray_job_id=None if entry["job_id"] is None else str(entry["job_id"]),
        status=str(entry["status"]),
        entrypoint=str(entry["entrypoint"]),
        started_unix_ms=int(entry["start_time"] or 0),
        metadata=_texts(entry["metadata"]),
        runtime_env=dict(entry["runtime_env"] or {}),
    )


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}


def _package_path(uri: str) -> str:
    protocol, _, name = uri.partition("://")
    return f"/api/packages/{quote(protocol, safe='')}/{quote(name, safe='')}"


def _words(body: bytes) -> str:
    """The text of the answer, short: of a stack trace (Ray's form of most failures) the last line."""
    lines = [line.strip() for line in body.decode(errors="replace").splitlines()]
    said = [line for line in lines if len(line) > 1]
    return one_line(said[-1], MAX_ERROR_CHARS) if said else "(nothing)"
