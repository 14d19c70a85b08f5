"""Nobody's rings hold up the others': valid ones, many, of processes that do not exist, and rewritten between polls."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_node import FakeNode, FakeRank, identity
from tidegauge.agent import watches
from tidegauge.agent.pods import PATIENCE_S
from tidegauge.agent.ring_reader import RingReader
from tidegauge.agent.watches import (
    MAX_NEW_DEVICES_PER_TENANT_AND_POLL,
    MAX_ORPHANS_READ_PER_POLL,
    SURELY_UNWRITTEN_S,
)
from tidegauge.core.ids import GlobalRank, JobId, LocalRank, ProcessId
from tidegauge.core.kubernetes import PodCgroup

DEVICES, CAPACITY = 64, 4096
"""What the largest ring that a probe makes has; sparse until it is written."""
VICTIM = ProcessId(7, 7)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "run")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Devices of every ring that a reader was made for, in the order in which they were made."""
    made: list[int] = []

    class Counted(RingReader):
        def __init__(self, fd: int) -> None:
            super().__init__(fd)
            made.append(self.header.device_count)

    monkeypatch.setattr(watches, "RingReader", Counted)
    return made


def victim(node: FakeNode) -> FakeRank:
    return node.start_rank(process=VICTIM, who=identity(job_id=JobId("llm")))


def step_of(node: FakeNode) -> int:
    return next(rank.step for rank in node.agent.view().ranks if rank.process == VICTIM)


def ring(node: FakeNode, pid: int) -> FakeRank:
    """A valid one with a record on every device; nobody lives who wrote it."""
    left = FakeRank(node.run_dir, node.clock, process=ProcessId(pid, 3), devices=DEVICES, capacity=CAPACITY)
    for device in range(DEVICES):
        left.record(device=device)
    return left


def test_rings_of_processes_that_do_not_exist_are_not_read_while_they_linger(node: FakeNode, read: list[int]) -> None:
    trains = victim(node)
    left = [ring(node, pid) for pid in range(100, 120)]
    comes_and_goes = node.run_dir / left[0].path.parent.name / "x"
    for _ in range(60):
        trains.record()
        comes_and_goes.unlink() if comes_and_goes.exists() else comes_and_goes.touch()  # the folder is listed each time
        node.poll()
        assert step_of(node) == trains.seq[0], "followed at every poll"
    assert read == [1], "the victim's alone"
    assert all(one.path.exists() for one in left)


def test_they_are_deleted_a_few_at_a_poll_and_what_waits_is_counted(node: FakeNode, read: list[int]) -> None:
    left = [ring(node, pid) for pid in range(100, 112)]
    node.poll()
    node.poll(node.agent._watches._linger_s + 1)
    assert len(read) == MAX_ORPHANS_READ_PER_POLL
    assert node.agent.view().poll_deferred["orphans"] == len(left) - MAX_ORPHANS_READ_PER_POLL
    for _ in range(20):
        before = len(read)
        node.poll(SURELY_UNWRITTEN_S + 1)
        assert len(read) - before <= MAX_ORPHANS_READ_PER_POLL
    assert not any(one.path.exists() for one in left)


def test_one_that_somebody_writes_to_though_nobody_can_see_the_process_stays(node: FakeNode) -> None:
    hidden = ring(node, 100)
    for _ in range(60):
        hidden.record()
        node.poll(SURELY_UNWRITTEN_S)
    assert hidden.path.exists()


def test_large_rings_of_one_tenant_are_opened_in_turns_and_anothers_at_once(node: FakeNode, read: list[int]) -> None:
    for pid in range(100, 120):
        who = identity(rank=GlobalRank(pid), local_rank=LocalRank(pid), world_size=1 << 12)
        node.start_rank(
            process=ProcessId(pid, 3), pod=PodCgroup("crowd", None), who=who, devices=DEVICES, capacity=CAPACITY
        ).record()
    trains = victim(node)
    trains.record()
    at_a_time = MAX_NEW_DEVICES_PER_TENANT_AND_POLL // DEVICES
    node.poll()
    assert sorted(read) == [1, *[DEVICES] * at_a_time]
    assert step_of(node) == 1
    assert node.agent.view().poll_deferred["opened"] == 20 - at_a_time
    for _ in range(20 // at_a_time):
        node.poll()
    node.poll(PATIENCE_S)  # for which a pod's ranks wait for somebody to say whose they are
    assert len(node.agent.view().ranks) == 21


def test_rings_that_are_rewritten_between_polls_do_not_starve_another_tenants(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MAX_RECORDS_PER_TENANT_AND_POLL", 64)
    monkeypatch.setattr(watches, "MAX_RECORDS_PER_POLL", 100)
    crowd = [
        node.start_rank(
            process=ProcessId(pid, 3), pod=PodCgroup("crowd", None),
            who=identity(rank=GlobalRank(pid), local_rank=LocalRank(pid), world_size=1 << 12),
        )
        for pid in range(100, 120)
    ]  # fmt: skip
    trains = victim(node)
    for _ in range(20):
        for one in crowd:
            for _ in range(16):
                one.record()
        trains.record()
        node.poll()
        assert step_of(node) == trains.seq[0], "followed at every poll"
    assert node.agent.view().poll_deferred["records"] > 0
