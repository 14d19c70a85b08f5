"""The agent's main loop: a thread that polls, reports to the coordinator, and takes its orders."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tidegauge.agent.orders import OrderCarrier
from tidegauge.core.jobs.kubernetes import PodFacts
from tidegauge.core.jobs.rank_groups import NameOfGroup
from tidegauge.core.jobs.settings import JobSettings
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.orders import Order, OrderResult
from tidegauge.core.peer_bounds import PeerBound
from tidegauge.core.persons.forgotten import Forgotten
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import NodeSummary, RankSummary
from tidegauge.protocol.messages import ReportReply

_log = logging.getLogger(__name__)

QUIET_AFTER_S = 30.0
"""A node is quiet when nothing on it has changed for so long (``standing``), no rank is suspected and no order came."""
QUIET_POLLS, MAX_QUIET_POLL_S = 4, 2.0
"""A quiet node is polled a quarter as often, but at least every so many seconds where the setting allows that. What a
poll costs beside its records is then a quarter, too; rings hold 41 s of steps of 10 ms."""
RESULTS_AFTER_S = 0.1
"""Delay of a report with new results of orders, instead of the next tick: a job that is asked for a checkpoint trains
on meanwhile. Not at once, so that the ranks of a node, which are asked together, are reported together."""


def quiet_period_s(poll_period_s: float) -> float:
    """Seconds between two polls of a node where nothing happens."""
    return max(poll_period_s, min(QUIET_POLLS * poll_period_s, MAX_QUIET_POLL_S))


class Reporter(Protocol):
    """The connection to the coordinator."""

    def report(self, summary: NodeSummary) -> bool:
        """Send it off, unless the one before is still unanswered; whether it was sent.

        Must not wait for an answer: the next poll is behind it. May raise anything; an error is logged once."""

    def hear(self) -> ReportReply | None:
        """The reply that has come since the last call, to any report, or ``None``. Called at every poll: it must cost
        next to nothing. As ``report``, it does not wait and may raise anything."""

    def listen(self, on_reply: Callable[[], None]) -> None:
        """Have ``on_reply`` called, in any thread, when a reply comes later than ``report`` returns."""


class SettingsFiles(Protocol):
    """Settings for later attempts of jobs on this node (``agent.job_settings.JobSettingsFiles``). Raises nothing."""

    def digest(self) -> str | None:
        """A digest of the files, as in ``NodeSummary.settings_digest``."""

    def write(self, wanted: Collection[JobSettings]) -> None:
        """Make these the only files; cheap if they are so already."""


class Pollable(Protocol):
    """The part of ``NodeAgent`` that the runner drives."""

    def poll(self) -> None: ...

    def search_now(self) -> None:
        """A poll and all that follows it are over."""

    def summary(self, *, node_id: str, incarnation: str, metrics_address: str | None) -> NodeSummary: ...

    def hear_of_pods(self, pods: Iterable[PodFacts]) -> None:
        """Take the coordinator's facts about the pods that ``summary`` named."""

    def hear_of_evidence(
        self, kept: Collection[str], wanted: frozenset[str] | None, profiles_kept: Collection[str]
    ) -> None:
        """Take the coordinator's answer about the evidence and profiles in ``summary`` and the stored snapshots."""

    def hear_of_forgotten(self, forgotten: Sequence[Forgotten]) -> None:
        """Take the persons whose snapshots are to be deleted."""

    def hear_of_bounds(self, bounds: Iterable[PeerBound]) -> None:
        """Take the coordinator's bounds on the growth of ranks in ``summary``."""

    def hear_of_groups(self, names: Iterable[NameOfGroup]) -> None:
        """Take the coordinator's names for the groups of ranks in ``summary``."""

    def carry_out(self, order: Order) -> OrderResult:
        """Ask a process of this node. Called from threads of its own; blocks for ``order.timeout_s`` at most."""

    def tenant_of(self, order: Order) -> Tenant:
        """The tenant that the order counts to."""


