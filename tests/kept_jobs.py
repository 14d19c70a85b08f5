"""Jobs under a real keeper, each in a run directory of its own, with what a test needs to watch and to ask them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import LaunchRecord, decode_launch_record
from tidegauge.core.run_dirs import launch_name, launch_socket_name
from tidegauge.osproc.processes import descendants, identity_of, is_alive, send_signal
from waiting import PATIENCE_S, eventually

KEEP = """
import json, os, signal, sys
from tidegauge.launch.start import keep
# Whoever runs the tests may ignore signals (nohup, a job in the background): a keeper keeps that, as it should.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
for number in json.loads(sys.argv[2]):
    signal.signal(number, signal.SIG_IGN)
raise SystemExit(keep(sys.argv[3:], os.environ, again=["tidegauge", "run", "--", *sys.argv[3:]], gpu_share=None,
                      **json.loads(sys.argv[1])))
"""


def keep_command(
    command: Sequence[str], *, requeueable: bool = True, exempt: bool = False, ignored: Sequence[int] = ()
) -> list[str]:
    """A Python that keeps ``command``: ``tidegauge run`` without its command line, which takes longer to start."""
    options = json.dumps({"requeueable": requeueable, "exempt": exempt})
    return [sys.executable, "-c", KEEP, options, json.dumps([int(number) for number in ignored]), *command]


def job_environ(run_dir: Path, **more: str) -> dict[str, str]:
    """The environment of a job that nobody else keeps."""
    return {
        "PATH": os.environ["PATH"],
        "TIDEGAUGE_JOB_ID": "job-1",
        "TIDEGAUGE_JOB_NAME": "train",
        "TIDEGAUGE_RUN_DIR": str(run_dir),
        **more,
    }


class KeptJob:
    """One job; its keeper leads a session of its own. ``script`` is for ``sh``, and says ``up …`` when it is ready."""

    def __init__(
        self,
        run_dir: Path,
        script: str,
        *,
        environ: dict[str, str] | None = None,
        requeueable: bool = True,
        exempt: bool = False,
        ignored: Sequence[int] = (),
        command: Sequence[str] | None = None,
        launcher: Sequence[str] = (),
    ) -> None:
        """``launcher`` is a command that in the end becomes the one that is appended to it."""
        self.run_dir = run_dir
        command = ["sh", "-c", script] if command is None else command
        self.popen = subprocess.Popen(
            [*launcher, *keep_command(command, requeueable=requeueable, exempt=exempt, ignored=ignored)],
            env=job_environ(run_dir, **(environ or {})),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        process = identity_of(self.popen.pid)
        assert process is not None
        self.process = process
        self._family: set[ProcessId] = {process}

    def line(self) -> str:
        """The next line of the job's output."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline().rstrip("\n")
        self._family |= {stat.process for stat in descendants(self.popen.pid)}
        return line

    def said(self) -> str:
        """The next line on stderr."""
        assert self.popen.stderr is not None
        return self.popen.stderr.readline().rstrip("\n")

    def adopt(self, process: ProcessId) -> None:
        """Have a process ended with the job that nothing else ends."""
        self._family.add(process)

    def type(self, line: str) -> None:
        """Give the job a line on its stdin."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    @property
    def folder(self) -> Path:
        return self.run_dir / str(os.geteuid())

    @property
    def record_file(self) -> Path:
        return self.folder / launch_name(self.process)

    def settle(self) -> None:
        """Return when the keeper has done all that it was at: it writes its record after it has started the command."""
        assert self.ask("describe")["ok"]

    def record(self) -> LaunchRecord:
        """As the keeper has written it by now."""
        if is_alive(self.process):
            self.settle()
        return decode_launch_record(self.record_file.read_bytes())

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE_S)
        connection.connect(str(self.folder / launch_socket_name(self.process)))
        return connection

    def ask(self, command: str, decision_id: str = "d-1", *, restarts: int = 0, **more: Any) -> dict[str, Any]:
        """The keeper's answer to one request."""
        return ask(self.connect(), {"command": command, "id": decision_id, "restarts": restarts, **more})

    def signal(self, number: int) -> None:
        """Send a signal to the keeper alone."""
        assert send_signal(self.process, number)

    def command(self) -> ProcessId:
        """The command that runs now."""
        (stat,) = [stat for stat in descendants(self.popen.pid) if stat.parent_pid == self.popen.pid]
        return stat.process

    def wait(self) -> int:
        """The keeper's exit status, as ``subprocess`` gives it."""
        return self.popen.wait(60)

    def rest(self) -> tuple[str, str]:
        """What was left on stdout and stderr at the end."""
        out, err = self.popen.communicate(timeout=60)
        return out, err

    def close(self) -> None:
        """End whatever is left, the job's processes first seen included."""
        if send_signal(self.process, signal.SIGSTOP):  # it starts nothing more, and orphans are its children
            eventually(lambda: not self._end_descendants())
        for process in self._family:
            if is_alive(process):
                send_signal(process, signal.SIGKILL)
        self.popen.wait(60)
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            assert stream is not None
            stream.close()

    def _end_descendants(self) -> bool:
        """Whether there were some: they may have started others before they ended."""
        left = [stat.process for stat in descendants(self.popen.pid) if not stat.ended]
        for process in left:
            send_signal(process, signal.SIGKILL)
        return bool(left)


def ask(connection: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
    """One request and its answer; the connection is closed."""
    with connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
            return answer


def wait_for_end(process: ProcessId) -> None:
    """Return when the process has ended, its parent may not have looked yet."""
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(60_000), f"process {process.pid} did not end"
    finally:
        os.close(handle)
