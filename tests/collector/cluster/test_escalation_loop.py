"""The loop's turns over a coordinator that was told of ranks, whose nodes answer orders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from evidence_values import evidence, nothing_found
from sample_views import LEAK, NOW_S, identity, rank_summary
from scheduler_values import JOB
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.escalation_loop import LOOK_EVERY_S, EscalationLoop
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks, EvidenceWish, WishAnswer
from tidegauge.cluster.store import EvidenceStore, StoreError, open_store, sqlite_url
from tidegauge.core.evidence import Evidence
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.escalation import EscalationRules
from tidegauge.core.orders import OrderResult
from tidegauge.core.views import NodeSummary
from tidegauge.protocol.messages import ReportReply

RULES = EscalationRules()
Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Site:
    """One node with one leaking rank, which does what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.now_s = NOW_S
        self.coordinator = Coordinator(wall_s=lambda: self.now_s, monotonic_s=lambda: self.now_s, incarnation="c")
        self.asks = EvidenceAsks(folder / "asks")
        self.store = open_store(sqlite_url(folder))
        self.problem: str | None = None
        self.asked: list[Mapping[str, Any]] = []
        self.answer: Answer = lambda request: {"ok": True, "id": request["id"], "state": "recording"}
        self.threads: list[threading.Thread] = []
        self.sent_s = 0.0
        self.restart()

    def restart(self) -> None:
        self.loop = EscalationLoop(
            self.coordinator, self._table, asks=self.asks, now_s=lambda: self.now_s, submit=self._submit
        )

    def turn(self, *pieces: Evidence, after_s: float = 0.0) -> None:
        """One turn, and reports of the node until nobody waits for it any more."""
        self.now_s += after_s
        self._report(*pieces)
        self.loop.turn()
        while any(thread.is_alive() for thread in self.threads):
            orders = self._report().orders
            self.asked += [order.request for order in orders]
            self._report(results=tuple(OrderResult(order.order_id, self.answer(order.request)) for order in orders))
            self.threads[-1].join(0.001)
        self.threads.clear()

    def _table(self) -> EvidenceStore:
        if self.problem is not None:
            raise StoreError(self.problem)
        return self.store.evidence

    def _submit(self, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _report(self, *pieces: Evidence, results: tuple[OrderResult, ...] = ()) -> ReportReply:
        self.sent_s += 1.0
        rank = rank_summary(1, identity=identity(1, profile="auto"), verdict=LEAK)
        return self.coordinator.report(
            NodeSummary(
                "engine-0", "node0", 321, "i", None, self.sent_s, (rank,), order_results=results, evidence=pieces
            )
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.store.close()


def refuse(kind: str, error: str = "no") -> Answer:
    return lambda _: {"error": error, "kind": kind}


def test_a_leaking_rank_is_asked_and_its_evidence_kept(site: Site) -> None:
    site.turn()
    (request,) = site.asked
    assert (request["command"], request["reason"], request["window_steps"]) == ("evidence", "suspected", 30)
    site.turn(evidence(evidence_id=request["id"]), after_s=60.0)
    assert [piece.evidence_id for piece in site.store.evidence.of_job(JOB, limit=9)] == [request["id"]]
    site.turn(after_s=RULES.named_quiet_s - LOOK_EVERY_S)
    assert len(site.asked) == 1
    site.turn(after_s=LOOK_EVERY_S)
    assert len(site.asked) == 2


@pytest.mark.parametrize(
    ("answer", "again_s"),
    [
        (refuse("busy"), RULES.refused_again_s),
        (refuse("unable"), RULES.longest_period_s),
        (refuse("usage", "no such command: evidence"), RULES.longest_period_s),
    ],
)
def test_a_rank_that_refuses_is_asked_again_when_that_makes_sense(site: Site, answer: Answer, again_s: float) -> None:
    site.answer = answer
    site.turn()
    site.turn(after_s=2.0)  # takes notice of the refusal
    site.turn(after_s=again_s - LOOK_EVERY_S)
    assert len(site.asked) == 1
    site.turn(after_s=LOOK_EVERY_S)
    assert len(site.asked) == 2


def test_a_restart_does_not_ask_again_what_was_answered(site: Site) -> None:
    site.turn()
    cut_short = nothing_found(evidence_id=site.asked[0]["id"])
    site.turn(cut_short, after_s=60.0)
    site.restart()
    site.turn(after_s=RULES.period_s - 60.0)
    assert len(site.asked) == 1
    site.turn(after_s=60.0)
    assert len(site.asked) == 2


def test_without_a_database_nobody_is_asked_and_nothing_is_lost(site: Site) -> None:
    site.problem = "disk full"
    site.turn(evidence())
    site.turn(after_s=60.0)
    assert site.asked == []
    site.problem = None
    site.turn(after_s=60.0)
    assert [piece.evidence_id for piece in site.store.evidence.of_job(JOB, limit=9)] == ["auto-1"]
    assert site.asked == []  # it is named already


def test_a_defect_over_one_turn_does_not_end_the_loop(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    ask, site.coordinator.jobs = site.coordinator.jobs, None  # type: ignore[method-assign,assignment] # SAFETY: a defect
    site.turn()
    assert "an escalation pass failed" in caplog.text
    site.coordinator.jobs = ask  # type: ignore[method-assign] # SAFETY: as it was
    site.turn(after_s=2.0)
    assert len(site.asked) == 1


def wish(site: Site, rank: int = 1, job: JobKey = JOB) -> EvidenceWish:
    return site.asks.put(job, rank, {"command": "snapshot", "id": "x", "max_events": 500})


def test_escalation_loop_forwards_a_users_request_and_stores_the_answer(site: Site) -> None:
    site.problem = "away"  # a person's wish needs no database
    site.answer = lambda _: {"ok": True, "file": "1-2.asked.snap"}
    mine = wish(site)
    assert site.asks.fetch(mine) is None
    site.turn()
    assert site.asked == [{"command": "snapshot", "id": "x", "max_events": 500}]
    assert site.asks.fetch(mine) == WishAnswer(mine.wish_id, {"ok": True, "file": "1-2.asked.snap"})
    assert site.asks.fetch(mine) is None
    site.turn(after_s=2.0)
    assert len(site.asked) == 1


@pytest.mark.parametrize(("rank", "job"), [(0, JOB), (1, JobKey("4711", 1, 1001)), (1, JobKey("4711", 0, 7))])
def test_a_wish_for_a_rank_that_does_not_run_is_answered_with_that(site: Site, rank: int, job: JobKey) -> None:
    site.problem = "away"
    mine = wish(site, rank, job)
    site.turn()
    answer = site.asks.fetch(mine)
    assert answer is not None
    assert answer.error == f"rank {rank} of job 4711 attempt {job.attempt} is not running"
    assert site.asked == []


def test_the_ranks_own_refusal_reaches_the_person(site: Site) -> None:
    site.problem, site.answer = "away", refuse("busy", "the job records by itself")
    mine = wish(site)
    site.turn()
    answer = site.asks.fetch(mine)
    assert answer is not None
    assert answer.error == "the job records by itself"
