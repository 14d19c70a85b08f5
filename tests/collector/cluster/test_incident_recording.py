"""How the memory of incidents' ranks gets into the database, over restarts, closings and a database that is away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sample_views import GIB, NOW_S, identity, rank_summary
from scheduler_values import finding, incident
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.incident_recording import KEEP_UP_S, MAX_INCIDENTS_A_TICK, IncidentRecorder
from tidegauge.cluster.store import Store, StoreError, open_store, sqlite_url
from tidegauge.cluster.views import EngineNode
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange
from tidegauge.core.job_records.memory import MAX_INCIDENT_CURVES, RankMemory
from tidegauge.core.memory_history import BUCKETS
from tidegauge.core.views import NodeSummary, RankSummary

JOB = JobKey("4711", 0, 1001)
LEAK = incident(job=JOB, number=7, findings=(finding(0),))


@dataclass
class Flaky:
    """The store's incidents, away while ``away``; tells the numbers of each write."""

    store: Store
    away: bool = False
    unreadable: int | None = None
    writes: list[list[int]] = field(default_factory=list)

    def save_memory(self, curves: Mapping[int, Sequence[RankMemory]]) -> None:
        if self.away:
            raise StoreError("away")
        self.writes.append(sorted(curves))
        self.store.incidents.save_memory(curves)

    def memory(self, number: int) -> Sequence[RankMemory]:
        if number == self.unreadable:
            raise StoreError("unreadable")
        return self.store.incidents.memory(number)


@dataclass
class Head:
    """A coordinator with the recorder over a database that outlives both; ``open`` are the incidents of now."""

    store: Store
    open: list[Incident] = field(default_factory=lambda: [LEAK])
    now_s: float = NOW_S

    def __post_init__(self) -> None:
        self.records = Flaky(self.store)
        self.save(*self.open)
        self.restart()

    def save(self, *incidents: Incident) -> None:
        self.store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, one) for one in incidents])

    def restart(self) -> None:
        self.coordinator = Coordinator(wall_s=lambda: self.now_s, monotonic_s=lambda: self.now_s, incarnation="c")
        self.recorder = IncidentRecorder(
            lambda: self.open, self.coordinator.jobs, self.records, history_of=self.coordinator.history_of,
            monotonic_s=lambda: self.now_s,
        )  # fmt: skip

    def look(self, *ranks: RankSummary, after_s: float = 1.0) -> None:
        self.now_s += after_s
        self.coordinator.engine_nodes([EngineNode("id7", "node7", "10.0.0.7")])
        self.coordinator.report(NodeSummary("id7", "node7", 1, "i", None, self.now_s, ranks))
        self.recorder.tick()

    def curves(self, number: int = 7) -> dict[int, list[float]]:
        """Reserved GiB by rank."""
        stored = self.store.incidents.memory(number)
        return {one.rank: [point.reserved_bytes / GIB for point in one.points] for one in stored}


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    store = open_store(sqlite_url(tmp_path))
    yield Head(store)
    store.close()


def rank(number: int, gib: float, *, alive: bool = True) -> RankSummary:
    return rank_summary(
        number, identity=identity(number), process=ProcessId(number + 1, 1), reserved_bytes=int(gib * GIB),
        last_sample_unix_s=gib, alive=alive,
    )  # fmt: skip


def test_the_curves_of_an_open_incidents_ranks_are_written_at_once_and_then_once_a_minute(head: Head) -> None:
    for second in range(int(2 * KEEP_UP_S) + 3):
        head.look(rank(0, 1 + second), rank(1, 5))
    assert head.records.writes == [[7]] * 3
    assert list(head.curves()) == [0], "of the ranks that are concerned"
    assert len(head.curves()[0]) <= BUCKETS


def test_the_curve_is_complete_when_the_incident_closes_and_stays(head: Head) -> None:
    for gib in (1, 2, 3):
        head.look(rank(0, gib))
    head.open.clear()
    head.look(rank(0, 4, alive=False))
    for _ in range(3):
        head.look(after_s=100.0)
    assert head.coordinator.jobs() == ()
    assert (head.curves(), len(head.records.writes)) == ({0: [1, 2, 3, 4]}, 2)


def test_a_restarted_coordinator_goes_on_with_the_curve(head: Head) -> None:
    head.look(rank(0, 1))
    head.look(rank(0, 2), after_s=KEEP_UP_S)
    head.restart()
    head.look(rank(0, 3))
    head.look(rank(0, 4), after_s=KEEP_UP_S)
    assert head.curves() == {0: [1, 2, 3, 4]}


def test_ranks_that_were_concerned_keep_their_curve_and_at_most_sixteen_have_one(head: Head) -> None:
    ranks = [rank(number, 1 + number / 100) for number in range(20)]
    head.open[:] = [replace(LEAK, findings=(finding(0), finding(3)))]
    head.look(*ranks)
    head.open[:] = [replace(LEAK, findings=(finding(1),))]
    head.look(*ranks, after_s=KEEP_UP_S)
    assert list(head.curves()) == [1, 0, 3]
    head.open[:] = [replace(LEAK, findings=tuple(finding(number) for number in range(19, -1, -1)))]
    head.look(*ranks, after_s=KEEP_UP_S)
    assert list(head.curves()) == list(range(19, 19 - MAX_INCIDENT_CURVES, -1))


def test_a_database_that_is_away_gets_the_curve_when_it_is_back(head: Head) -> None:
    head.records.away = True
    head.look(rank(0, 1))
    head.open.clear()
    head.look(rank(0, 2))
    head.records.away = False
    head.look(rank(0, 3))
    assert head.curves() == {0: [1, 2, 3]}


def test_many_incidents_are_written_a_bounded_number_a_tick_the_closed_ones_first(head: Head) -> None:
    many = [replace(LEAK, number=number) for number in range(100, 100 + 3 * MAX_INCIDENTS_A_TICK)]
    head.save(*(replace(one, key=one.key._replace(job=JobKey(str(one.number), 0, 1001))) for one in many))
    head.open[:] = [*many, LEAK]
    head.look(rank(0, 1))
    head.open.pop()
    head.open.remove(many[-1])
    head.look(rank(0, 2))
    assert [len(numbers) for numbers in head.records.writes] == [MAX_INCIDENTS_A_TICK] * 2
    assert many[-1].number in head.records.writes[1]


def test_what_cannot_be_read_of_one_incident_costs_no_other_its_curve(head: Head) -> None:
    head.records.unreadable = 8
    other = replace(LEAK, number=8, key=LEAK.key._replace(job=JobKey("4711", 1, 1001)))
    head.save(other)
    head.open.append(other)
    head.look(rank(0, 1))
    assert (head.curves(), head.records.writes) == ({0: [1]}, [[7]])
