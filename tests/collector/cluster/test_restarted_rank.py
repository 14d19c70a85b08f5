"""The record of a job whose rank was started again in place, from its rings to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_node import GIB, FakeNode, FakeRank, gpu_reading
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.core.ids import ProcessId
from tidegauge.core.job_records.record import JobEnd, JobRecord, record_of
from tidegauge.core.samples import EventCode, RecordKind

FRACTION = 500_000
"""Millionths: half of the 80 GiB of the node's GPU."""


class Watched:
    """A node, the coordinator that it reports to, and the job's record after every poll."""

    def __init__(self, run_dir: Path) -> None:
        self.node = FakeNode(run_dir, readings=[gpu_reading()])
        clock = self.node.clock
        self.coordinator = Coordinator(wall_s=clock.unix_s, monotonic_s=clock.monotonic_s, incarnation="c1")
        self.record: JobRecord | None = None

    def poll(self, after_s: float = 0.5) -> None:
        self.node.poll(after_s)
        self.coordinator.report(self.node.agent.summary(node_id="n1", incarnation="i1", metrics_address=None))
        jobs = [view for view in self.coordinator.jobs() if view.ranks]
        if jobs:
            self.record = record_of(jobs, self.record, now_s=self.node.clock.unix_s())

    def run(self, process: ProcessId, *, steps: int, reserved: int, fraction: int | None = None) -> FakeRank:
        rank = self.node.start_rank(process=process)
        if fraction is not None:
            self.event(rank, EventCode.FRACTION_SET, 0, event_a=fraction)
        for step in range(1, steps + 1):
            rank.record(step=step, reserved=reserved, allocated=reserved)
            self.poll()
        return rank

    def event(self, rank: FakeRank, event: EventCode, step: int, **figures: int) -> None:
        rank.record(kind=RecordKind.EVENT, event=event, step=step, **figures)

    def told(self) -> tuple[JobEnd | None, int]:
        assert self.record is not None
        return self.record.end, self.record.ooms


@pytest.mark.parametrize("first_ends", ["by itself", "by a signal"])
@pytest.mark.parametrize(("second_ends", "told"), [("by itself", (JobEnd.ENDED, 0)), ("by an OOM", (JobEnd.OOM, 1))])
def test_a_job_ended_as_the_last_process_of_its_rank_did_at_once_and_for_good(
    tmp_path: Path, first_ends: str, second_ends: str, told: tuple[JobEnd, int]
) -> None:
    """Both ways of the first to end made "killed by a signal" of a job whose second program had not been."""
    watched = Watched(tmp_path / "run")
    first = watched.run(ProcessId(10, 100), steps=6, reserved=60 * GIB)
    if first_ends == "by itself":
        watched.event(first, EventCode.DETACHED, 6)
    watched.node.end(first)
    watched.poll()
    second = watched.run(ProcessId(11, 300), steps=4, reserved=38 * GIB, fraction=FRACTION)
    assert watched.told() == (None, 0)
    if second_ends == "by an OOM":
        watched.event(second, EventCode.OUT_OF_MEMORY, 4, reserved=39 * GIB, allocated=38 * GIB)
    watched.event(second, EventCode.DETACHED, 4, reserved=39 * GIB, allocated=38 * GIB)
    watched.node.end(second)
    watched.poll()
    assert watched.told() == told
    for _ in range(30):
        watched.poll(10.0)
        assert watched.told() == told
    assert watched.coordinator.jobs() == ()
    assert watched.record is not None
    fullest = watched.record.fullest
    assert (fullest.reserved_bytes, fullest.limit_bytes) == (39 * GIB, 40 * GIB), "not 60 GiB of 40"
