"""The hand that starts a node's services again: what systemd does by ``deploy/systemd/*.service``, in part.

``User=``, ``CapabilityBoundingSet=``, ``NoNewPrivileges=`` and ``RestartSec=`` are the unit's own; ``Restart=always``,
no limit on starts, and ``KillMode=mixed``: when the main process has ended, whatever else the unit started is killed
before it is started again. File systems and filters of system calls are as everywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chaos.network import Host

UNITS = Path(__file__).parents[2] / "deploy/systemd"
STOP_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 20.0
WAKE_EVERY_S = 0.5
OWNER_MARK = "TIDEGAUGE_CHAOS_OWNER"
"""In the environment of what is not the node's own service (another unit, what users start): whose it is."""


class UnitFile(NamedTuple):
    """What a unit of ``deploy/systemd`` says."""

    user: str
    group: str
    capabilities: Sequence[str]
    """As setpriv(1) spells them."""
    restart_s: float

    def become(self) -> list[str]:
        """The command in front of one that is to have the unit's user and rights."""
        bounds = ",".join(["-all", *(f"+{name}" for name in self.capabilities)])
        return ["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs", f"--reuid={self.user}",
                f"--regid={self.group}", "--clear-groups"]  # fmt: skip


def read_unit(name: str) -> UnitFile:
    """Raises ``AssertionError`` where the unit does not say what is simulated here."""
    said = dict(re.findall(r"^(\w+)=(.*)$", (UNITS / name).read_text(), re.MULTILINE))
    assert (said["Restart"], said["NoNewPrivileges"]) == ("always", "yes"), name
    names = said["CapabilityBoundingSet"].split()
    capabilities = [one.removeprefix("CAP_").lower() for one in names]
    return UnitFile(said["User"], said["Group"], capabilities, float(said["RestartSec"]))


class Unit:
    """``command`` on one host, kept running from ``start`` to ``stop`` as the unit called ``name`` says.

    ``owner`` tells its processes from those of the host's other units and of users; without one, all that bear no mark
    are its own.
    """

    def __init__(
        self, name: str, host: Host, command: Sequence[str], environ: Mapping[str, str], log: Path, *, owner: str = ""
    ) -> None:
        self._host = host
        self._owner = owner
        self.file = read_unit(name)
        # As a service manager starts it, it leads a session: then ``up`` becomes the supervisor itself.
        self._command = host.command(["setsid", *self.file.become(), *command])
        self._environ = environ  # the very mapping: what is changed in it counts from the next start on
        self._log = log
        self._wanted = threading.Event()
        self._wait = threading.Condition()
        self._keeper: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def is_wanted(self) -> bool:
        """Whether it is started, and not stopped since."""
        return self._wanted.is_set()

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
        """All processes of the unit."""
        return owned_pids(self._host, self._owner)

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
                    self._command, env={**self._environ, **({OWNER_MARK: self._owner} if self._owner else {})},
                    cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            self._wait_for(self._process)
            self.kill_rest()
            with self._wait:
                self._wait.wait_for(lambda: not self._wanted.is_set(), self.file.restart_s)


def owned_pids(host: Host, owner: str) -> list[int]:
    """Of whoever is called so; without a name, of the node's own service."""
    return [pid for pid in host.pids() if _owner(pid) == owner and not _is_entering(pid)]


def _owner(pid: int) -> str:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    mark = f"{OWNER_MARK}=".encode()
    return next((one.removeprefix(mark).decode() for one in environ if one.startswith(mark)), "")


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
