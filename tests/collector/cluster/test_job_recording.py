"""Records of jobs in a real database, through ends, restarts of the coordinator and a database that is away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from sample_views import GIB, NOW_S, identity, job_view, rank_summary
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.job_recording import (
    KEEP_UP_S,
    MAX_RANKS_A_TICK,
    MISSED_AFTER_S,
    SAME_START_S,
    JobRecorder,
)
from tidegauge.cluster.store import JobRecordStore, Store, StoreError, open_store, sqlite_url
from tidegauge.cluster.views import EngineNode
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.incidents.loop_figures import SlurmLabels
from tidegauge.core.job_records.memory import JobMemory
from tidegauge.core.job_records.record import JobEnd, JobEvent, JobRecord
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.memory_history import MemoryHistory, MemoryPoint
from tidegauge.core.samples import OomRecord
from tidegauge.core.views import JobView, NodeSummary, RankSummary

OVER = rank_summary(0, alive=False, detached=True)
OOM = OomRecord(NOW_S, 200, 2 * GIB, GIB, 80 * GIB, 78 * GIB, 79 * GIB)
LAUNCH = LaunchSummary(
    ProcessId(7, 7), 1001, "4711", "llm-pretrain", 0, LaunchState.RUNNING, False, False, None, NOW_S - 500.0
)
JOB = JobKey("4711", 0, 1001)


@dataclass
class Flaky:
    """The store's records, away while ``away``; counts the writes."""

    records: JobRecordStore
    away: bool = False
    unreadable: bool = False
    writes: int = 0
    memories: list[int] = field(default_factory=list)
    """Jobs in each write of memory."""

    def save(self, records: Sequence[JobRecord]) -> None:
        if self.away:
            raise StoreError("away")
        self.writes += bool(records)
        self.records.save(records)

    def latest(self, jobs: Collection[JobKey]) -> Mapping[JobKey, JobRecord]:
        return self.records.latest(jobs)

    def running(self) -> Sequence[JobRecord]:
        return self.records.running()

    def save_memory(self, memory: Mapping[JobRecord, JobMemory]) -> None:
        if self.away:
            raise StoreError("away")
        self.memories.append(len(memory))
        self.records.save_memory(memory)

    def memory(self, record: JobRecord) -> JobMemory | None:
        if self.unreadable:
            raise StoreError("unreadable")
        return self.records.memory(record)


@dataclass
class Head:
    """A coordinator with its recorder over a database that outlives both."""

    store: Store
    now_s: float = NOW_S
    linger_s: float = 120.0
    ranks: list[RankSummary] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    labels: dict[JobKey, SlurmLabels] = field(default_factory=dict)
    told: dict[JobKey, JobEnd] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.records = Flaky(self.store.jobs)
        self.restart()

    def restart(self) -> None:
        self.coordinator = Coordinator(
            wall_s=lambda: self.now_s, monotonic_s=lambda: self.now_s, incarnation="c", linger_s=self.linger_s
        )
        self.recorder = JobRecorder(
            self.coordinator.jobs, self.records, events=self.take_events, labels=lambda: self.labels,
            history_of=self.coordinator.history_of,
            ended_launches=self.coordinator.ended_launches, told_ends=lambda _: self.told,
            now_s=lambda: self.now_s, monotonic_s=lambda: self.now_s,
        )  # fmt: skip

    def take_events(self) -> Sequence[JobEvent]:
        events, self.events = self.events, []
        return events

    def look(self, *ranks: RankSummary, after_s: float = 1.0, **more: Any) -> None:
        self.now_s += after_s
        self.coordinator.engine_nodes([EngineNode("id7", "node7", "10.0.0.7")])
        self.coordinator.report(NodeSummary("id7", "node7", 1, "i", None, self.now_s, ranks, **more))
        self.recorder.tick()

    def ended(self) -> Sequence[JobRecord]:
        return self.store.jobs.ended(limit=100)

    @property
    def record(self) -> JobRecord:
        return self.store.jobs.latest([JOB])[JOB]

    @property
    def memory(self) -> JobMemory:
        found = self.store.jobs.memory(self.record)
        assert found is not None
        return found

    def curve(self, rank: int = 0) -> list[float]:
        """Reserved GiB, point by point."""
        (points,) = [points for number, points in self.memory.curves if number == rank]
        return [point.reserved_bytes / GIB for point in points]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    store = open_store(sqlite_url(tmp_path))
    yield Head(store)
    store.close()


