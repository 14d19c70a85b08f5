"""Escalates suspected ranks and collects evidence inside the coordinator, every two seconds in a thread of its own.

Each pass writes new evidence into the database, asks suspected ranks (``core.incidents.escalation`` picks them), and
passes on people's requests. Requests to ranks are not written down: after a restart the database shows when each rank
last gave evidence, and a rank that still records answers that it is busy.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.evidence_index import EvidenceTable
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks, EvidenceWish, WishAnswer
from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.evidence.request import Window, evidence_request
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import AuditError, RankTarget
from tidegauge.core.incidents.escalation import EscalationState, EvidenceAsk, escalate, learnt, refused
from tidegauge.core.orders import Reply
from tidegauge.steady_clock import PolicyClock

log = logging.getLogger(__name__)

TURN_EVERY_S = 2.0
LOOK_EVERY_S = 5.0
"""At all jobs: with 100,000 ranks that takes the coordinator most of a second, and a trend takes minutes to be one."""
ANSWER_WITHIN_S = 15.0
"""A rank says at once that it begins; the way there and back takes two to three reports of its agent."""
SNAPSHOT_WITHIN_S = 60.0
"""A plain snapshot waits for the rank's next step."""
WORKERS = 8
UNABLE = "unable"
"""The kind of a rank's answer that cannot give evidence, now or later."""
NO_SUCH_COMMAND = "no such command"
"""How a probe from before evidence answers."""


class _Refusal(NamedTuple):
    ask: EvidenceAsk
    for_good: bool


class EscalationLoop:
    """The loop of escalation: ``start`` begins its thread. ``table`` raises ``AuditError`` while the database is not
    open; ``submit`` runs a call in a worker; ``now_s`` is Unix time that never runs backwards."""

    def __init__(
        self,
        coordinator: Coordinator,
        table: Callable[[], EvidenceTable],
        *,
        asks: EvidenceAsks,
        now_s: Callable[[], float],
        submit: Callable[[Callable[[], None]], object],
    ) -> None:
        self._coordinator = coordinator
        self._table = table
        self._asks = asks
        self._now_s = now_s
        self._submit = submit
        self._state = EscalationState()
        self._is_recalled = False
        self._looked_s = float("-inf")
        self._problem: str | None = None
        self._refusals: queue.SimpleQueue[_Refusal] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="tidegauge-escalation", daemon=True).start()

    def stop(self) -> None:
        """Begin no further turn. Ranks that were asked end their windows by themselves."""
        self._stopped.set()

    def ask_rank(self, job: JobKey, rank: int, evidence_id: str) -> Reply:
        """Ask a rank for evidence now, and wait for its word that it begins. The same id again asks how far it is."""
        request = evidence_request(evidence_id, EvidenceReason.ASKED, Window())
        return self._answer_of(EvidenceWish(evidence_id, job, rank, request))

    def turn(self) -> None:
        """One turn; never raises."""
        try:
            self._pass_on_wishes()
            self._take_in_evidence()
            self._escalate()
            self._problem = None
        except AuditError as error:
            if self._problem is None:
                log.error("no evidence is requested or kept: %s", error)
            self._problem = str(error)
        except Exception:
            # Evidence of everybody must outlive a defect over one job's odd figures.
            log.exception("an escalation pass failed; continuing")

    def _run(self) -> None:
        while not self._stopped.wait(TURN_EVERY_S):
            self.turn()

    def _take_in_evidence(self) -> None:
        table, keeper, now_s = self._table(), self._coordinator.kept_evidence, self._now_s()
        if not self._is_recalled:
            for kept in keeper.recall(table, now_s=now_s):
                self._state = learnt(self._state, kept.news, now_s=min(kept.kept_s, now_s))
            self._is_recalled = True
        for news in keeper.write(table, now_s=now_s):
            self._state = learnt(self._state, news, now_s=now_s)

    def _escalate(self) -> None:
        now_s = self._now_s()
        while not self._refusals.empty():  # this thread alone takes from it
            ask, for_good = self._refusals.get()
            self._state = refused(self._state, ask, for_good=for_good, now_s=now_s)
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        asks, self._state = escalate(self._state, self._coordinator.jobs(), now_s=now_s)
        self._looked_s = now_s
        for ask in asks:
            log.info(
                "job %s rank %d: requesting evidence %s (%s steps, at most %s s)", ask.job.job_id, ask.target.rank,
                ask.evidence_id, ask.request["window_steps"], ask.request["most_s"],
            )  # fmt: skip
            self._submit(functools.partial(self._ask, ask))

    def _ask(self, ask: EvidenceAsk) -> None:
        """In a worker."""
        orders = self._coordinator.orders
        replies = orders.ask_ranks(ask.job, [ask.target], ask.request, timeout_s=ANSWER_WITHIN_S)
        reply = replies[ask.target.rank]
        if reply.error is None:
            return
        log.info("job %s rank %d cannot collect evidence now: %s", ask.job.job_id, ask.target.rank, reply.error)
        self._refusals.put(_Refusal(ask, reply.kind == UNABLE or NO_SUCH_COMMAND in reply.error))

    def _pass_on_wishes(self) -> None:
        for wish in self._asks.take():
            log.info("job %s rank %d: %s requested on this host", *_about(wish))
            self._submit(functools.partial(self._grant, wish))

    def _grant(self, wish: EvidenceWish) -> None:
        """In a worker."""
        try:
            reply = self._answer_of(wish)
            self._asks.answer(WishAnswer(wish.wish_id, reply.value, reply.error))
        except OSError as error:
            log.warning("the answer for job %s rank %d cannot be written: %s", wish.job.job_id, wish.rank, error)
        except Exception as error:
            log.exception("the request to job %s rank %d for %s failed", *_about(wish))
            self._asks.answer(WishAnswer(wish.wish_id, error=f"internal error, see the coordinator's log: {error}"))

    def _answer_of(self, wish: EvidenceWish) -> Reply:
        target = self._find(wish)
        if target is None:
            return Reply(error=f"rank {wish.rank} of job {wish.job.job_id} attempt {wish.job.attempt} is not running")
        timeout_s = ANSWER_WITHIN_S if wish.request.get("command") == "evidence" else SNAPSHOT_WITHIN_S
        orders = self._coordinator.orders
        return orders.ask_ranks(wish.job, [target], wish.request, timeout_s=timeout_s)[wish.rank]

    def _find(self, wish: EvidenceWish) -> RankTarget | None:
        for view in self._coordinator.jobs():
            if not view.ranks or view.key != wish.job:
                continue
            for rank, node_id in zip(view.ranks, view.rank_nodes):
                if rank.alive and int(rank.identity.rank) == wish.rank:
                    return RankTarget(wish.rank, node_id, rank.process, rank.step)
        return None


def open_escalation(coordinator: Coordinator, table: Callable[[], EvidenceTable], asks: EvidenceAsks) -> EscalationLoop:
    """The loop of a running coordinator, with its workers."""
    workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="tidegauge-evidence")
    clock = PolicyClock(wall_s=time.time, monotonic_s=time.monotonic)
    return EscalationLoop(coordinator, table, asks=asks, now_s=clock.now_s, submit=workers.submit)


def _about(wish: EvidenceWish) -> tuple[str, int, str]:
    return wish.job.job_id, wish.rank, str(wish.request.get("command"))
