"""Holds a Slurm box from outside: begins it, finds its hosts among the machine's processes, and ends it."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from integration.slurm.box_files import CONTROLLER

SCRIPTS = Path(__file__).resolve().parent / "box_scripts"
READY_WITHIN_S = 180.0
ENDED_WITHIN_S = 60.0
FOUND_WITHIN_S = 30.0


class BoxKeeper:
    """The process that runs a box, and the pipe that the box hangs on: it ends when the last holder of the pipe does.

    ``environ`` is what ``box_scripts/boot.sh`` asks for. What its scripts and daemons say is in ``logs``.
    """

    def __init__(self, environ: Mapping[str, str], logs: Path) -> None:
        self._logs = logs
        with (logs / "keep.log").open("wb") as log:
            # A session of its own: Ctrl-C in the terminal must not end the box before its tests.
            self._process = subprocess.Popen(
                [SCRIPTS / "keep.sh"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environ, start_new_session=True,
            )  # fmt: skip

    def wait_until_ready(self, nodes: Sequence[str]) -> dict[str, int]:
        """The pid of the first process of each host, once every node is idle; else ``AssertionError`` with the logs."""
        output = self._process.stdout
        assert output is not None
        readable, _, _ = select.select([output], [], [], READY_WITHIN_S)
        if not readable or output.readline() != b"ready\n":
            raise AssertionError(f"the Slurm box did not start:\n{self._log_ends()}")
        scripts = {CONTROLLER: ["first.sh"], **{name: ["node.sh", name] for name in nodes}}
        return {host: _find_script(self._process.pid, *script) for host, script in scripts.items()}

    def end(self) -> None:
        """Let go of the pipe, and wait until nothing of the box is left."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(timeout=ENDED_WITHIN_S)

    def _log_ends(self) -> str:
        logs = sorted(self._logs.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in logs)


def children(pid: int) -> list[int]:
    """Of a process of the machine; none when it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _find_script(top_pid: int, *script: str) -> int:
    """The process below ``top_pid`` that runs this script of the box, with these arguments.

    Looked for again where it is not found: the kernel may leave out a child while another one ends (proc(5), children),
    as the shell that has just said "ready" does.
    """
    deadline_s = time.monotonic() + FOUND_WITHIN_S
    while (found := _look_for_script(top_pid, *script)) is None:
        assert time.monotonic() < deadline_s, f"{' '.join(script)} does not run in the box"
        time.sleep(0.02)  # between two looks; nothing is decided by it
    return found


def _look_for_script(top_pid: int, *script: str) -> int | None:
    waiting = [top_pid]
    wanted = [str(SCRIPTS / script[0]), *script[1:]]
    while waiting:
        pid = waiting.pop()
        if _arguments(pid)[1 : len(wanted) + 1] == wanted:  # the first is Bash
            return pid
        waiting += children(pid)
    return None


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []  # it has ended


def installed_in(interpreters: Iterable[Path], root: Path | None) -> list[Path]:
    """Where these interpreters are installed: a virtual environment only links there.

    Raises ``AssertionError`` for the system's Python in a box of another release, which has its own /usr.
    """
    folders = {path.resolve().parent.parent for path in interpreters}
    if root is not None:
        assert Path("/usr") not in folders, "another release of Slurm needs a Python that is not the system's"
    return sorted(folders - {Path("/usr")})


def outermost(folders: Sequence[Path]) -> list[Path]:
    """Without those that lie in another of them."""
    return sorted({folder for folder in folders if not any(other in folder.parents for other in folders)})


def check_reachable(folder: Path) -> None:
    """Jobs run as other users: raises ``AssertionError`` when those cannot pass through ``folder`` or one above it."""
    for parent in (folder, *folder.parents):
        mode = parent.stat().st_mode
        assert mode & 0o001, f"other users cannot reach {folder}: {parent} has mode {mode & 0o7777:04o}"
