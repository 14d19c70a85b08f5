"""Hosts and the network between them, out of nothing but namespaces: nothing is left of them once this process ends.

A host is a set of namespaces (network, mounts, processes, host name) that lives as long as its first process, a
``cat`` on a pipe of ours: when we end, however that happens, the pipe ends, the ``cat`` ends, and the kernel ends every
process of the host and takes its interfaces away. Nothing is made in the machine's own network namespace.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tidegauge.osproc.processes import all_processes

Answer = TypeVar("Answer")

CLONE_NEWNET = 0x40000000
"""setns(2)"""
NAMESPACES = ("--net", "--mount", "--uts", "--pid")
SUBNET = "10.77.0"
PREFIX_BITS = 24
SHM_BYTES = 1 << 30
READY_TIMEOUT_S = 60.0
CALLERS = 4

_FIRST_PROCESS = """
set -e
hostname "$0"; etc=$2; closed=$3
mount -t tmpfs -o mode=1777,size="$1" tmpfs /dev/shm
mount --bind "$etc" /etc
shift 3
if [ -n "$closed" ]; then
    # An interpreter that lies where only root may look (pyenv's below /root) is for every user here.
    for install in "$@"; do mkdir -p "$etc.installs$install"; mount --bind "$install" "$etc.installs$install"; done
    mount -t tmpfs -o mode=755 tmpfs "$closed"
    for install in "$@"; do mkdir -p "$install"; mount --bind "$etc.installs$install" "$install"; done
fi
ip link set lo up
trap "" CHLD
echo ready
exec cat
"""
"""With SIGCHLD ignored the kernel itself buries the orphans that come to the first process."""


class NoNamespacesError(Exception):
    """Hosts cannot be made here; the message says why."""


def need_namespaces() -> None:
    """Raises ``NoNamespacesError``."""
    if os.geteuid() != 0:
        raise NoNamespacesError("making hosts out of namespaces takes root")
    for tool in ("unshare", "nsenter", "ip", "setsid", "setpriv"):
        if shutil.which(tool) is None:
            raise NoNamespacesError(f"{tool} is missing (util-linux, iproute2: scripts/system_packages.sh)")
    made = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "--mount-proc", "ip", "link", "add", "type", "bridge"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        raise NoNamespacesError(f"no namespaces, or no bridge, can be made here: {made.stderr.strip()}")


def write_etc(folder: Path, numbers: Mapping[str, int], users: Mapping[str, int]) -> None:
    """What hosts have as /etc, a copy of the machine's: what is installed meanwhile replaces files, and a mount
    upon one goes with it. ``hosts`` knows them by the numbers of their addresses, so that nobody else answers for
    names; these users, each with a group of the same name and number, are the only ones besides the machine's own."""
    shutil.copytree("/etc", folder, symlinks=True)
    lines = ["127.0.0.1 localhost", *(f"{SUBNET}.{number} {name}" for name, number in numbers.items())]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    for name, more in (("passwd", "x:{0}:{0}::/nonexistent:/usr/sbin/nologin"), ("group", "x:{0}:")):
        known = Path("/etc", name).read_text().splitlines()
        kept = [line for line in known if line.partition(":")[0] not in users]
        lines = [f"{user}:{more.format(uid)}" for user, uid in users.items()]
        (folder / name).write_text("\n".join([*kept, *lines]) + "\n")