class Ticker:
    """A fixed interval: due at once, then every ``period_s``. A missed tick is skipped, not made up for."""

    def __init__(self, period_s: float, *, now_s: float) -> None:
        self._period_s = period_s
        self.due_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether to act now; if so, the next tick is in the future."""
        if now_s < self.due_s:
            return False
        self.due_s += self._period_s
        if self.due_s <= now_s:
            self.due_s = now_s + self._period_s
        return True

    def hasten(self, due_s: float) -> None:
        self.due_s = min(self.due_s, due_s)

    def change_to(self, period_s: float) -> None:
        """Take another interval, counted from the last tick."""
        self.due_s += period_s - self._period_s
        self._period_s = period_s


def standing(summary: NodeSummary) -> Hashable:
    """The state whose change is reported at once: ranks and verdicts, and the node's answers and requests."""
    return (
        frozenset(map(_rank_standing, summary.ranks)),
        summary.launches,
        tuple((gpu.uuid, gpu.usable_bytes) for gpu in summary.gpus),
        tuple((piece.job, piece.piece_id) for piece in summary.evidence),
        tuple((piece.job, piece.piece_id) for piece in summary.profiles),
        summary.pods_wanted,
        summary.settings_digest,
        summary.metrics_address,
        summary.slurm_node,
        summary.opener_answers,
    )


def _rank_standing(rank: RankSummary) -> Hashable:
    verdict = rank.verdict
    return (
        rank.identity, rank.process, rank.uid, rank.uuid, rank.alive, verdict.state, verdict.severity, verdict.signal,
        verdict.cause, rank.cap_fraction, rank.last_oom, rank.launch, rank.slurm, rank.pod,
    )  # fmt: skip


class ReportPace:
    """Decides whether to send a report. ``period_s``: shortest interval; ``node_id`` staggers nodes that start at once.

    On a large cluster the coordinator sets a longer interval (``ReportReply.report_every_s``) for reports in which only
    figures (memory, steps) changed; whatever it acts on is sent at once. Times are on the caller's clock.
    """

    def __init__(self, period_s: float, *, node_id: str) -> None:
        self._period_s = period_s
        self._share = zlib.crc32(node_id.encode()) / (1 << 32)
        """This node's place in the time between two reports: 0 to 1."""
        self._every_s = 0.0
        self._due_s = float("-inf")
        self._told: Hashable = None

    def wants(self, summary: NodeSummary, now_s: float) -> bool:
        """Whether this one is to be sent. Call ``sent`` if it was."""
        if self._every_s <= self._period_s or summary.order_results:
            return True
        # Rounded to the nearest period, so that a report that is due between two of them is not delayed.
        return now_s >= self._due_s - self._period_s / 2 or standing(summary) != self._told

    def sent(self, summary: NodeSummary, now_s: float) -> None:
        self._due_s = now_s + self._every_s
        self._told = standing(summary)

    def slow_to(self, every_s: float, now_s: float) -> None:
        """Set the interval that the coordinator wants; repeating it changes nothing."""
        if every_s == self._every_s:
            return
        slower, self._every_s = every_s > self._every_s, every_s
        self._due_s = now_s + every_s * (self._share if slower else 1.0)

    def failed(self) -> None:
        """It is unknown what arrived: the next report is sent in any case."""
        self._due_s = float("-inf")


class QuietTime:
    """Tells how long ago something happened on the node. Times are on the caller's clock."""

    def __init__(self, now_s: float) -> None:
        self._stirred_s = now_s
        self._state: Hashable = None

    def look(self, summary: NodeSummary, now_s: float) -> None:
        before, self._state = self._state, standing(summary)
        if self._state != before or any(rank.verdict.state is not LeakState.OK for rank in summary.ranks):
            self._stirred_s = now_s

    def stir(self, now_s: float) -> None:
        self._stirred_s = now_s

    def is_quiet(self, now_s: float) -> bool:
        return now_s - self._stirred_s >= QUIET_AFTER_S