def test_a_healthy_job_leaves_a_record(head: Head) -> None:
    head.look(rank_summary(0), rank_summary(1, reserved_peak_bytes=70 * GIB))
    assert (head.record.end, head.ended()) == (None, [])
    head.look(rank_summary(0, alive=False, detached=True), rank_summary(1, alive=False, detached=True))
    (record,) = head.ended()
    assert (record.end, record.ended_unix_s, record.started_unix_s) == (JobEnd.ENDED, NOW_S + 2.0, NOW_S + 1.0)
    assert (record.fullest.rank, record.fullest.hostname) == (1, "node7")
    assert record.fullest.reserved_bytes == 70 * GIB
    head.look(after_s=1000.0)
    assert (head.ended(), head.coordinator.jobs()) == ([record], ()), "it stays when the job is forgotten"


def test_a_running_job_is_written_once_a_minute_and_a_still_one_not_at_all(head: Head) -> None:
    for second in range(int(2 * KEEP_UP_S) + 4):
        head.look(rank_summary(0, step=second))
    assert head.records.writes == 3
    for _ in range(int(2 * KEEP_UP_S)):
        head.look(rank_summary(0, step=123))
    assert head.records.writes <= 4


def test_an_ended_job_is_not_written_again(head: Head) -> None:
    over = rank_summary(0, alive=False, detached=True)
    head.look(rank_summary(0))
    head.look(over)
    before = head.records.writes
    for _ in range(100):
        head.look(over)
    assert head.records.writes == before


def test_a_coordinator_that_is_killed_keeps_start_peak_and_verdict(head: Head) -> None:
    head.look(rank_summary(0, reserved_peak_bytes=70 * GIB))
    head.restart()
    head.look(rank_summary(0, reserved_peak_bytes=60 * GIB), after_s=5.0)
    head.look(rank_summary(0, alive=False), after_s=500.0)
    (record,) = head.ended()
    assert (record.started_unix_s, record.fullest.reserved_bytes) == (NOW_S + 1.0, 70 * GIB)
    assert record.end is JobEnd.KILLED


def test_an_end_that_an_earlier_coordinator_saw_stays_as_it_was(head: Head) -> None:
    head.look(rank_summary(0))
    head.look(rank_summary(0, alive=False, detached=True))
    head.restart()
    head.look(rank_summary(0, alive=False, detached=True), after_s=60.0)
    assert [one.ended_unix_s for one in head.ended()] == [NOW_S + 2.0]


def test_a_job_that_ended_while_the_coordinator_was_away_is_ended_with_its_last_news(head: Head) -> None:
    head.look(rank_summary(0))
    head.restart()
    head.look(after_s=30.0)
    assert head.ended() == []
    head.look(after_s=MISSED_AFTER_S)
    (record,) = head.ended()
    assert (record.end, record.ended_unix_s) == (JobEnd.UNKNOWN, NOW_S + 1.0)


def test_a_job_that_vanishes_between_two_looks_has_ended_too(head: Head) -> None:
    head.linger_s = 0.0
    head.restart()
    head.look(rank_summary(0))
    head.look(after_s=2.0)
    head.look(after_s=2.0)
    assert [one.end for one in head.ended()] in ([JobEnd.UNKNOWN], [JobEnd.KILLED])


def test_a_database_that_was_away_gets_the_ends_of_meanwhile(head: Head) -> None:
    head.look(rank_summary(0))
    head.records.away = True
    head.look(rank_summary(0, alive=False, detached=True))
    head.look(after_s=1000.0)
    assert head.ended() == []
    assert head.recorder.problem == "away"
    head.records.away = False
    head.look()
    assert head.recorder.problem is None
    assert [one.ended_unix_s for one in head.ended()] == [NOW_S + 2.0]


def test_a_job_id_that_is_given_again_is_another_record(head: Head) -> None:
    for after_s in (1.0, SAME_START_S + 200.0):
        head.look(rank_summary(0), after_s=after_s)
        head.look(rank_summary(0, alive=False, detached=True))
        head.look(after_s=1000.0)
    first, second = head.ended()
    assert second.ended_unix_s is not None
    assert first.started_unix_s > second.ended_unix_s


def test_a_step_that_follows_another_goes_on_with_the_record(head: Head) -> None:
    for _ in range(2):
        head.look(rank_summary(0), after_s=1.0)
        head.look(rank_summary(0, alive=False, detached=True))
        head.look(after_s=300.0)
    (record,) = head.ended()
    assert record.started_unix_s == NOW_S + 1.0