class Host:
    """One machine: its own network, mounts (a /dev/shm of its own), process ids and host name; files are shared."""

    def __init__(self, name: str, etc: Path, *, installs: Sequence[Path] = ()) -> None:
        """``etc`` is of ``write_etc``. All users of the host can run what is below ``installs``."""
        self.name = name
        closed = sorted({folder for folder in map(_closed_above, installs) if folder is not None})
        assert len(closed) <= 1, f"interpreters lie in several folders that are closed to users: {closed}"
        self._holder = subprocess.Popen(
            ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc",
             "--propagation", "private", "sh", "-c", _FIRST_PROCESS, name, str(SHM_BYTES), etc,
             str(closed[0] if closed else ""), *(one for one in installs if _closed_above(one) is not None)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise NoNamespacesError(f"the host {name} did not start")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        self.pid = int(children.split()[0])
        """Of the first process, as this machine sees it."""
        self._pid_namespace: str | None = os.readlink(f"/proc/{self.pid}/ns/pid")

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """``command`` as a command of this machine that runs it on the host. A signal that ends it ends both."""
        return ["nsenter", f"--target={self.pid}", *NAMESPACES, "--", *map(str, command)]

    def run(
        self, command: Sequence[str | Path], *, timeout_s: float = READY_TIMEOUT_S, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run it on the host to its end. ``options`` are ``subprocess.run``'s."""
        options = {"capture_output": True, "stdin": subprocess.DEVNULL, "cwd": "/", **options}
        return subprocess.run(self.command(command), text=True, timeout=timeout_s, check=False, **options)

    def pids(self) -> list[int]:
        """Living processes of the host, by this machine's numbers; the first one excepted."""
        found: list[int] = []
        if (namespace := self._pid_namespace) is None:
            return found
        for stat in all_processes():
            pid = stat.process.pid
            if not stat.ended and pid != self.pid and _link(f"/proc/{pid}/ns/pid") == namespace:
                found.append(pid)
        return found

    def close(self) -> None:
        """End every process of the host."""
        self._pid_namespace = None  # its number is soon another one's, whose processes ``pids`` must not find
        for pipe in (self._holder.stdin, self._holder.stdout):
            assert pipe is not None
            pipe.close()
        self._holder.kill()  # takes the first process with it, and that one all others
        self._holder.wait(READY_TIMEOUT_S)


class Network:
    """A bridge on a host of its own, which others are plugged into; and the place from which tests look at them."""

    def __init__(self, etc: Path) -> None:
        self._switch = Host("switch", etc)
        self.address = f"{SUBNET}.1"
        self._ip("link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        self._ip("addr", "add", f"{self.address}/{PREFIX_BITS}", "dev", "bridge")
        self._ip("link", "set", "bridge", "up")
        # Threads that live in the switch's network: whatever they open or start is there too.
        self._inside = ThreadPoolExecutor(CALLERS, "chaos-outpost", initializer=self._enter)

    def plug_in(self, host: Host, number: int) -> str:
        """Give ``host`` an interface and the address with this number, which is returned."""
        port, address = _port(host), f"{SUBNET}.{number}"
        self._ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        self._ip("link", "set", port, "master", "bridge", "up")
        for command in (["addr", "add", f"{address}/{PREFIX_BITS}", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            _checked(host.run(["ip", *command]))
        return address

    def cut(self, host: Host) -> None:
        """Pull the host's plug."""
        self._ip("link", "set", _port(host), "down")

    def heal(self, host: Host) -> None:
        self._ip("link", "set", _port(host), "up")

    def call(self, function: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        """What ``function`` returns or raises when it is called by a thread in this network; its children are too."""
        return self._inside.submit(function, *arguments, **named).result()

    def close(self) -> None:
        self._inside.shutdown()
        self._switch.close()

    def _enter(self) -> None:
        enter_network(self._switch)

    def _ip(self, *arguments: str) -> None:
        # Only the network is entered: numbers of processes stay this machine's.
        command = ["nsenter", f"--target={self._switch.pid}", "--net", "--", "ip", *arguments]
        _checked(subprocess.run(command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False))


def enter_network(host: Host) -> None:
    """The calling thread is in the host's network from now on; for a thread that does nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{host.pid}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def _closed_above(folder: Path) -> Path | None:
    """The outermost folder above that only its owner passes through."""
    return next((one for one in reversed(folder.parents) if not one.stat().st_mode & 0o001), None)


def _port(host: Host) -> str:
    return f"to-{host.name}"[:15]


def _checked(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args}: {done.stderr}"


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
