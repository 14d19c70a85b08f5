"""Containers for tests, made of nothing but namespaces, as enroot, Apptainer, Docker and Slurm's job_container are."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import tidegauge
from integration.needs import missing

COLLECTOR = Path(tidegauge.__file__).parents[1]
RANK = Path(__file__).with_name("container_rank.py")
PYTHON = Path(sys.executable).resolve()
INSIDE = "/opt"
"""Where the interpreter is mounted: users of a container need not reach the folder that it is in."""

_AS_USER = "setpriv --reuid {uid} --regid {uid} --clear-groups"
_NAMESPACES = "unshare --mount --pid --fork --kill-child --mount-proc --propagation private"
LAYOUTS = {
    # The mounts are the admin's: Docker, a Kubernetes pod, Slurm's job_container/tmpfs (which has no pid namespace).
    "admin": f"{_NAMESPACES} sh -c '{{setup}}; exec {_AS_USER} sh -c \"{{command}}; true\"'",
    # All is the user's own, who is root inside: enroot --root, rootless Podman, Apptainer without setuid.
    "user": f"{_AS_USER} unshare --user --map-root-user {_NAMESPACES[8:]} sh -c '{{setup}}; {{command}}; true'",
}


@dataclass
class Container:
    """A shell that lives in namespaces of its own, with an own tmpfs on /dev/shm, and what it runs."""

    process: subprocess.Popen[str]

    def line(self) -> list[str]:
        """The next line that is printed inside, in words. Fails when the container ends instead."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, f"the container ended with {self.process.wait(60)}"
        return said.split()

    def end(self) -> None:
        """End everything in it: when this returns no process of it is left for anybody to look into."""
        inner = self._first_inside()
        if inner is not None:
            # The parent's end is its end only later, or never: who becomes another user forgets that it was to be so.
            signal.pidfd_send_signal(inner, signal.SIGKILL)
            poll = select.poll()
            poll.register(inner, select.POLLIN)
            ended = poll.poll(60_000)  # after all others of its pid namespace
            os.close(inner)
            assert ended, "the container does not end"
        self.process.kill()
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _first_inside(self) -> int | None:
        """A handle of the first process in it; ``None`` before it began and when it has ended."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            pids = children.read_text()
            handle = os.pidfd_open(int(pids.split()[0]))
        except (OSError, IndexError):
            return None
        if children.read_text() == pids:
            return handle
        os.close(handle)  # it ended meanwhile, and its pid may be anybody's
        return None

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


def rank_command(job_id: str, *, run_dir: Path | str) -> str:
    """Shell words that run ``container_rank.py``; its standard input is the container's."""
    return f"TIDEGAUGE_RUN_DIR={run_dir} {INSIDE}/bin/{PYTHON.name} {RANK} {job_id}"


def start_container(layout: str, command: str, *, uid: int, setup: str = "true") -> Container:
    """``command`` in a container of one of the ``LAYOUTS``; ``setup`` runs before it, as root of the container.

    Neither may hold quotes.
    """
    tmpfs = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
    inner = LAYOUTS[layout].format(uid=uid, setup=f"set -e; {tmpfs}; {setup}; set +e", command=command)
    prefix = PYTHON.parents[1]
    outer = f"mount --bind {prefix} {INSIDE} && exec {inner}"
    environ = {**os.environ, "PYTHONPATH": str(COLLECTOR), "LD_LIBRARY_PATH": f"{INSIDE}/lib"}
    return Container(
        subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", outer],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
        )
    )  # fmt: skip


def need_namespaces() -> None:
    """Skip, or fail in CI, where containers cannot be made."""
    if os.geteuid() != 0:
        missing("making containers of other users takes root")
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        missing("unshare and setpriv (util-linux) are missing")
    probe = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode != 0:
        missing(f"no namespaces can be made here: {probe.stderr.strip()}")
