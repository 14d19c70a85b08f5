"""`/proc`: real children of this test, found and ended by who they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import (
    descendants,
    end_processes,
    identity_of,
    is_alive,
    send_signal,
    session_members,
    stat_of,
)
from waiting import PATIENCE_S

FAMILY = """
import os, subprocess, sys, time
if sys.argv[1] == "stubborn":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
up = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
child = subprocess.Popen(up, stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""

THREADS = """
import os, threading
from tidegauge.osproc.processes import let_training_go_first
over = threading.Event()
threading.Thread(target=over.wait).start()
let_training_go_first()
print(*(os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir("/proc/self/task")))
over.set()
"""


class Family:
    """A parent in a session of its own, and its child."""

    def __init__(self, manner: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", FAMILY, manner], stdout=subprocess.PIPE, start_new_session=True, text=True
        )
        assert self.popen.stdout is not None
        pids = self.popen.stdout.readline().split()
        self.parent, self.child = (self._identity(int(pid)) for pid in pids)

    @staticmethod
    def _identity(pid: int) -> ProcessId:
        process = identity_of(pid)
        assert process is not None
        return process

    def close(self) -> None:
        for process in (self.child, self.parent):
            send_signal(process, signal.SIGKILL)
        self.popen.wait(PATIENCE_S)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


@pytest.fixture
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    family = Family(getattr(request, "param", "tame"))
    yield family
    family.close()


def test_descendants_are_children_and_their_children(family: Family) -> None:
    found = {stat.process for stat in descendants(os.getpid())}
    assert {family.parent, family.child} <= found
    assert [stat.process for stat in descendants(family.parent.pid)] == [family.child]


def test_a_session_is_known_by_its_leader_even_after_the_leader_was_killed(family: Family) -> None:
    assert {stat.process for stat in session_members(family.parent)} == {family.parent, family.child}
    send_signal(family.parent, signal.SIGKILL)
    family.popen.wait(PATIENCE_S)
    assert [stat.process for stat in session_members(family.parent)] == [family.child]


def test_a_session_of_another_process_with_the_same_pid_is_nobodys(family: Family) -> None:
    assert session_members(ProcessId(family.parent.pid, family.parent.start_ticks - 1)) == []


@pytest.mark.parametrize("family", ["tame", "stubborn"], indirect=True)
def test_ending_ends_all_and_those_that_do_not_listen_by_force(family: Family) -> None:
    left = end_processes(lambda: session_members(family.parent), grace_s=0.2, deadline_s=PATIENCE_S)
    assert left == []
    assert not is_alive(family.parent)
    assert not is_alive(family.child)


def test_a_process_that_ended_is_not_alive_before_its_parent_has_looked(family: Family) -> None:
    send_signal(family.parent, signal.SIGKILL)
    os.waitid(os.P_PID, family.parent.pid, os.WEXITED | os.WNOWAIT)
    stat = stat_of(family.parent.pid)
    assert stat is not None
    assert stat.ended
    assert not is_alive(family.parent)


def test_a_signal_for_a_pid_that_belongs_to_somebody_else_now_is_not_sent(family: Family) -> None:
    stranger = ProcessId(family.child.pid, family.child.start_ticks + 1)
    assert send_signal(stranger, signal.SIGKILL) is False
    assert is_alive(family.child)


def test_a_name_with_brackets_and_spaces_is_read_right() -> None:
    path = "/proc/self/comm"
    with open(path) as file:
        before = file.read().strip()
    try:
        with open(path, "w") as file:
            file.write("a) S (b c")
        stat = stat_of(os.getpid())
        assert stat is not None
        assert (stat.name, stat.parent_pid) == ("a) S (b c", os.getppid())
    finally:
        with open(path, "w") as file:
            file.write(before)


def test_no_process_has_no_stat() -> None:
    assert stat_of(2**22 + 1) is None


def test_training_goes_before_every_thread_of_a_process_that_lets_it() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["15", "15"]
