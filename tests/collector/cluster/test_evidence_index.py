"""Evidence between reports and the database: what is answered when, and what is remembered."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from evidence_values import evidence, snapshot_ref
from sample_views import NOW_S
from scheduler_values import JOB
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.evidence_index import (
    MAX_JOBS,
    MAX_PIECES_PER_JOB,
    REMEMBER_JOBS_S,
    EvidenceIndex,
)
from tidegauge.cluster.coordinator.piece_queue import MAX_PIECES_PER_REPORT, MAX_WAITING
from tidegauge.cluster.store import KeptEvidence
from tidegauge.core.evidence import Evidence
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.views import NodeSummary


@dataclass
class Table:
    """``evidence_index.EvidenceTable`` in memory; ``problem`` is what every call raises."""

    kept: list[KeptEvidence] = field(default_factory=list)
    open_jobs: set[JobKey] = field(default_factory=set)
    refuses: frozenset[str] = frozenset()
    problem: str | None = None

    def keep(self, pieces: Sequence[Evidence], *, at_s: float) -> Collection[Evidence]:
        self._check()
        known = {(one.evidence.job, one.evidence.evidence_id) for one in self.kept}
        new = [one for one in pieces if (one.job, one.evidence_id) not in known and one.evidence_id not in self.refuses]
        self.kept += [KeptEvidence(at_s, piece) for piece in new]
        return new

    def recent(self, *, since_s: float, limit: int) -> Iterator[KeptEvidence]:
        self._check()
        return iter([one for one in self.kept if one.kept_s >= since_s][-limit:])

    def of_open_incidents(self, *, limit: int) -> Iterator[KeptEvidence]:
        self._check()
        return iter([one for one in self.kept if one.evidence.job in self.open_jobs][-limit:])

    def open_among(self, jobs: Collection[JobKey]) -> frozenset[JobKey]:
        self._check()
        return frozenset(self.open_jobs & set(jobs))

    def _check(self) -> None:
        if self.problem is not None:
            raise AuditError(self.problem)


def summary(*pieces: Evidence, hostname: str = "node0", sent_s: float = NOW_S) -> NodeSummary:
    return NodeSummary("engine-0", hostname, 321, "i", None, sent_s, evidence=pieces)


@pytest.fixture
def keeper() -> EvidenceIndex:
    return EvidenceIndex()


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_piece_is_answered_once_it_is_in_the_database(keeper: EvidenceIndex, table: Table) -> None:
    assert keeper.take([evidence()]) == ()
    (new,) = keeper.write(table, now_s=NOW_S)
    assert (new.job, new.brief.evidence_id, new.hostname) == (JOB, "auto-1", "node0")
    assert keeper.take([evidence()]) == ("auto-1",)
    assert keeper.write(table, now_s=NOW_S + 1.0) == []
    assert [one.kept_s for one in table.kept] == [NOW_S]
    assert [piece.brief.evidence_id for piece in keeper.news()[JOB]] == ["auto-1"]


def test_while_the_database_is_away_it_waits_and_nobody_knows_what_may_go(keeper: EvidenceIndex, table: Table) -> None:
    keeper.write(table, now_s=NOW_S)
    assert keeper.wanted_on("node0") == frozenset()
    keeper.take([evidence()])
    table.problem = "away"
    with pytest.raises(AuditError):
        keeper.write(table, now_s=NOW_S)
    assert keeper.take([evidence()]) == ()
    assert keeper.news() == {}
    assert keeper.wanted_on("node0") is None
    table.problem = None
    assert len(keeper.write(table, now_s=NOW_S)) == 1


def test_a_piece_that_no_database_takes_is_not_asked_for_again(keeper: EvidenceIndex, table: Table) -> None:
    table.refuses = frozenset({"auto-1"})
    keeper.take([evidence()])
    assert keeper.write(table, now_s=NOW_S) == []
    assert keeper.take([evidence()]) == ("auto-1",)


def test_a_job_that_copies_anothers_id_does_not_get_it_forgotten(keeper: EvidenceIndex, table: Table) -> None:
    copy = evidence(job=JobKey("666", 0, 7))
    keeper.take([copy])
    keeper.write(table, now_s=NOW_S)
    assert keeper.take([evidence(), copy]) == ()
    keeper.write(table, now_s=NOW_S)
    assert keeper.take([evidence(), copy]) == ("auto-1",)
    assert len(table.kept) == 2


def test_evidence_index_bounds_waiting_pieces_until_they_are_reported_again(
    keeper: EvidenceIndex, table: Table
) -> None:
    pieces = [evidence(evidence_id=f"e{number}") for number in range(3 * MAX_WAITING)]
    keeper.take([*pieces[: MAX_PIECES_PER_REPORT + 5]])
    assert len(keeper.write(table, now_s=NOW_S)) == MAX_PIECES_PER_REPORT
    for begin in range(0, len(pieces), MAX_PIECES_PER_REPORT):
        keeper.take([*pieces[begin : begin + MAX_PIECES_PER_REPORT]])
    assert len(keeper.write(table, now_s=NOW_S)) == MAX_WAITING


def test_snapshots_that_open_incidents_point_to_must_stay_where_they_are(keeper: EvidenceIndex, table: Table) -> None:
    newer = evidence(evidence_id="newer", at_unix_s=NOW_S + 1.0, snapshots=(snapshot_ref(1, 999),))
    elsewhere = evidence(2, hostname="node1", snapshots=(snapshot_ref(2),))
    over = evidence(job=JobKey("over", 0, 1001), snapshots=(snapshot_ref(3),))
    keeper.take([evidence(), newer, elsewhere, over])
    table.open_jobs = {JOB}
    keeper.write(table, now_s=NOW_S)
    assert keeper.wanted_on("node0") == frozenset({snapshot_ref(1, 999).key})
    assert keeper.wanted_on("node1") == frozenset({snapshot_ref(2).key})
    assert keeper.wanted_on("node7") == frozenset()
    table.open_jobs = set()
    keeper.write(table, now_s=NOW_S)
    assert keeper.wanted_on("node0") == frozenset()


def test_another_coordinator_knows_what_was_kept(keeper: EvidenceIndex, table: Table) -> None:
    table.kept = [
        KeptEvidence(NOW_S - 2 * REMEMBER_JOBS_S, evidence(evidence_id="old")),
        KeptEvidence(NOW_S - 2 * REMEMBER_JOBS_S, evidence(evidence_id="gone", job=JobKey("gone", 0, 1))),
        KeptEvidence(NOW_S - 60.0, evidence(evidence_id="new")),
    ]
    table.open_jobs = {JOB}
    kept = keeper.recall(table, now_s=NOW_S)
    assert [one.news.brief.evidence_id for one in kept] == ["old", "new"]
    assert set(keeper.news()) == {JOB}
    assert keeper.take([evidence(evidence_id="new")]) == ("new",)


def test_evidence_index_recalls_kept_pieces_one_at_a_time(keeper: EvidenceIndex) -> None:
    alive = weakref.WeakSet[Evidence]()
    most = 0

    class Fresh(Table):
        def recent(self, *, since_s: float, limit: int) -> Iterator[KeptEvidence]:
            nonlocal most
            for number in range(50):
                kept = KeptEvidence(NOW_S, evidence(evidence_id=f"e{number}"))
                alive.add(kept.evidence)
                most = max(most, len(alive))
                yield kept

        def of_open_incidents(self, *, limit: int) -> Iterator[KeptEvidence]:
            return self.recent(since_s=0.0, limit=limit)

    kept = keeper.recall(Fresh(), now_s=NOW_S)
    assert [one.news.brief.evidence_id for one in kept] == [f"e{number}" for number in range(50)]
    assert most <= 2
    assert len(alive) == 0


def test_jobs_are_forgotten_after_a_day_unless_their_incident_is_open(keeper: EvidenceIndex, table: Table) -> None:
    other = JobKey("other", 0, 1)
    keeper.take([evidence(), evidence(job=other)])
    table.open_jobs = {JOB}
    keeper.write(table, now_s=NOW_S)
    assert set(keeper.news()) == {JOB, other}
    keeper.write(table, now_s=NOW_S + REMEMBER_JOBS_S)
    assert set(keeper.news()) == {JOB}


def test_memory_is_bounded_whatever_comes(keeper: EvidenceIndex, table: Table) -> None:
    table.kept = [
        KeptEvidence(NOW_S, evidence(evidence_id=f"e{number}", job=JobKey(f"job {number % (MAX_JOBS + 9)}", 0, 1)))
        for number in range(MAX_JOBS + 9)
    ]
    table.kept += [
        KeptEvidence(NOW_S, evidence(evidence_id=f"of one {number}")) for number in range(2 * MAX_PIECES_PER_JOB)
    ]

    class All(Table):
        def recent(self, *, since_s: float, limit: int) -> Iterator[KeptEvidence]:
            return iter(self.kept)

    keeper.recall(All(table.kept), now_s=NOW_S)
    keeper.write(table, now_s=NOW_S)
    news = keeper.news()
    assert len(news) == MAX_JOBS
    assert len(news[JOB]) == MAX_PIECES_PER_JOB
    assert JobKey("job 0", 0, 1) not in news


def test_the_coordinator_answers_reports_with_it(table: Table) -> None:
    coordinator = Coordinator(wall_s=lambda: NOW_S, monotonic_s=lambda: 1.0, incarnation="c")

    def reply(sent_s: float, *pieces: Evidence) -> Any:
        return coordinator.report(summary(*pieces, sent_s=sent_s))

    first = reply(1.0, evidence())
    assert (first.evidence_kept, first.snapshots_wanted) == ((), None)
    table.open_jobs = {JOB}
    coordinator.kept_evidence.write(table, now_s=NOW_S)
    second = reply(2.0, evidence())
    assert second.evidence_kept == ("auto-1",)
    assert second.snapshots_wanted == {ref.key for ref in evidence().snapshots}
    assert set(coordinator.evidence()) == {JOB}
