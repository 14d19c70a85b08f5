"""Nobody's rings hold up the others': valid ones, many, of processes that do not exist, and rewritten between polls."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import FakeNode, FakeRank, ScriptedDetector, identity
from tidegauge.agent.kubernetes.pods import PATIENCE_S
from tidegauge.agent.ranks import watches
from tidegauge.agent.rings import new_rings as ring_search
from tidegauge.agent.rings.new_rings import (
    MAX_NEW_DEVICES_PER_TENANT_AND_LOOK,
    MAX_ORPHANS_READ_PER_LOOK,
    SURELY_UNWRITTEN_S,
)
from tidegauge.agent.rings.reader import RingReader
from tidegauge.core.detector import RankDetector
from tidegauge.core.ids import GlobalRank, JobId, LocalRank, ProcessId
from tidegauge.core.jobs.kubernetes import PodCgroup
from tidegauge.core.verdicts import OK, Verdict

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

    monkeypatch.setattr(ring_search, "RingReader", Counted)
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


def test_orphan_rings_are_deleted_a_few_per_poll_and_the_rest_counted_as_deferred(
    node: FakeNode, read: list[int]
) -> None:
    left = [ring(node, pid) for pid in range(100, 112)]
    node.poll()
    node.poll(node.agent._watches._linger_s + 1)
    assert len(read) == MAX_ORPHANS_READ_PER_LOOK
    assert node.agent.view().poll_deferred["orphans"] == len(left) - MAX_ORPHANS_READ_PER_LOOK
    for _ in range(20):
        before = len(read)
        node.poll(SURELY_UNWRITTEN_S + 1)
        assert len(read) - before <= MAX_ORPHANS_READ_PER_LOOK
    assert not any(one.path.exists() for one in left)


def test_orphan_ring_stays_while_a_hidden_process_writes_to_it(node: FakeNode) -> None:
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
    at_a_time = MAX_NEW_DEVICES_PER_TENANT_AND_LOOK // DEVICES
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


def test_a_rank_whose_verdict_fails_costs_nobody_else_the_poll(tmp_path: Path) -> None:
    """Times that jump made its forecast divide by zero when it was shown, which ended every poll of the node."""

    class Failing(ScriptedDetector):
        @property
        def verdict(self) -> Verdict:
            raise ZeroDivisionError("a slip in the detector")

        @verdict.setter
        def verdict(self, _: Verdict) -> None:
            pass

        def update(self, **readings: int | float | None) -> Verdict:
            return OK

    detectors: list[type[ScriptedDetector]] = [ScriptedDetector, Failing]
    node = FakeNode(tmp_path / "run", detector_factory=lambda: detectors.pop(0)())
    trains = victim(node)
    trains.record()
    node.poll()
    hostile = node.start_rank(process=ProcessId(100, 3), who=identity(rank=GlobalRank(1), local_rank=LocalRank(1)))
    for _ in range(5):
        trains.record()
        hostile.record()
        node.poll()
        assert step_of(node) == trains.seq[0], "followed at every poll"
    assert {rank.process.pid: rank.verdict for rank in node.agent.view().ranks} == {7: OK, 100: OK}


@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_times_a_ring_tells_its_verdict_can_be_asked_for(seed: int) -> None:
    made_up = random.Random(seed)
    detector, step = RankDetector(), 0
    for at in range(120):
        step += made_up.choice([1, 1, 1, 3])
        time_s = made_up.choice([at * 0.1, at * 0.1, 0.0, 5.0, 1e-9 * made_up.random(), 4.6e9, 1e5 + at])
        allocated = at * made_up.choice([1 << 20, 1 << 30, 0])
        detector.update(
            step=step, time_s=time_s, allocated_bytes=allocated, reserved_bytes=allocated + (1 << 30),
            nontorch_bytes=made_up.choice([None, 1 << 29]), limit_bytes=80 << 30,
        )  # fmt: skip
        verdict = detector.verdict
        assert verdict.bytes_per_second is None or verdict.bytes_per_second.low <= verdict.bytes_per_second.high
