"""Reports to the closed loop what became of decisions while workers carry them out."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator, Sequence

from tidegauge.core.incidents.actions import Decision, DecisionRecord, DecisionStatus, Outcome
from tidegauge_scheduler_hooks.ports import Audit

log = logging.getLogger(__name__)


class WatchedAudit:
    """``Audit`` that also keeps what has changed since the last look, so that the policy's state follows without
    reading the whole audit again every second.

    The database counts, not the answer of a call: a commit whose answer was lost has happened all the same."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._unfinished: dict[str, Decision] = {}
        """As of the last look, less those finished since then."""
        self._news: queue.SimpleQueue[DecisionRecord] = queue.SimpleQueue()

    def write_ahead(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        return self._audit.write_ahead(decisions)

    def begin(self, decision_id: str, *, at_s: float) -> None:
        self._audit.begin(decision_id, at_s=at_s)

    def finish(self, decision_id: str, outcome: Outcome, detail: str, *, at_s: float) -> None:
        self._audit.finish(decision_id, outcome, detail, at_s=at_s)
        decision = self._unfinished.pop(decision_id, None)
        if decision is not None:
            log.info("decision %s: %s: %s", decision_id, outcome.value, detail)
            self._news.put(
                DecisionRecord(decision, DecisionStatus.FINISHED, outcome, detail, finished_s=at_s, starts=1)
            )

    def unfinished(self) -> Sequence[DecisionRecord]:
        records = self._audit.unfinished()
        now = {record.decision.decision_id: record.decision for record in records}
        # A list first: workers take from it. What is told twice is harmless, the first outcome stays.
        ended = [decision for name, decision in list(self._unfinished.items()) if name not in now]
        if ended:
            since_s = min(decision.decided_s for decision in ended)
            for record in self._audit.each(since_s=since_s):
                self._news.put(record)
        for record in records:
            if record.decision.decision_id not in self._unfinished:
                self._news.put(record)
        self._unfinished = now
        return records

    def each(self, *, since_s: float) -> Iterator[DecisionRecord]:
        return self._audit.each(since_s=since_s)

    def memory(self, *, since_s: float) -> Iterator[DecisionRecord]:
        return self._audit.memory(since_s=since_s)

    def news(self) -> list[DecisionRecord]:
        """Decisions that were made or finished since the last call."""
        found: list[DecisionRecord] = []
        while not self._news.empty():  # the loop alone takes from it
            found.append(self._news.get())
        return found
