"""One node of the cluster: its host, its service under a unit, its processes by what they do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.network import Host, Network
from chaos.unit import JOB_MARK, Unit
from tidegauge.cluster.service_record import StateFiles

ROLES = {
    "agent": "ray::AgentActor",
    "coordinator": "ray::CoordinatorActor",
    "notifier": "ray::NotifierActor",
}
"""By the title that Ray gives to an actor's process."""
PROGRAMS = {"raylet": "raylet", "gcs": "gcs_server"}
"""By the kernel's name of the process."""
ENGINE_PORT, API_PORT, METRICS_PORT = 6399, 9495, 9494
FIRST_ADDRESS = 11
HOSTS_FILE = "hosts"
"""In the site's folder; every node has it as /etc/hosts."""


def node_name(number: int) -> str:
    return f"node{number}"


class Node:
    """``cut`` and ``heal`` its link, ``up``, ``down`` and ``crash`` its service, ``pids`` of its parts."""

    def __init__(self, number: int, root: Path, network: Network, environ: Mapping[str, str]) -> None:
        self.number = number
        self.name = node_name(number)
        self.is_head = number == 0
        self.folder = root / f"n{number}"
        self.run_dir = self.folder / "run"
        self.run_dir.mkdir(parents=True)
        self.state_dir = self.folder / "s"
        self.files = StateFiles(self.state_dir)
        self._network = network
        self.host = Host(self.name, root / HOSTS_FILE)
        self.address = network.plug_in(self.host, FIRST_ADDRESS + number)
        self.environ = {name: value for name, value in environ.items() if not name.startswith(("TIDEGAUGE_", "RAY_"))}
        self.environ |= {
            "TIDEGAUGE_STATE_DIR": str(self.state_dir),
            "TIDEGAUGE_RUN_DIR": str(self.run_dir),
            "TIDEGAUGE_LISTEN_HOST": "0.0.0.0",
            "TIDEGAUGE_CLUSTER": "chaos",
        }
        head = f"{network.address.rpartition('.')[0]}.{FIRST_ADDRESS}"
        self.unit = Unit(self.host, self._arguments(head, root), self.environ, self.folder / "unit.log")

    @property
    def pid(self) -> int:
        """Of a process that has all the host's namespaces, for as long as there is a host."""
        return self.host.pid

    @property
    def metrics_url(self) -> str:
        return f"http://{self.address}:{METRICS_PORT}"

    def up(self) -> None:
        """Start the service, and start it again whenever it ends. Returns at once."""
        self.unit.start()

    def down(self) -> None:
        """Stop the service as an admin does."""
        self.unit.stop()

    def cut(self) -> None:
        self._network.cut(self.host)

    def heal(self) -> None:
        self._network.heal(self.host)

    def run_in(self, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
        """A command on the host, in its namespaces, to its end (60 s unless ``timeout_s`` says otherwise)."""
        return self.host.run(command, **options)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``tidegauge`` on the host, with the service's environment."""
        command = [sys.executable, "-m", "tidegauge.cli.main", *arguments]
        return self.run_in(command, env={**self.environ, JOB_MARK: "1"}, timeout_s=60.0)

    def start_job(
        self, command: Sequence[str | Path], environ: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start what is a user's, and none of the service's."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.host.command(command), env={**environ, JOB_MARK: "1"}, cwd="/", stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def pids(self, role: str) -> list[int]:
        """Pids, as this machine numbers them, of ``agent``, ``coordinator``, ``notifier``, ``raylet``, ``gcs`` or
        ``supervisor``; empty while there is none."""
        if role == "supervisor":
            return self.unit.main_pids()
        if role in PROGRAMS:
            return [pid for pid in self.host.pids() if _text(pid, "comm").strip() == PROGRAMS[role]]
        return [pid for pid in self.host.pids() if _text(pid, "cmdline").startswith(ROLES[role])]

    def the_pid(self, role: str) -> int:
        """The one process of that role. Raises ``AssertionError`` if there is none, or more."""
        found = self.pids(role)
        assert len(found) == 1, f"{self.name}: {role} is {found}"
        return found[0]

    def kill(self, role: str) -> int:
        """SIGKILL; which pid it was."""
        pid = self.the_pid(role)
        os.kill(pid, signal.SIGKILL)
        return pid

    def crash(self) -> None:
        """SIGKILL to every process of the service at once, as a host that fails; the unit starts it again."""
        _kill_all(self.unit.pids())
        self.unit.kill_rest()

    def logs(self) -> str:
        """The ends of the service's logs. The state may be on a disk of the node's own (``disks``)."""
        logs = Path(f"/proc/{self.pid}/root") / self.files.logs.relative_to("/")
        paths = [self.folder / "unit.log", *sorted(logs.glob("*.log"))]
        return "\n".join(f"--- {self.name} {path.name}\n{_tail(path)}" for path in paths if path.exists())

    def close(self) -> None:
        """The host ends, with everything on it: nothing needs to be asked."""
        self.host.close()

    def _arguments(self, head: str, root: Path) -> list[str]:
        if self.is_head:
            return ["--node-address", self.address]
        token = root / "n0" / "s" / "token"
        return ["--join", f"{head}:{ENGINE_PORT}", "--token-file", str(token), "--node-address", self.address]


def number_inside(pid: int) -> int:
    """The process's number on its own host, as the service speaks of it; 0 if it is gone."""
    for line in _text(pid, "status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def _kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _tail(path: Path, most: int = 3000) -> str:
    return path.read_text(errors="replace")[-most:]
