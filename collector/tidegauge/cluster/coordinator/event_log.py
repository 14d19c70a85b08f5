"""Events of the cluster in order: nodes join and leave, verdicts change. Called with the lock of the coordinator."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from tidegauge.cluster.coordinator.known_node import KnownNode, RankOfProcess
from tidegauge.cluster.views import Event, EventKind
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.units import format_band, format_bytes
from tidegauge.core.verdicts import LeakState, Severity, Verdict, state_word
from tidegauge.core.views import RankSummary
from tidegauge.rate_limited_log import FewLines

log = logging.getLogger(__name__)

MAX_EVENTS = 1000


class EventLog:
    """The latest ``MAX_EVENTS``. The next event replaces the oldest of the tenant, or of the nodes, with the most
    events.

    All events of nodes are also logged, verdicts of ranks as ``FewLines`` allows.
    """

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._events: dict[Tenant | None, deque[Event]] = {}
        """By the tenant whose rank it is about; ``None``: about a node."""
        self._last_seq = 0
        self._kept = 0
        self._lines = FewLines(log)
        self._announced: dict[RankOfProcess, Verdict] = {}
        """The verdict that was last told of each rank."""

    def after(self, seq: int) -> tuple[Event, ...]:
        in_order = heapq.merge(*self._events.values(), key=lambda event: event.seq)
        return tuple(event for event in in_order if event.seq > seq)

    def tell(self, kind: EventKind, node: KnownNode, text: str) -> None:
        self._add(kind, node, text)
        log.info("%s", text)

    def tell_job(self, node: KnownNode, rank: RankSummary) -> None:
        """Take the first rank of an attempt of a job."""
        key = rank.identity.key
        self._add(
            EventKind.JOB_BEGAN, node,
            f"job {key.job_id} attempt {key.attempt} of {rank.user_name} began: first report from {node.hostname}",
            rank.tenant, job_id=key.job_id, attempt=key.attempt, user_name=rank.user_name,
        )  # fmt: skip

    def tell_verdict(self, node: KnownNode, key: RankOfProcess, rank: RankSummary) -> None:
        """Take a rank's present verdict: an event if its state differs from the last event."""
        before = self._announced.get(key)
        old = LeakState.OK if before is None else before.state
        self._announced[key] = rank.verdict
        if old is rank.verdict.state:
            return
        who = rank.identity.key
        event = self._add(
            EventKind.RANK_VERDICT, node, _verdict_text(rank, node.hostname), rank.tenant, before=old,
            job_id=who.job_id, attempt=who.attempt, rank=who.rank, step=rank.step, verdict=rank.verdict,
            user_name=rank.user_name,
        )  # fmt: skip
        alarming = rank.verdict.state is LeakState.LEAK and rank.verdict.severity is Severity.CRITICAL
        level = logging.WARNING if alarming else logging.INFO
        self._lines.say(level, "%s", event.text, now_s=event.at_unix_s)

    def forget(self, key: RankOfProcess) -> None:
        self._announced.pop(key, None)

    def _add(self, kind: EventKind, node: KnownNode, text: str, tenant: Tenant | None = None, **of_rank: Any) -> Event:
        self._last_seq += 1
        event = Event(
            seq=self._last_seq, at_unix_s=self._wall_s(), kind=kind, text=text, node_id=node.node_id,
            hostname=node.hostname, **of_rank,
        )  # fmt: skip
        if self._kept < MAX_EVENTS:
            self._kept += 1
        else:
            whose, longest = max(self._events.items(), key=lambda item: len(item[1]))
            longest.popleft()
            if not longest:
                del self._events[whose]
        self._events.setdefault(tenant, deque()).append(event)
        return event


def _verdict_text(rank: RankSummary, hostname: str) -> str:
    key, verdict = rank.identity.key, rank.verdict
    who = f"job {key.job_id} attempt {key.attempt} rank {key.rank} on {hostname}"
    if verdict.state is LeakState.OK:
        return f"{who}: growth ended (step {rank.step})"
    what = {"suspected": "is suspected of growing", "growing": "grows", "leak": "leaks"}[
        state_word(verdict.state, verdict.severity)
    ]
    parts = [f"{who} {what}"]
    if verdict.signal is not None:
        parts.append(f"signal {verdict.signal.value}")
    if verdict.bytes_per_step is not None:
        parts.append(f"{format_bytes(verdict.bytes_per_step.likely)} per step")
    if verdict.onset_step is not None:
        parts.append(f"since step {verdict.onset_step}")
    if verdict.seconds_to_oom is not None:
        parts.append(f"out of memory in {format_band(verdict.seconds_to_oom)}")
    if verdict.severity is not None:
        parts.append(f"severity {verdict.severity.value}")
    return ", ".join(parts)
