"""Earlier runs are found in a real database, and judge a job on its coordinator and on its node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from earlier_courses import LIMIT, Course, fills, rows, run
from leakseries.machine import feed
from sample_views import GIB, LEAK, MIB, NOW_S, identity, rank_view
from tidegauge.agent.evidence.growth_bounds import GrowthBounds
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.earlier_runs import MAX_JOBS_A_TICK, EarlierRunsLookup
from tidegauge.cluster.store import Store, StoreError, open_store, sqlite_url
from tidegauge.cluster.views import EngineNode
from tidegauge.core.detector import RankDetector
from tidegauge.core.evidence.growth_bound import EARLIER_RUNS
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.job_records.search import RecordFilter
from tidegauge.core.verdicts import LeakState, Severity
from tidegauge.core.views import JobView, NodeSummary, RankView

WHO = identity(0, script="train.py", script_sha256="ab", arguments="--batch 64", world_size=2)


class Site:
    """A coordinator with its database and one node, whose agent hears the coordinator's replies."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(sqlite_url(folder))
        self.now_s = NOW_S
        self.coordinator = Coordinator(wall_s=lambda: self.now_s, monotonic_s=lambda: self.now_s, incarnation="c")
        self.bounds = GrowthBounds(folder)
        self.lookup = EarlierRunsLookup(
            self.coordinator.jobs, self.store.jobs, self.coordinator.know_earlier_runs, now_s=lambda: self.now_s
        )

    def remember(self, *courses: Course, steps: int = 3000, **changes: Any) -> None:
        for number, course in enumerate(courses):
            record, memory = run(course, steps, number=number, **changes)
            self.store.jobs.save([record])
            self.store.jobs.save_memory({record: memory})

    def report(self, *ranks: RankView) -> JobView:
        """What the node tells of these ranks, with the bounds that it knows."""
        self.now_s += 1.0
        self.coordinator.engine_nodes([EngineNode("id7", "node7", "10.0.0.7")])
        seen = self.bounds.applied(ranks, {rank.process for rank in ranks})
        summaries = tuple(rank.summary() for rank in seen)
        reply = self.coordinator.report(NodeSummary("id7", "node7", 1, "i", None, self.now_s, summaries))
        self.bounds.borrow(reply.peer_bounds)
        self.lookup.tick()
        return self.coordinator.jobs()[0]

    def train(self, course: Course, steps: int) -> tuple[list[JobView], list[Severity | None], list[Severity | None]]:
        """Each view of the job, what its node says at each step, and what the detector says by itself."""
        detector, views, most = RankDetector(), list[JobView](), 0
        on_node, alone = list[Severity | None](), list[Severity | None]()
        for row in rows(course, steps, 77):
            most = max(most, row.peak_allocated)
            rank = rank_view(
                0, identity=WHO, verdict=feed(detector, row, limit_bytes=LIMIT), step=row.step, limit_bytes=LIMIT,
                allocated_bytes=row.allocated, allocated_peak_bytes=most, reserved_bytes=row.reserved,
                profile_bytes={},
            )  # fmt: skip
            views.append(self.report(rank))
            (applied,) = self.bounds.applied((rank,), {rank.process})
            for said, verdict in ((on_node, applied.verdict), (alone, rank.verdict)):
                said.append(verdict.severity if verdict.state is LeakState.LEAK else None)
        return views, on_node, alone


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.store.close()


def test_growth_that_ended_in_earlier_runs_is_no_danger_on_the_head_and_on_the_node(site: Site) -> None:
    site.remember(*[fills()] * 4)
    views, on_node, alone = site.train(fills(), 900)
    assert Severity.CRITICAL in alone
    assert {view.severity for view in views} <= {None, Severity.NOTE, Severity.WARNING}
    assert Severity.CRITICAL not in on_node
    (bound,) = views[alone.index(Severity.CRITICAL)].bounds.values()
    assert (bound.kind, bound.items) == (EARLIER_RUNS, 4)
    assert all(view.change is None for view in views)


def test_growth_beyond_earlier_runs_is_told_with_its_change(site: Site) -> None:
    site.remember(*[fills()] * 4, arguments="--batch 32")
    views, on_node, _ = site.train(fills(until=90 * GIB), 1110)
    told = next(view for view in views if view.severity is Severity.CRITICAL)
    assert told.change is not None
    assert "beyond those of 4 earlier runs" in told.change
    assert "arguments --batch 32 → --batch 64" in told.change
    assert on_node[-1] is Severity.CRITICAL


def test_without_records_a_job_is_judged_by_itself(site: Site) -> None:
    site.remember(*[fills()] * 2)
    views, on_node, alone = site.train(fills(), 700)
    assert [view.severity for view in views][-1] is Severity.CRITICAL
    assert on_node == alone


def test_a_node_whose_coordinator_is_away_calls_growth_beyond_the_end_a_danger(site: Site) -> None:
    site.remember(*[fills()] * 4)
    site.train(fills(), 700)
    for held, severity in ((50 * GIB, Severity.WARNING), (58 * GIB, Severity.CRITICAL)):
        rank = rank_view(0, identity=WHO, verdict=LEAK, allocated_bytes=held)
        (seen,) = site.bounds.applied([rank], {rank.process})
        assert seen.verdict.severity is severity


class Broken:
    def __init__(self, store: Store) -> None:
        self.store, self.away, self.asked = store, True, 0

    def ended(self, which: RecordFilter, *, limit: int) -> list[JobRecord]:
        self.asked += 1
        if self.away:
            raise StoreError("away")
        return list(self.store.jobs.ended(which, limit=limit))

    def memory(self, record: JobRecord) -> Any:
        return self.store.jobs.memory(record)


def test_a_database_that_is_away_is_asked_again_and_each_job_once(site: Site) -> None:
    site.remember(*[fills()] * 4)
    broken = Broken(site.store)
    site.lookup = EarlierRunsLookup(
        site.coordinator.jobs, broken, site.coordinator.know_earlier_runs, now_s=lambda: site.now_s
    )
    one = rank_view(0, identity=WHO, step=5, allocated_bytes=70 * GIB, allocated_peak_bytes=70 * GIB)
    assert site.report(one).change is None
    broken.away = False
    assert site.report(one).change is not None
    for _ in range(5):
        site.report(one)
    assert broken.asked == 2


def test_many_jobs_that_come_at_once_are_looked_up_a_few_at_a_time(site: Site) -> None:
    found: list[JobKey] = []
    site.remember(*[fills()] * 4, steps=10)
    site.lookup = EarlierRunsLookup(
        site.coordinator.jobs, site.store.jobs, lambda job, _: found.append(job), now_s=lambda: site.now_s
    )
    ranks = []
    for number in range(2 * MAX_JOBS_A_TICK + 1):
        who = identity(number, job_id=f"j{number}", script="train.py", script_sha256="ab")
        ranks.append(rank_view(number, identity=who, step=1, allocated_bytes=MIB))
    counts = []
    for _ in range(4):
        site.report(*ranks)
        counts.append(len(found))
    assert counts == [MAX_JOBS_A_TICK, 2 * MAX_JOBS_A_TICK, len(ranks), len(ranks)]


def test_a_job_that_has_not_begun_is_not_looked_up_yet(site: Site) -> None:
    site.remember(*[fills()] * 4, steps=10)
    one = rank_view(0, identity=WHO, step=0, allocated_bytes=70 * GIB)
    assert site.report(one).change is None
    assert site.report(one).change is None
