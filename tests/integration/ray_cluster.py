"""A user's own Ray cluster for tests: ``ray[default]`` in an environment of its own, on free loopback ports.

It is ended by its processes, never by ``ray stop``, which ends every Ray of the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.needs import missing
from tidegauge.cluster.ray_service.node_command import QUIET, free_ports
from tidegauge.osproc.processes import descendants, is_alive
from tidegauge_scheduler_hooks.ports import SchedulerError
from tidegauge_scheduler_hooks.ray_jobs.api import RayJobsApi

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".rayjobs" / "venv" / "bin" / "python"
INSIDE = Path(__file__).parent / "ray_jobs_inside"
READY_WITHIN_S = 240.0
STARTED, TIMED_OUT = "Ray runtime started", "timed out during startup"
"""What ``ray start`` says."""


class RayUser:
    """Somebody who uses the cluster, by Ray's own ``JobSubmissionClient``."""

    def __init__(self, url: str, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [PYTHON, INSIDE / "user.py", url], env=environ, cwd="/", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def call(self, name: str, **arguments: Any) -> Any:
        """What the client's method returns. ``AssertionError`` with its words if it raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        assert "error" not in said, f"{name}: {said['error']}"
        return said["value"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class RayCluster:
    """A cluster of one node, its dashboard ready."""

    url: str
    token_file: Path
    folder: Path
    user: RayUser

    def api(self, token_file: Path | None = None) -> RayJobsApi:
        # Nobody here tries again when the dashboard stood still for the usual 15 s.
        return RayJobsApi(self.url, token_file=token_file or self.token_file, timeout_s=60.0)


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Started, and ended with everything below it. Skips, or fails in CI, where Ray with its dashboard is missing."""
    if not PYTHON.exists():
        missing("Ray with its dashboard is not installed: say make rayjobs")
    folder = Path(tempfile.mkdtemp(prefix="tg-ray-", dir="/tmp"))  # pytest's own are too deep for Ray's sockets
    token_file = folder / "token"
    token_file.write_text(secrets.token_hex(32))
    token_file.chmod(0o600)
    environ = _environ(token_file)
    with _head(folder, token_file, environ) as url:
        user = RayUser(url, environ)
        try:
            yield RayCluster(url, token_file, folder, user)
        finally:
            user.close()


@contextlib.contextmanager
def _head(folder: Path, token_file: Path, environ: dict[str, str]) -> Iterator[str]:
    """A head that is ready; gives the address of its job API. Ray gives its agents 15 s to start, which they do not
    always do beside other tests, and no setting changes that: then it is started again."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        while True:
            port = free_ports(1)[0]
            with (folder / "log").open("w") as log:
                head = subprocess.Popen(_command(folder, port), env=environ, cwd="/", stdout=log, stderr=log)
            ending = cleanup.enter_context(contextlib.ExitStack())
            ending.callback(_end, head)
            url = f"http://127.0.0.1:{port}"
            if _is_ready(head, RayJobsApi(url, token_file=token_file), folder / "log", deadline_s):
                break
            ending.close()
        yield url


def _environ(token_file: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGAUGE_", "RAY_"))}
    return environ | QUIET | {
        "PATH": f"{PYTHON.parent}:{environ['PATH']}",  # as in an activated environment: entrypoints say `python`
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name: stay on 127.0.0.1
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # On a machine that is busy for a minute Ray takes its own node for dead, and its dashboard ends.
        "RAY_health_check_timeout_ms": "60000",
        "RAY_health_check_failure_threshold": "20",
    }  # fmt: skip


def _command(folder: Path, dashboard_port: int) -> list[str]:
    # The agent's and the metrics' ports are fixed by default and would be another cluster's on the same machine.
    return [
        str(PYTHON), "-m", "ray.scripts.scripts", "start", "--head", "--block",
        "--node-ip-address=127.0.0.1", f"--port={free_ports(1)[0]}",
        "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}",
        f"--dashboard-agent-listen-port={free_ports(1)[0]}", f"--metrics-export-port={free_ports(1)[0]}",
        "--num-cpus=4", "--num-gpus=0", "--resources={\"seat\": 1}", "--object-store-memory=80000000",
        "--no-monitor", "--include-log-monitor=false", "--disable-usage-stats", f"--temp-dir={folder / 'r'}",
    ]  # fmt: skip


def _is_ready(head: subprocess.Popen[bytes], api: RayJobsApi, log: Path, deadline_s: float) -> bool:
    """Waits for all of it: the job API answers before there is a node. False once Ray has given up."""
    while time.monotonic() < deadline_s:
        if head.poll() is not None:
            assert TIMED_OUT in log.read_text(), f"Ray did not start:\n{log.read_text()[-3000:]}"
            return False
        if STARTED in log.read_text():
            with contextlib.suppress(SchedulerError):
                api.jobs()
                return True
        time.sleep(0.1)
    raise AssertionError(f"Ray's job API was not there in {READY_WITHIN_S:.0f} s:\n{log.read_text()[-3000:]}")


def _end(head: subprocess.Popen[bytes]) -> None:
    """By identity, top down: a raylet that sees its parent end would leave its workers to themselves."""
    below = [stat.process for stat in descendants(head.pid)]
    head.kill()
    head.wait()
    deadline_s = time.monotonic() + 60.0
    while living := [process for process in below if is_alive(process)]:
        assert time.monotonic() < deadline_s, f"still there: {living}"
        for process in living:
            below += [stat.process for stat in descendants(process.pid)]
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)
