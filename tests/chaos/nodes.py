"""One node of the cluster: its host, its services under their units, its processes by what they do."""

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
from chaos.unit import OWNER_MARK, Unit, owned_pids
from integration.security.opener_rig import SERVICE
from integration.security.users import ADA, MALLORY
from tidegauge.cluster.ray_service.agent_place import AgentKind, look_at_place
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
ETC = "etc"
"""In the site's folder; every node has the files in it."""
USERS = {"tidegauge": SERVICE, "ada": ADA, "mallory": MALLORY}
"""The service's, the one who trains, and the one who wishes ill."""


def node_name(number: int) -> str:
    return f"node{number}"


class Node:
    """``cut`` and ``heal`` its link, ``up``, ``down`` and ``crash`` its service, ``pids`` of its parts."""

    def __init__(
        self, number: int, root: Path, network: Network, environ: Mapping[str, str], installs: Sequence[Path]
    ) -> None:
        self.number = number
        self.name = node_name(number)
        self.is_head = number == 0
        self.folder = root / f"n{number}"
        self.run_dir = self.folder / "run"
        self.run_dir.mkdir(parents=True)
        self.run_dir.chmod(0o1777)  # as tidegauge.tmpfiles.conf has it
        (self.run_dir / "jobs").mkdir()
        self.state_dir = self.folder / "s"
        self.state_dir.mkdir(mode=0o700)
        os.chown(self.state_dir, SERVICE, SERVICE)
        self.files = StateFiles(self.state_dir)
        self._network = network
        self.host = Host(self.name, root / ETC, installs=installs)
        self.address = network.plug_in(self.host, FIRST_ADDRESS + number)
        self.environ = {name: value for name, value in environ.items() if not name.startswith(("TIDEGAUGE_", "RAY_"))}
        self.environ |= {
            "TIDEGAUGE_STATE_DIR": str(self.state_dir),
            "TIDEGAUGE_RUN_DIR": str(self.run_dir),
            "TIDEGAUGE_LISTEN_HOST": "0.0.0.0",
            "TIDEGAUGE_CLUSTER": "chaos",
            "TIDEGAUGE_OPENER_SOCKET": str(self.opener_socket),
            **home_of("tidegauge"),
        }
        head = f"{network.address.rpartition('.')[0]}.{FIRST_ADDRESS}"
        up = [sys.executable, "-m", "tidegauge.cli.main", "up", "--foreground", *self._arguments(head, root)]
        name = "tidegauge-head.service" if self.is_head else "tidegauge-agent.service"
        self.unit = Unit(name, self.host, up, self.environ, self.folder / "unit.log")
        self.opener_socket.parent.mkdir(mode=0o750)
        os.chown(self.opener_socket.parent, 0, SERVICE)
        opener = [sys.executable, "-m", "tidegauge.opener", "--user", "tidegauge", "--socket", str(self.opener_socket)]
        self.opener = Unit(
            "tidegauge-opener.service", self.host, [*opener, "--run-dir", str(self.run_dir)],
            {name: self.environ[name] for name in ("PATH", "PYTHONPATH") if name in self.environ},
            self.folder / "opener.log", owner="opener",
        )  # fmt: skip

    @property
    def opener_socket(self) -> Path:
        return self.folder / "opener" / "socket"

    @property
    def pid(self) -> int:
        """Of a process that has all the host's namespaces, for as long as there is a host."""
        return self.host.pid

    @property
    def metrics_url(self) -> str:
        return f"http://{self.address}:{METRICS_PORT}"

    def up(self) -> None:
        """Start the service, and the opener if it does not run, and start each again whenever it ends. Returns at
        once."""
        if not self.opener.is_wanted:
            self.opener.start()
        self.unit.start()

    def down(self) -> None:
        """Stop the service as an admin does; the opener goes on."""
        self.unit.stop()

    def cut(self) -> None:
        self._network.cut(self.host)

    def heal(self) -> None:
        self._network.heal(self.host)

    def run_in(self, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
        """A command on the host, in its namespaces, to its end (60 s unless ``timeout_s`` says otherwise)."""
        return self.host.run(command, **options)

    def start_job(
        self, command: Sequence[str | Path], environ: Mapping[str, str], log: Path, *, user: str,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start what is a user's, and none of the service's. ``command`` may begin as root: it becomes the user."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.host.command(command), env={**environ, **home_of(user), OWNER_MARK: user}, cwd="/", stdin=stdin,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def pids(self, role: str) -> list[int]:
        """Pids, as this machine numbers them, of ``agent`` (the engine's), ``stand-in`` (the agent at work beside it),
        ``coordinator``, ``notifier``, ``raylet``, ``gcs``, ``supervisor`` or ``opener``; empty while there is none."""
        if role in ("supervisor", "opener"):
            return (self.unit if role == "supervisor" else self.opener).main_pids()
        if role == "stand-in":
            place = look_at_place(Path(f"/proc/{self.pid}/root") / self.files.agent_place.relative_to("/"))
            if not place.is_held or place.holder is None or place.holder.kind is not AgentKind.STAND_IN:
                return []
            return [pid for pid in self.unit.pids() if number_inside(pid) == place.holder.process.pid]
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
        """SIGKILL to every process of the services at once, as a host that fails; the units start them again."""
        _kill_all(self.service_pids())
        for unit in (self.unit, self.opener):
            unit.kill_rest()

    def service_pids(self) -> list[int]:
        """All processes of the node's units."""
        return self.unit.pids() + self.opener.pids()

    def power_off(self) -> None:
        """The same, and nothing is started again before ``up``."""
        for unit in (self.unit, self.opener):
            unit.abandon()
        self.crash()
        for unit in (self.unit, self.opener):
            unit.stop()

    def owned_pids(self, user: str) -> list[int]:
        """Of what ``start_job`` started for this user."""
        return owned_pids(self.host, user)

    def logs(self) -> str:
        """The ends of the service's logs. The state may be on a disk of the node's own (``disks``)."""
        logs = Path(f"/proc/{self.pid}/root") / self.files.logs.relative_to("/")
        paths = [self.folder / "unit.log", self.folder / "opener.log", *sorted(logs.glob("*.log"))]
        return "\n".join(f"--- {self.name} {path.name}\n{_tail(path)}" for path in paths if path.exists())

    def close(self) -> None:
        """The host ends, with everything on it: nothing needs to be asked."""
        self.host.close()

    def _arguments(self, head: str, root: Path) -> list[str]:
        if self.is_head:
            return ["--node-address", self.address]
        token = root / "n0" / "s" / "token"
        return ["--join", f"{head}:{ENGINE_PORT}", "--token-file", str(token), "--node-address", self.address]


def home_of(user: str) -> dict[str, str]:
    """What a login has in its environment."""
    return {"HOME": "/nonexistent", "USER": user, "LOGNAME": user}


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
