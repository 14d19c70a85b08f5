"""The hand that starts a node's service again: what systemd does by ``deploy/systemd/*.service``, no more and no less.

``Restart=always``, ``RestartSec=5``, no limit on starts, and ``KillMode=mixed``: when the main process has ended,
whatever else the unit started is killed before it is started again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from chaos.network import Host

RESTART_S = 5.0
STOP_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 20.0
WAKE_EVERY_S = 0.5
JOB_MARK = "TIDEGAUGE_CHAOS_JOB"
"""In the environment of what users start on a host: it is not the unit's, and survives it."""


class Unit:
    """``tidegauge up --foreground`` on one host, kept running from ``start`` to ``stop``."""

    def __init__(self, host: Host, arguments: list[str], environ: Mapping[str, str], log: Path) -> None:
        self._host = host
        # As a service manager starts it, it leads a session: then it becomes the supervisor itself.
        command = ["setsid", sys.executable, "-m", "tidegauge.cli.main", "up", "--foreground", *arguments]
        self._command = host.command(command)
        self._environ = environ  # the very mapping: what is changed in it counts from the next start on
        self._log = log
        self._wanted = threading.Event()
        self._wait = threading.Condition()
        self._keeper: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        assert self._keeper is None, "it is started"
        self._wanted.set()
        self._keeper = threading.Thread(target=self._keep, name=f"unit-{self._host.name}", daemon=True)
        self._keeper.start()

    def stop(self) -> None:
        """As ``systemctl stop``: asked to end, then killed; not started again."""
        self._give_up()
        process, keeper = self._process, self._keeper
        if process is not None:
            for pid in self.main_pids():
                _signal(pid, signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill_rest()
        if keeper is not None:
            keeper.join(STOP_TIMEOUT_S + KILL_TIMEOUT_S)
        self._keeper = None

    def abandon(self) -> None:
        """Do not start it again; its host is about to end."""
        self._give_up()

    def main_pids(self) -> list[int]:
        """The unit's main process: the supervisor, or what is about to become it."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        children = _read(f"/proc/{process.pid}/task/{process.pid}/children").split()
        return [int(child) for child in children]

    def pids(self) -> list[int]:
        """All processes of the unit: whatever runs on the host, but for what users started."""
        mark = f"{JOB_MARK}=".encode()
        return [pid for pid in self._host.pids() if mark not in _environ(pid) and not _is_entering(pid)]

    def kill_rest(self) -> None:
        """SIGKILL to every process of the unit until there is none."""
        deadline_s = time.monotonic() + KILL_TIMEOUT_S
        while (left := self.pids()) and time.monotonic() < deadline_s:
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        """``nsenter`` stops itself when what it started is stopped, and would not see it end after that."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WAKE_EVERY_S)
                return
            if not any(_is_stopped(pid) for pid in self.main_pids()):
                _signal(process.pid, signal.SIGCONT)

    def _give_up(self) -> None:
        with self._wait:
            self._wanted.clear()
            self._wait.notify_all()

    def _keep(self) -> None:
        while self._wanted.is_set():
            self.starts += 1
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, env=self._environ, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            self._wait_for(self._process)
            self.kill_rest()
            with self._wait:
                self._wait.wait_for(lambda: not self._wanted.is_set(), RESTART_S)


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _is_entering(pid: int) -> bool:
    """Whether it is a command of ``Host.run`` that has not begun."""
    return _read(f"/proc/{pid}/comm").strip() == "nsenter"


def _is_stopped(pid: int) -> bool:
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] == ["T"]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
