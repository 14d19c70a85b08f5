"""Resident memory by a kept ``statm``: the same figure as ``stat``, and never that of another process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fake_node import FakeClock
from tidegauge.agent.node_agent import OPEN_FILES
from tidegauge.agent.processes.procfs import FORGET_S, OpenStatms, ProcFs
from tidegauge.core.ids import ProcessId

SOME = ProcessId(77, 5)


class MadeUpStatm:
    """A proc with one process."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.statms = OpenStatms(str(root), monotonic_s=self.clock.monotonic_s)
        (root / "77").mkdir()
        self._file = root / "77/statm"
        self.says("900 100 20 1 0 60 0")

    def says(self, text: str) -> None:
        self._file.write_text(text + "\n")

    def keep(self, *, is_it: bool = True) -> None:
        self.statms.keep(SOME, lambda: is_it)

    def descriptors(self) -> int:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link) == str(self._file) for link in links)


@pytest.fixture
def made_up(tmp_path: Path) -> MadeUpStatm:
    return MadeUpStatm(tmp_path)


def test_resident_pages_are_unknown_for_an_unwatched_process(made_up: MadeUpStatm) -> None:
    assert made_up.statms.pages(SOME) is None


def test_every_look_reads_again(made_up: MadeUpStatm) -> None:
    made_up.keep()
    assert made_up.statms.pages(SOME) == (100, 20)
    made_up.says("900 250 20 1 0 60 0")
    assert made_up.statms.pages(SOME) == (250, 20)


@pytest.mark.parametrize("text", ["0 0 0 0 0 0 0", "", "what"])
def test_a_process_without_memory_is_left_to_stat(made_up: MadeUpStatm, text: str) -> None:
    made_up.keep()
    made_up.says(text)
    assert made_up.statms.pages(SOME) is None
    assert made_up.descriptors() == 0


def test_resident_pages_close_statm_of_a_different_process_at_once(made_up: MadeUpStatm) -> None:
    made_up.keep(is_it=False)
    assert made_up.statms.pages(SOME) is None
    assert made_up.descriptors() == 0


def test_resident_pages_close_statm_no_longer_read(made_up: MadeUpStatm) -> None:
    made_up.keep()
    made_up.clock.pass_s(FORGET_S / 2)
    assert made_up.statms.pages(SOME) == (100, 20)
    made_up.clock.pass_s(FORGET_S * 0.9)
    made_up.statms.keep(ProcessId(78, 5), lambda: True)
    assert made_up.descriptors() == 1, "it was asked for less than a minute ago"
    made_up.clock.pass_s(FORGET_S * 1.1)
    made_up.statms.keep(ProcessId(78, 5), lambda: True)
    assert made_up.descriptors() == 0


def test_an_agent_that_ends_leaves_no_descriptor(made_up: MadeUpStatm) -> None:
    made_up.keep()
    assert made_up.descriptors() == 1
    del made_up.statms
    assert made_up.descriptors() == 0


GROWING = """
import sys
kept = bytearray(1 << 20)
print(flush=True)
for _ in sys.stdin:
    kept += b"x" * (64 << 20)
    print(flush=True)
"""


def rss_bytes(procs: ProcFs, process: ProcessId) -> int:
    usage = procs.usage(process)
    assert usage is not None
    assert usage.rss_bytes is not None
    return usage.rss_bytes


def test_a_real_process_is_seen_to_grow_and_to_end() -> None:
    procs = ProcFs()
    with subprocess.Popen([sys.executable, "-c", GROWING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        process = procs.process_at(child.pid)
        assert process is not None
        first, second = rss_bytes(procs, process), rss_bytes(procs, process)
        child.stdin.write(b"grow\n")
        child.stdin.flush()
        child.stdout.readline()
        grown = rss_bytes(procs, process)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert procs.usage(process) is None, "a zombie has ended"
    assert procs.usage(process) is None
    assert second == pytest.approx(first, rel=0.05)
    assert grown - second == pytest.approx(64 << 20, rel=0.1)


LIMITED = """
import os, resource, sys
from pathlib import Path
from tidegauge.agent.node_agent import open_node_agent
from tidegauge.agent.processes.procfs import OpenStatms
from tidegauge.settings import Settings
from tidegauge.core.ids import ProcessId

resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
statms, many = OpenStatms("/proc"), [ProcessId(os.getpid(), ticks) for ticks in range(40)]
for process in many:
    statms.keep(process, lambda: True)
kept = sum(statms.pages(process) is not None for process in many)
open_node_agent(Settings(run_dir=Path(sys.argv[1]), state_dir=Path(sys.argv[1]))).close()
print(kept, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_rings_keep_their_descriptors_and_an_agent_gets_more_of_them(tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, "-c", LIMITED, tmp_path], stdout=subprocess.PIPE, check=True).stdout.split()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert [int(word) for word in said] == [16, OPEN_FILES if hard < 0 else min(OPEN_FILES, hard)]
