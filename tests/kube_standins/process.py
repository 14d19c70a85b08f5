"""A stand-in in a process of its own, which ends with the test, however that ends; and that process's own side."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
READY_WITHIN_S = 100.0
ENDED_WITHIN_S = 100.0


class StandInProcess:
    """``python -m kube_standins.MODULE ARGUMENTS``, from ready on. Its log is in ``log``."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path, *, before: Sequence[str] = ()) -> None:
        """``before``: a command that runs the one after it. Raises ``AssertionError`` if it does not become ready."""
        self._log = log
        environ = {**os.environ, "PYTHONPATH": str(TESTS)}
        with log.open("ab") as output:
            # A session of its own: Ctrl-C in the terminal must not end it before its tests.
            self._process = subprocess.Popen(
                [*before, sys.executable, "-m", f"kube_standins.{module}", *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=environ, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], READY_WITHIN_S)
        if not readable or self._process.stdout.readline() != b"ready\n":
            self._process.kill()
            self.end()
            raise AssertionError(f"{module} did not start:\n{log.read_text(errors='replace')[-3000:]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """Let go of it, and wait until it has put everything away."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(ENDED_WITHIN_S)


def say_ready_and_wait() -> None:
    """In the process itself: until the other end of the standard input is closed."""
    print("ready", flush=True)
    while os.read(0, 1024):
        pass


def log_to_stderr() -> None:
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
