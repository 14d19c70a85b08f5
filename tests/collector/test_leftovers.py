"""The test run itself: what its tests started does not outlive it (``tests/leftovers.py``)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import leftovers
from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import identity_of, is_alive
from waiting import eventually

TEST = """
import subprocess, time
def test_that_leaves_a_daemon():
    subprocess.run(["sh", "-c", "setsid sleep 3600 & echo $! > pid.new && mv pid.new pid"], check=True)
    time.sleep({seconds})
"""


class Run:
    """A pytest whose test leaves a daemon, and then takes ``seconds``."""

    def __init__(self, folder: Path, seconds: int) -> None:
        (folder / "test_it.py").write_text(TEST.format(seconds=seconds))
        command = [sys.executable, "-m", "pytest", "-p", "leftovers", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
        environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(leftovers.__file__).parent)}
        self.pytest = subprocess.Popen(
            ["env", "--default-signal=INT,TERM,HUP", *command, "test_it.py"],
            cwd=folder, env=environ, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        pid = folder / "pid"
        eventually(pid.exists)
        daemon = identity_of(int(pid.read_text()))
        assert daemon is not None
        self.daemon: ProcessId = daemon

    def end(self) -> str:
        """What it printed, once it has ended."""
        with self.pytest:
            told, _ = self.pytest.communicate()
        return told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_interrupted_leaves_no_daemon(tmp_path: Path, number: signal.Signals) -> None:
    run = Run(tmp_path, seconds=3600)
    run.pytest.send_signal(number)
    assert "KeyboardInterrupt" in run.end()
    assert run.pytest.returncode == pytest.ExitCode.INTERRUPTED
    assert not is_alive(run.daemon)


def test_a_run_that_ends_leaves_no_daemon(tmp_path: Path) -> None:
    run = Run(tmp_path, seconds=1)
    run.end()
    assert run.pytest.returncode == pytest.ExitCode.OK
    assert not is_alive(run.daemon)


def test_processes_of_other_runs_are_let_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, seconds=3600)
    leftovers.end_all("0-0")
    assert is_alive(run.daemon)
    run.pytest.terminate()
    run.end()