def test_four_hundred_jobs_that_end_at_once_are_one_write(head: Head) -> None:
    def ranks(*, alive: bool) -> list[RankSummary]:
        return [
            rank_summary(0, identity=identity(0, job_id=JobId(f"job {number}")), alive=alive) for number in range(400)
        ]

    head.look(*ranks(alive=True))
    head.look(*ranks(alive=False))
    assert (head.records.writes, head.store.jobs.count_ended()) == (2, 400)


def test_an_incident_and_an_action_are_written_at_once_and_survive_the_coordinator(head: Head) -> None:
    head.look(rank_summary(0))
    head.events = [JobEvent(JOB, 7), JobEvent(JOB, action=ActionKind.CAP), JobEvent(JOB._replace(job_id="other"), 8)]
    head.look(rank_summary(0))
    assert (head.record.incidents, head.record.actions) == ((7,), ("cap",))
    head.restart()
    head.events = [JobEvent(JOB, 7)]
    head.look(rank_summary(0, alive=False, detached=True))
    assert (head.record.incidents, head.record.actions, head.record.end) == ((7,), ("cap",), JobEnd.ENDED)


def test_an_event_that_is_told_while_the_database_is_away_is_not_lost(head: Head) -> None:
    head.look(rank_summary(0))
    head.records.away = True
    head.events = [JobEvent(JOB, 7)]
    head.look(rank_summary(0))
    head.records.away = False
    head.look(rank_summary(0))
    assert head.record.incidents == (7,)


def test_where_the_prolog_tells_no_account_the_controller_does(head: Head) -> None:
    head.look(rank_summary(0))
    head.labels = {JOB._replace(group="step 1"): SlurmLabels("gpu", "physics")}
    head.look(rank_summary(0))
    head.labels = {}
    head.look(rank_summary(0, alive=False, detached=True))
    (record,) = head.ended()
    assert (record.account, record.partition) == ("physics", "gpu")


def end_told_by(head: Head, *, over: RankSummary = OVER, **launch: Any) -> JobEnd | None:
    """How a job of a `tidegauge run` ended that itself ends a moment after the rank."""
    head.look(rank_summary(0, launch=LAUNCH.process), launches=(LAUNCH,))
    head.look(over, launches=(LAUNCH,))
    assert head.record.end in (JobEnd.ENDED, JobEnd.KILLED, JobEnd.OOM)
    head.look(over, ended_launches=(replace(LAUNCH, state=LaunchState.ENDED, **launch),))
    return head.record.end


@pytest.mark.parametrize(
    ("launch", "end"),
    [
        ({"exit_status": 0}, JobEnd.COMPLETED),
        ({"exit_status": 1}, JobEnd.FAILED),
        ({"exit_status": -9}, JobEnd.FAILED),
        ({"exit_status": 0, "cancelled": True}, JobEnd.CANCELLED),
        ({"exit_status": 0, "restarts": 1}, JobEnd.REQUEUED),
    ],
)
def test_tidegauge_run_tells_how_its_job_ended(head: Head, launch: dict[str, Any], end: JobEnd) -> None:
    assert end_told_by(head, **launch) is end


@pytest.mark.parametrize(
    ("launch", "end"),
    [
        ({"exit_status": 0}, JobEnd.COMPLETED),
        ({"exit_status": 0, "cancelled": True}, JobEnd.CANCELLED),
        ({"exit_status": 0, "restarts": 1}, JobEnd.REQUEUED),
        ({"exit_status": 0, "uid": LAUNCH.uid + 1}, JobEnd.ENDED),
        ({"exit_status": 0, "job_id": "another"}, JobEnd.ENDED),
    ],
)
def test_a_job_that_ended_while_the_service_was_down_goes_by_its_own_tidegauge_run(
    head: Head, launch: dict[str, Any], end: JobEnd
) -> None:
    ended = replace(LAUNCH, state=LaunchState.ENDED, **launch)
    head.look(rank_summary(0, launch=LAUNCH.process), launches=(LAUNCH,))
    head.restart()
    head.look(OVER, ended_launches=(ended,))
    assert head.record.end is end


@pytest.mark.parametrize(
    ("launch", "end"),
    [
        ({"exit_status": 0}, JobEnd.COMPLETED),
        ({"exit_status": 2}, JobEnd.FAILED),
        ({"exit_status": 0, "cancelled": True}, JobEnd.CANCELLED),
        ({"exit_status": 0, "restarts": 1}, None),
        ({"exit_status": 0, "uid": LAUNCH.uid + 1}, None),
        ({"exit_status": 0, "job_id": "another"}, None),
    ],
)
def test_a_job_whose_ranks_nobody_saw_end_goes_by_its_own_tidegauge_run(
    head: Head, launch: dict[str, Any], end: JobEnd | None
) -> None:
    head.look(rank_summary(0, launch=LAUNCH.process), launches=(LAUNCH,))
    before = head.record
    head.restart()
    head.look(ended_launches=(replace(LAUNCH, state=LaunchState.ENDED, **launch),))
    assert head.record == before._replace(ended_unix_s=before.updated_unix_s if end else None, end=end)
    head.look(after_s=MISSED_AFTER_S)
    assert head.record.end is (end or JobEnd.UNKNOWN)


