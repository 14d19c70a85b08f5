"""A real service for tests: ``tidegauge up`` in a short folder of its own, on free ports, ended with its processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tidegauge.cli.errors import BAD_NEWS, FINE
from tidegauge.cluster.api import client
from tidegauge.cluster.service_record import ServiceRecord, StateFiles, read_address, read_record
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.processes import all_processes, descendants, session_members

T = TypeVar("T")

DEADLINE_S = 60.0
COMMAND_TIMEOUT_S = 240.0
ANSWER_TIMEOUT_S = 20.0
"""For an answer of the API: it may stand still for longer than a person would wait."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
"""Between two looks of ``eventually``."""


def eventually(look: Callable[[], T | None], what: str, *, within_s: float = DEADLINE_S) -> T:
    """What ``look`` returns as soon as that is true. ``AssertionError`` with the last look if it never is.

    A refused connection counts as "not yet". A look that takes long, such as a command, is not begun again at once:
    what it looks at needs the processors.
    """
    deadline_s = time.monotonic() + within_s
    last: object = None
    is_last = False
    while not is_last:
        began_s = time.monotonic()
        is_last = began_s >= deadline_s  # a look is begun after the time is over: this process may have stood
        try:
            last = look()
        except client.ApiError as error:
            last = error
        else:
            if last:
                return last
        time.sleep(min(max(MIN_PAUSE_S, 2 * (time.monotonic() - began_s)), MAX_PAUSE_S))
    raise AssertionError(f"{what}: not within {within_s:.0f} s; the last look gave {last!r}")


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Raises ``ApiError`` with what it said if it printed none."""
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise client.ApiError(f"exit status {self.code}: {self.err}") from error


def told(call: Callable[[], Finished]) -> Finished:
    """A command that has ended with the coordinator's answer, good news or bad. It waits five seconds for one."""

    def answer() -> Finished:
        done = call()
        if done.code not in (FINE, BAD_NEWS):
            raise client.ApiError(done.err)
        return done

    return eventually(answer, "an answer of the coordinator")


def answered(call: Callable[[], Finished]) -> Any:
    """The same, of a command that answers in JSON: that."""
    return told(call).json


class Service:
    """One node's service: its folders, its commands, its processes. ``close`` leaves nothing behind."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        # pytest's own folders are too deep for the engine's sockets.
        self.root = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
        self.run_dir = self.root / "run"
        self.run_dir.mkdir()
        self.files = StateFiles(self.root / "s")
        self.environ = {name: value for name, value in environ.items() if not name.startswith(("TIDEGAUGE_", "RAY_"))}
        self.environ |= {
            "TIDEGAUGE_STATE_DIR": str(self.files.root),
            "TIDEGAUGE_RUN_DIR": str(self.run_dir),
            "TIDEGAUGE_ENGINE_PORT": "0",
            "TIDEGAUGE_API_PORT": "0",
            "TIDEGAUGE_METRICS_PORT": "0",
            "TIDEGAUGE_CLUSTER": "test",
        }

    def call(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "tidegauge.cli.main", *arguments], env={**self.environ, **(environ or {})},
            cwd="/", capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
        return Finished(done.returncode, done.stdout, done.stderr)

    def up(self, *arguments: str) -> Finished:
        done = self.call("up", *arguments)
        assert done.code == 0, f"{done.err}\n{self.logs()}"
        return done

    @property
    def record(self) -> ServiceRecord:
        record = read_record(self.files)
        assert record is not None, "the service is not up"
        return record

    def get(self, path: str) -> dict[str, Any]:
        """From the coordinator's API, wherever it is right now. Raises ``ApiError``."""
        return client.get(self._api_url(), path, timeout_s=ANSWER_TIMEOUT_S)

    def answer(self, path: str) -> dict[str, Any]:
        """The same, as soon as the coordinator answers: a command would cost a new Python for each look."""
        return eventually(lambda: self.get(path), f"an answer to {path}")

    def get_text(self, path: str) -> str:
        """A page that is not JSON. Raises ``ApiError``."""
        return client.get_bytes(self._api_url(), path, timeout_s=ANSWER_TIMEOUT_S).decode()

    def _api_url(self) -> str:
        url = read_address(self.files.api)
        if url is None:
            raise client.ApiError("no coordinator has announced itself")
        return url

    def processes(self) -> list[ProcStat]:
        """Living processes below the supervisor."""
        return [stat for stat in descendants(self.record.supervisor.pid) if not stat.ended]

    def agents(self) -> list[int]:
        """Pids of the node agents."""
        return self.actors("AgentActor")

    def coordinators(self) -> list[int]:
        return self.actors("CoordinatorActor")

    def actors(self, kind: str) -> list[int]:
        """Pids of the actors of a class, by the title that Ray gives to them. A child of one has it, too, until it is
        the command that it is to be."""
        titled = [one for one in self.processes() if _title(one.process.pid).startswith(f"ray::{kind}")]
        pids = {one.process.pid for one in titled}
        return [one.process.pid for one in titled if one.parent_pid not in pids]

    def pid_of(self, name: str) -> int:
        """The one process below the supervisor with this ``comm``."""
        (pid,) = [stat.process.pid for stat in self.processes() if stat.name == name]
        return pid

    def traces(self, record: ServiceRecord) -> list[str]:
        """Processes that are or name this service: its session, and any command line with its folder in it."""
        members = {stat.process.pid for stat in session_members(record.supervisor)}
        named = {stat.process.pid for stat in all_processes() if str(self.root) in _title(stat.process.pid)}
        return [f"{pid} {_title(pid)[:80]}" for pid in sorted(members | named)]

    def logs(self) -> str:
        paths: Sequence[Path] = sorted(self.files.logs.glob("*")) if self.files.logs.is_dir() else []
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in paths)

    def kill(self) -> None:
        """SIGKILL for all of its processes, as if its host had lost power."""
        record = self.record
        for process in [record.supervisor, *(stat.process for stat in self.processes())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not self.traces(record), "all of its processes are gone")

    def close(self) -> None:
        self.call("down")
        shutil.rmtree(self.root, ignore_errors=True)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