class AgentRunner:
    """Polls ``agent`` every ``poll_period_s``, or every ``quiet_poll_period_s`` while nothing happens on the node, and
    reports after a poll where ``report_period_s`` have passed, until ``stop``. Where the coordinator wants fewer
    reports, those without news are skipped (``ReportPace``).

    ``metrics_address`` is called at each report: the port may be known only after the start. ``monotonic_s`` is the
    clock; ``wait`` sleeps so many seconds and returns true to stop. ``after_poll`` is called in
    the runner's thread; it raises nothing. No report is made until ``may_report``.
    """

    def __init__(
        self,
        agent: Pollable,
        reporter: Reporter,
        settings_files: SettingsFiles,
        *,
        poll_period_s: float,
        report_period_s: float,
        node_id: str,
        incarnation: str,
        quiet_poll_period_s: float | None = None,
        metrics_address: Callable[[], str | None] = lambda: None,
        monotonic_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        after_poll: Callable[[], None] = lambda: None,
        may_report: Callable[[], bool] = lambda: True,
    ) -> None:
        self._agent = agent
        self._reporter = reporter
        self._settings_files = settings_files
        self._poll_period_s = poll_period_s
        self._quiet_poll_period_s = quiet_poll_period_s or poll_period_s
        self._report_period_s = report_period_s
        self._quiet = QuietTime(monotonic_s())
        self._pace = ReportPace(report_period_s, node_id=node_id)
        self._node_id = node_id
        self._incarnation = incarnation
        self._metrics_address = metrics_address
        self._monotonic_s = monotonic_s
        self._wake = threading.Event()
        self._stopped = False
        self._news = False
        """Orders have results that are not reported yet."""
        self._is_called = False
        """``poll_soon`` was called since the last poll."""
        self._wait = wait or self._sleep
        self._after_poll = after_poll
        self._may_report = may_report
        self._carrier = OrderCarrier(agent.carry_out, announce=self._announce, tenant_of=agent.tenant_of)
        self._thread: threading.Thread | None = None
        self._report_fails = False
        reporter.listen(self._wake.set)

    def start(self) -> None:
        """Begin, in a daemon thread. Once per runner."""
        assert self._thread is None, "an AgentRunner starts once"
        self._thread = threading.Thread(target=self.run, name="tidegauge-agent", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End after the round that is under way; wait for that, but not for ever. Does not close the agent."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def poll_soon(self) -> None:
        """Poll now and not when it is due. Thread-safe."""
        self._is_called = True
        self._wake.set()

    def run(self) -> None:
        """The thread's work; returns when ``wait`` says so."""
        now_s = self._monotonic_s()
        polls = Ticker(self._poll_period_s, now_s=now_s)
        reports = Ticker(self._report_period_s, now_s=now_s)
        has_results = False
        while True:
            now_s = self._monotonic_s()
            if self._news:
                self._news, has_results = False, True
                reports.hasten(now_s + RESULTS_AFTER_S)
            if self._is_called:
                self._is_called = False
                polls.hasten(now_s)
            polled = polls.is_due(now_s)
            if polled:
                self._agent.poll()
                self._after_poll()
            self._guarded(self._hear)
            if (polled or has_results) and reports.is_due(now_s) and self._may_report():
                has_results = False
                self._guarded(self._report)
            if polled:
                self._agent.search_now()
            polls.change_to(self._period_s(now_s))
            next_s = min(polls.due_s, reports.due_s) if has_results else polls.due_s
            if self._wait(max(0.0, next_s - self._monotonic_s())):
                return

    def _period_s(self, now_s: float) -> float:
        return self._quiet_poll_period_s if self._quiet.is_quiet(now_s) else self._poll_period_s

    def _sleep(self, seconds: float) -> bool:
        self._wake.wait(seconds)
        self._wake.clear()
        return self._stopped

    def _announce(self) -> None:
        self._news = True
        self._wake.set()

    def _guarded(self, talk: Callable[[], bool]) -> None:
        """Talk to the coordinator; ``talk`` returns whether it was heard. Errors are logged once."""
        try:
            talked = talk()
        except Exception as error:
            if not self._report_fails:
                _log.warning("this node's report cannot be sent to the coordinator; continuing: %s", error)
            self._report_fails = True
            self._pace.failed()
        else:
            if talked and self._report_fails:
                _log.info("the coordinator accepts this node's reports again")
            self._report_fails = self._report_fails and not talked

    def _hear(self) -> bool:
        reply = self._reporter.hear()
        if reply is not None:
            self._take(reply)
        return reply is not None

    def _report(self) -> bool:
        summary = replace(
            self._agent.summary(
                node_id=self._node_id, incarnation=self._incarnation, metrics_address=self._metrics_address()
            ),
            order_results=self._carrier.results(),
            settings_digest=self._settings_files.digest(),
        )
        now_s = self._monotonic_s()
        self._quiet.look(summary, now_s)
        if not self._pace.wants(summary, now_s):
            return False
        if not self._reporter.report(summary):
            return False
        self._pace.sent(summary, now_s)
        return self._hear()  # that it was sent says nothing yet: it may be refused

    def _take(self, reply: ReportReply) -> None:
        if reply.orders:
            self._quiet.stir(self._monotonic_s())
        self._carrier.take(reply.orders)
        self._agent.hear_of_pods(reply.pods)
        self._agent.hear_of_evidence(reply.evidence_kept, reply.snapshots_wanted, reply.profiles_kept)
        self._agent.hear_of_forgotten(reply.forgotten)
        self._agent.hear_of_bounds(reply.peer_bounds)
        self._agent.hear_of_groups(reply.group_names)
        if reply.job_settings is not None:
            self._settings_files.write(reply.job_settings)
        self._pace.slow_to(reply.report_every_s, self._monotonic_s())