def test_a_job_that_goes_on_after_its_end_was_told_has_its_last_figures(head: Head) -> None:
    """An agent tells of launches before it has found all rings."""
    head.look(rank_summary(0, launch=LAUNCH.process), launches=(LAUNCH,))
    head.restart()
    ended = replace(LAUNCH, state=LaunchState.ENDED, exit_status=0)
    head.look(ended_launches=(ended,))
    head.look(replace(OVER, step=4321), ended_launches=(ended,))
    assert (head.record.end, head.record.steps, len(head.ended())) == (JobEnd.COMPLETED, 4321, 1)


def test_of_two_runs_of_one_name_none_tells_how_a_job_ended_that_nobody_saw_end(head: Head) -> None:
    one = replace(LAUNCH, state=LaunchState.ENDED, exit_status=0)
    other = replace(one, process=ProcessId(9, 9), exit_status=1)
    head.look(OVER, ended_launches=(one, other))
    assert head.record.end is JobEnd.ENDED


def test_tidegauge_run_does_not_talk_an_oom_away(head: Head) -> None:
    assert end_told_by(head, over=replace(OVER, last_oom=OOM), exit_status=1) is JobEnd.OOM


@pytest.mark.parametrize(
    ("action", "end"),
    [
        (ActionKind.REQUEUE, JobEnd.REQUEUED),
        (ActionKind.HOLD, JobEnd.CANCELLED),
        (ActionKind.CANCEL, JobEnd.CANCELLED),
        (ActionKind.CAP, JobEnd.ENDED),
    ],
)
def test_an_action_that_ended_the_job_is_its_end(head: Head, action: ActionKind, end: JobEnd) -> None:
    head.look(rank_summary(0))
    head.look(OVER)
    head.events = [JobEvent(JOB, action=action)]
    head.look(OVER)
    assert head.record.end is end
    head.restart()
    head.look(OVER)
    assert head.record.end is end


def test_the_schedulers_word_replaces_that_of_the_ranks(head: Head) -> None:
    head.look(rank_summary(0))
    head.told = {JOB: JobEnd.FAILED}
    head.look(rank_summary(0))
    assert head.record.end is None, "it runs"
    head.look(OVER)
    assert head.record.end is JobEnd.FAILED


def test_the_schedulers_word_is_no_more_than_a_ranks_oom(head: Head) -> None:
    head.look(rank_summary(0))
    head.told = {JOB: JobEnd.FAILED}
    head.look(replace(OVER, last_oom=OOM))
    assert head.record.end is JobEnd.OOM


def filled(gib: float, **changes: Any) -> RankSummary:
    """A rank after a step, with so much reserved, that has not reset its peak."""
    peak = changes.pop("reserved_peak_bytes", int(gib * GIB))
    figures = {"reserved_bytes": int(gib * GIB), "reserved_peak_bytes": peak, "last_sample_unix_s": gib}
    return rank_summary(0, **(figures | changes))


def test_peaks_and_curve_of_a_job_stay_when_its_ranks_are_forgotten(head: Head) -> None:
    for gib in (1, 30, 2):
        head.look(filled(gib, step=gib))
    head.look(filled(3, alive=False, detached=True, step=33))
    head.look(after_s=1000.0)
    assert head.coordinator.jobs() == ()
    (peak,) = head.memory.peaks
    assert (peak.reserved_bytes, peak.steps, peak.hostname) == (30 * GIB, 33, "node7")
    assert head.curve() == [1, 30, 2, 3]


def test_the_next_coordinator_goes_on_with_the_curve_and_the_peaks(head: Head) -> None:
    head.look(filled(1), filled(5, identity=identity(1), process=ProcessId(1, 1)))
    head.look(filled(30), after_s=KEEP_UP_S)
    head.look(filled(2), after_s=KEEP_UP_S)
    head.restart()
    for gib in (3, 4):
        head.look(filled(gib))
    head.look(filled(5, alive=False, detached=True))
    assert [(peak.rank, peak.reserved_bytes) for peak in head.memory.peaks] == [(0, 30 * GIB), (1, 5 * GIB)]
    assert (head.curve(), head.curve(1)) == ([1, 30, 2, 3, 4, 5], [5])


