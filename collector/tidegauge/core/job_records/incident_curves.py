"""How the memory of an incident's ranks went, from what is stored and what is watched. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from tidegauge.core.incidents import Incident
from tidegauge.core.job_records.memory import MAX_INCIDENT_CURVES, HistoryOf, RankMemory
from tidegauge.core.memory_history import joined
from tidegauge.core.views import JobView


def incident_curves(
    incident: Incident, job: Optional[JobView], history_of: HistoryOf, stored: Sequence[RankMemory]
) -> tuple[RankMemory, ...]:
    """The curves of the ranks to look at first, then of those that were stored when more ranks were concerned. ``job``
    is the incident's, if it is still watched. What is stored of a closed incident ends with it, and is all: its page is
    the same when the job is gone."""
    if stored and not incident.is_open:
        return tuple(stored)
    before = {one.rank: one.points for one in stored}
    there = {} if job is None else {int(rank.identity.rank): place for place, rank in enumerate(job.ranks)}
    curves = []
    for number in list(dict.fromkeys([*incident.ranks, *before]))[:MAX_INCIDENT_CURVES]:
        place = there.get(number)
        live = () if job is None or place is None else history_of(job.rank_nodes[place], job.ranks[place]).points()
        curves.append(RankMemory(number, joined(before.get(number, ()), live)))
    return tuple(curve for curve in curves if curve.points)
