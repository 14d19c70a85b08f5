"""Nothing that a test run started outlives it, however it ends: a pytest plugin (``tests/conftest.py``).

Tests end what they start. An interrupted one may not: ``subprocess.run`` kills its child at Ctrl-C, and the child's own
daemons live on. So every process of a run carries the run's name in its environment, SIGTERM and SIGHUP end a run as
Ctrl-C does, and what still has that name at the end is ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from pathlib import Path
from types import FrameType

import pytest

RUNS = "PYTEST_TIDEGAUGE_RUNS"
"""The names of the runs that a process belongs to: of a pytest that a test starts, both."""
GRACE_S = 5.0
"""How long daemons have after SIGTERM."""


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # pytest-xdist: the controller ends what its workers left
        return
    name = f"{os.getpid()}-{time.time_ns()}"
    os.environ[RUNS] = " ".join([*os.environ.get(RUNS, "").split(), name])
    controller_pid = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == controller_pid:
            raise KeyboardInterrupt(signal.strsignal(number))
        signal.signal(number, signal.SIG_DFL)  # a fork of a test
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup SIGHUP stays ignored
            signal.signal(number, interrupt)
    atexit.register(end_all, name)


def end_all(run: str) -> None:
    """End every other process of a run: by SIGTERM, and by SIGKILL what is still there after ``GRACE_S``."""
    deadline_s = time.monotonic() + GRACE_S
    signalled: set[int] = set()
    while pids := processes_of(run):
        late = time.monotonic() > deadline_s
        for pid in pids if late else pids - signalled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        if time.monotonic() > deadline_s + GRACE_S:
            return
        signalled |= pids
        time.sleep(0.05)


def processes_of(run: str) -> set[int]:
    """Those that can be seen, but for this one; a zombie has no environment any more."""
    wanted = run.encode()
    found = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environ.read_bytes():
                found.add(int(environ.parent.name))
    return found - {os.getpid()}