def test_the_curve_of_a_rank_that_was_started_again_goes_on(head: Head) -> None:
    head.look(filled(9))
    head.look(filled(1, process=ProcessId(5, 5), last_sample_unix_s=10.0), after_s=KEEP_UP_S)
    head.look(filled(2, process=ProcessId(5, 5), last_sample_unix_s=11.0, alive=False), after_s=1.0)
    assert head.curve() == [9, 1, 2]


def test_a_job_id_that_is_given_again_has_memory_of_its_own(head: Head) -> None:
    for gib, after_s in ((7, 1.0), (1, SAME_START_S + 200.0)):
        head.look(filled(gib), after_s=after_s)
        head.look(filled(gib + 1, alive=False))
        head.look(after_s=1000.0)
    assert (head.curve(), [peak.reserved_bytes for peak in head.memory.peaks]) == ([1, 2], [2 * GIB])


def test_a_curve_outlasts_a_database_that_is_away_for_longer_than_the_rank_is_known(head: Head) -> None:
    head.look(filled(1))
    head.records.away = True
    head.look(filled(2, alive=False))
    for _ in range(3):
        head.look(after_s=100.0)
    head.records.away = False
    head.look()
    assert head.curve() == [1, 2]


def test_memory_that_cannot_be_read_is_not_written_over_and_costs_no_other_job_its_own(head: Head) -> None:
    head.look(filled(9))
    head.restart()
    head.records.unreadable = True
    other = filled(3, identity=identity(0, job_id=JobId("new")), process=ProcessId(5, 5))
    head.look(filled(1), other)
    assert (head.curve(), len(head.store.jobs.running())) == ([9], 2)
    assert {record.job.job_id: head.store.jobs.memory(record) is None for record in head.store.jobs.running()} == {
        "4711": False, "new": False
    }  # fmt: skip


def test_a_still_jobs_memory_is_not_written_again(head: Head) -> None:
    for _ in range(int(3 * KEEP_UP_S)):
        head.look(filled(1))
    assert len(head.records.memories) == 1


@dataclass
class InMemory:
    """``JobRecords`` that holds all and counts."""

    records: dict[JobKey, JobRecord] = field(default_factory=dict)
    kept: dict[JobKey, JobMemory] = field(default_factory=dict)
    most_ranks: int = 0
    """Of one write of memory."""

    def save(self, records: Sequence[JobRecord]) -> None:
        self.records |= {record.job: record for record in records}

    def latest(self, jobs: Collection[JobKey]) -> Mapping[JobKey, JobRecord]:
        return {}

    def running(self) -> Sequence[JobRecord]:
        return []

    def save_memory(self, memory: Mapping[JobRecord, JobMemory]) -> None:
        self.kept |= {record.job: value for record, value in memory.items()}
        self.most_ranks = max(self.most_ranks, sum(len(value.peaks) for value in memory.values()))

    def memory(self, record: JobRecord) -> JobMemory | None:
        return None


def test_ten_thousand_ranks_that_end_at_once_are_written_within_a_minute_a_bounded_part_at_a_time() -> None:
    ranks = tuple(
        filled(1, identity=identity(number % 4, job_id=JobId(str(number // 4))), process=ProcessId(number, 1))
        for number in range(10_000)
    )
    there = list(job_views_of(ranks))
    store, clock = InMemory(), [0.0]
    history = MemoryHistory()
    history.add(MemoryPoint(NOW_S, 1, GIB, GIB, None))
    recorder = JobRecorder(
        lambda: there, store, history_of=lambda *_: history, now_s=lambda: NOW_S + clock[0],
        monotonic_s=lambda: clock[0],
    )  # fmt: skip
    for _ in range(60):
        clock[0] += 1.0
        recorder.tick()
    store.kept.clear()
    there[:] = job_views_of(replace(rank, alive=False) for rank in ranks)
    for _ in range(60):
        clock[0] += 1.0
        recorder.tick()
    assert sum(len(value.peaks) for value in store.kept.values()) == 10_000
    assert all(len(value.curves) == 4 for value in store.kept.values())
    assert store.most_ranks <= MAX_RANKS_A_TICK + 4


def job_views_of(ranks: Iterable[RankSummary]) -> Iterator[JobView]:
    for job_id, of_job in groupby(ranks, key=lambda rank: rank.identity.job_id):
        members = tuple(of_job)
        yield job_view(
            job_id=job_id, ranks=members, rank_nodes=("id7",) * len(members), rank_hostnames=("node7",) * len(members),
            running=members[0].alive,
        )  # fmt: skip
