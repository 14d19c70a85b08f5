"""A job at a terminal: keys do to it what they would do without a keeper. Real pseudo-terminals."""

from __future__ import annotations

import os
import pty
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kept_jobs import ask, job_environ, keep_command
from tidegauge.core.run_dirs import launch_socket_name
from tidegauge.osproc.processes import descendants, identity_of
from waiting import PATIENCE_S

CTRL_C, CTRL_Z = b"\x03", b"\x1a"


class Terminal:
    """A terminal and the command that leads its session."""

    def __init__(self, run_dir: Path, command: Sequence[str]) -> None:
        self._run_dir = run_dir
        environ = job_environ(run_dir)
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            # Whoever runs the tests may ignore these (a script's background job): somebody at a terminal does not.
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(command[0], list(command), environ)
        self.seen = b""

    def press(self, key: bytes) -> None:
        os.write(self.screen, key)

    def ask_keeper(self) -> dict[str, Any]:
        """What the keeper says of itself, where it leads the session."""
        process = identity_of(self.pid)
        assert process is not None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(self._run_dir / str(os.geteuid()) / launch_socket_name(process)))
            return ask(connection, {"command": "describe"})

    def until(self, text: str) -> str:
        """Read until ``text`` was on the screen; all that was there so far."""
        while text.encode() not in self.seen:
            try:
                data = os.read(self.screen, 4096)
            except OSError:  # everybody left the terminal
                data = b""
            assert data, f"{text!r} did not appear in {self.seen!r}"
            self.seen += data
        return self.seen.decode()

    def wait(self) -> int:
        """The exit code as ``os.waitstatus_to_exitcode`` gives it."""
        with suppress(OSError):  # when everybody has left the terminal
            while True:
                self.seen += os.read(self.screen, 4096)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            for stat in descendants(self.pid):
                os.kill(stat.process.pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.screen)


Open = Callable[[Sequence[str]], Terminal]


@pytest.fixture
def waits(short_path: Path) -> list[str]:
    """A command that prints "ready" and waits, with no handler for any signal. Not a shell that becomes ``sleep``: dash
    catches SIGINT, and one that comes just before its ``exec`` is lost."""
    text = short_path / "text"
    text.write_text("ready\n")
    return ["tail", "-f", str(text)]


@pytest.fixture
def terminal(short_path: Path) -> Iterator[Open]:
    """Open a terminal; closed after the test."""
    opened: list[Terminal] = []

    def open_terminal(command: Sequence[str]) -> Terminal:
        opened.append(Terminal(short_path / "run", command))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def test_ctrl_c_ends_a_command_that_does_not_handle_it(terminal: Open, waits: list[str]) -> None:
    job = terminal(keep_command(waits))
    job.until("ready")
    job.press(CTRL_C)
    assert job.wait() == -signal.SIGINT


def test_ctrl_c_reaches_the_command_once_and_the_keeper_waits_for_it(terminal: Open) -> None:
    script = "trap 'echo one; n=$((n+1))' INT; n=0; echo ready; until read line; do :; done; echo $n more; exit 9"
    job = terminal(keep_command(["sh", "-c", script]))
    job.until("ready")
    job.press(CTRL_C)
    job.until("one")
    assert job.ask_keeper()["state"] == "running"  # it has dealt with its own signal by now
    job.press(b"\n")
    assert "1 more" in job.until("more")
    assert job.wait() == 9


def test_ctrl_z_gives_the_shell_its_prompt_back_and_fg_goes_on(terminal: Open) -> None:
    kept = keep_command(["sh", "-c", "echo ready; read line; echo got $line; exit 4"])
    # The shell goes on to its next command only when the keeper, which is its child, has stopped as well.
    job = terminal(["sh", "-c", 'set -m; "$@"; echo stopped; fg; exit $?', "sh", *kept])
    job.until("ready")
    job.press(CTRL_Z)
    job.until("stopped")
    job.press(b"word\n")
    job.until("got word")
    assert job.wait() == 4


def test_a_loop_in_a_shell_ends_with_ctrl_c(terminal: Open, waits: list[str]) -> None:
    kept = keep_command(waits)
    job = terminal(["bash", "-c", 'for turn in 1 2; do echo turn $turn; "$@"; done', "sh", *kept])
    job.until("ready")
    job.press(CTRL_C)
    assert job.wait() == -signal.SIGINT
    assert b"turn 2" not in job.seen
