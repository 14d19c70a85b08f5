"""Who makes a container costly waits for it, and nobody else does."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tidegauge.agent.container_run_dirs import run_dirs as container_run_dirs
from tidegauge.agent.container_run_dirs.run_dirs import Container, ContainerPoll, ContainerRunDir
from tidegauge.agent.opening.local import LOCAL, LocalRunDir
from tidegauge.agent.opening.port import OpenRunDir
from tidegauge.agent.run_dirs.folders import NotNowError
from tidegauge.agent.tenant_time import MAX_CPU_S, WALL_SHARE, FairQueue, TenantTime
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant

ONE, OTHER = Tenant(1000), Tenant(2000)


class Cpu:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def cpu() -> Cpu:
    return Cpu()


def test_tenant_time_makes_only_the_tenant_over_its_limit_wait(cpu: Cpu) -> None:
    time = TenantTime(cpu_s=cpu, wall_s=cpu)
    time.begin()
    with time.spent_by(ONE):
        cpu.now_s += MAX_CPU_S
        assert not time.is_left(ONE), "also while it runs"
    assert not time.is_left(ONE)
    assert time.is_left(OTHER)
    time.begin()
    assert time.is_left(ONE)


def test_tenant_time_repays_an_overrun_at_later_polls(cpu: Cpu) -> None:
    time = TenantTime(cpu_s=cpu, wall_s=cpu)
    with time.spent_by(ONE):
        cpu.now_s += 10.5 * MAX_CPU_S
    waited = 0
    while not time.is_left(ONE):
        time.begin()
        waited += 1
    assert waited == 10


def test_time_that_passes_counts_in_part(cpu: Cpu) -> None:
    """A file system that does not answer costs its user time, and no processor time."""
    wall = Cpu()
    time = TenantTime(cpu_s=cpu, wall_s=wall)
    with time.spent_by(ONE):
        wall.now_s += MAX_CPU_S
    assert time.is_left(ONE)
    with time.spent_by(ONE):
        wall.now_s += MAX_CPU_S / WALL_SHARE
    assert not time.is_left(ONE)


def test_containers_of_a_namespace_share_their_time(cpu: Cpu) -> None:
    time = TenantTime(lambda _: Tenant(None, "team-a"), cpu_s=cpu, wall_s=cpu)
    with time.spent_by(Tenant(None, pod_uid="a")):
        cpu.now_s += MAX_CPU_S
    assert not time.is_left(Tenant(None, pod_uid="b"))


def test_time_of_a_block_within_another_counts_once(cpu: Cpu) -> None:
    time = TenantTime(cpu_s=cpu, wall_s=cpu)
    with time.spent_by(ONE):
        with time.spent_by(ONE):
            cpu.now_s += 0.6 * MAX_CPU_S
        assert time.is_left(ONE)
    assert time.is_left(ONE)


def test_fair_queue_serves_the_longest_waiting_first() -> None:
    turns = FairQueue[str]()
    order = []
    for _ in range(4):
        first, *_ = turns.in_order("abc")
        turns.had(first)
        order.append(first)
    assert order == ["a", "b", "c", "a"]
    assert turns.in_order("abcd")[0] == "d", "who is new never had one"


class Entries:
    """``ContainerRunDir.enter`` of folders of this machine, each taking some processor time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpu: Cpu, cost_s: float) -> None:
        self.entered: list[Path] = []
        self.open: list[int] = []

        def enter(run_dir: ContainerRunDir) -> LocalRunDir:
            self.entered.append(run_dir.path)
            cpu.now_s += cost_s
            self.open.append(os.open(run_dir.path, os.O_RDONLY))
            return LocalRunDir.of(self.open[-1])

        monkeypatch.setattr(ContainerRunDir, "enter", enter)
        monkeypatch.setattr(container_run_dirs, "TenantTime", lambda whose: TenantTime(whose, cpu_s=cpu, wall_s=cpu))

    def open_now(self) -> int:
        found = 0
        for fd in set(self.open):
            try:
                os.fstat(fd)
            except OSError:
                continue
            found += 1
        return found


def run_dirs(folder: Path, poll: ContainerPoll, count: int, tenant: Tenant) -> list[ContainerRunDir]:
    made = []
    for number in range(count):
        path = folder / f"{tenant.uid}-{number}"
        path.mkdir()
        container = Container(number, tenant, (ProcessId(7, 1),))
        made.append(ContainerRunDir(path, (0, number), LOCAL, poll, (container,)))
    return made


def test_a_poll_gets_into_a_container_once_and_lets_go_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: Cpu
) -> None:
    entries = Entries(monkeypatch, cpu, 0.0)
    poll = ContainerPoll()
    [run_dir] = run_dirs(tmp_path, poll, 1, ONE)
    with poll.under_way():
        for work in ("launches", "rings"):
            poll.begin(work)
            for _ in range(50):
                with run_dir.opened() as there:
                    assert there.identity[1] == run_dir.path.stat().st_ino
        assert entries.open_now() == 1
    assert len(entries.entered) == 1
    assert entries.open_now() == 0
    with run_dir.opened():
        assert entries.open_now() == 1, "outside a poll: for the block alone"
    assert entries.open_now() == 0


def test_another_thread_does_not_use_what_the_poll_has_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: Cpu
) -> None:
    """It would be closed under its hands."""
    entries = Entries(monkeypatch, cpu, 10 * MAX_CPU_S)
    poll = ContainerPoll()
    [run_dir] = run_dirs(tmp_path, poll, 1, ONE)
    seen: list[OpenRunDir] = []

    def order() -> None:
        with run_dir.opened() as there:
            seen.append(there)

    with poll.under_way(), run_dir.opened() as ours:
        thread = threading.Thread(target=order)
        thread.start()
        thread.join()
        assert seen != [ours]
        assert len(seen) == 1, "and has no need to wait"
        assert len(entries.entered) == 2


def test_containers_of_one_tenant_wait_and_anothers_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: Cpu
) -> None:
    Entries(monkeypatch, cpu, 0.4 * MAX_CPU_S)
    poll = ContainerPoll()
    hostile, [victim] = run_dirs(tmp_path, poll, 40, ONE), run_dirs(tmp_path, poll, 1, OTHER)
    turns = FairQueue[ContainerRunDir]()
    seen: set[ContainerRunDir] = set()
    for _ in range(40 // 2):
        with poll.under_way():
            poll.begin("rings")
            served = []
            for run_dir in turns.in_order([*hostile, victim]):
                if run_dir.has_time():
                    with run_dir.opened():
                        served.append(run_dir)
                    turns.had(run_dir)
        assert victim in served
        assert len(served) <= 4
        seen.update(served)
    assert seen == {*hostile, victim}, "each has its turn"
    assert poll.put_off > 0


def test_container_poll_may_use_an_open_directory_after_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: Cpu
) -> None:
    Entries(monkeypatch, cpu, 2 * MAX_CPU_S)
    poll = ContainerPoll()
    first, second = run_dirs(tmp_path, poll, 2, ONE)
    with poll.under_way():
        poll.begin("rings")
        for _ in range(2):
            with first.opened():
                pass
        with pytest.raises(NotNowError), second.opened():
            pass
        poll.begin("launches")
        with second.opened():
            pass
