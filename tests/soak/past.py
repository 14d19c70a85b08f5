"""What a cluster has behind it when the soak begins: an answer that lists incidents or decisions is as long at the
beginning of the hour as at its end.

Without it, answers grow up to their limit (200) for most of an hour, and so does what a process needs for a moment to
give them: growth with an end, which a soak cannot tell from growth without one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from loop_store import FakeAudit, FakeIncidents, FakeStore, real_store
from scheduler_values import decision, incident, record
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, Closure, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import Outcome

INCIDENTS = 300
"""More than any page shows unless it is asked for more."""
EACH_S, LAST_CLOSED_S = 600.0, 10_000.0
"""One was opened every ten minutes, and closed five minutes later; the last one some hours ago."""


def leave_past(folder: Path) -> None:
    """Closed incidents of jobs that are gone, each with a decision that was carried out, in the database in
    ``folder``."""
    folder.mkdir(mode=0o700, exist_ok=True)
    now_s = time.time()
    told = [change for number in range(1, INCIDENTS + 1) for change in _story(number, now_s)]
    notified = [
        record(
            decision(
                decision_id=f"{change.incident.number}:past:0:1", decided_s=change.at_unix_s,
                incident=change.incident, rule="past",
            ),
            Outcome.DONE, started_s=change.at_unix_s, starts=1, detail="told ada",
        )
        for change in told if change.kind is ChangeKind.OPENED
    ]  # fmt: skip
    real_store(FakeStore(FakeIncidents(told), FakeAudit(notified)), folder).close()


def _story(number: int, now_s: float) -> Iterator[IncidentChange]:
    closed_s = now_s - LAST_CLOSED_S - (INCIDENTS - number) * EACH_S
    opened_s = closed_s - EACH_S / 2
    opened = incident(
        job=JobKey(f"past-{number}", 0, 1000), number=number, opened_unix_s=opened_s, updated_unix_s=opened_s
    )
    over = replace(
        opened, state=IncidentState.CLOSED, closure=Closure.RECOVERED, updated_unix_s=closed_s, closed_unix_s=closed_s
    )
    yield IncidentChange(ChangeKind.OPENED, opened_s, opened)
    yield IncidentChange(ChangeKind.CLOSED, closed_s, over)
