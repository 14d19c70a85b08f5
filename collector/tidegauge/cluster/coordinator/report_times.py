"""Times in a report, which a node's clock says, or whoever pretends to be a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from tidegauge.core.evidence import Evidence
from tidegauge.core.jobs.launches import LaunchSummary
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.views import NodeSummary, RankSummary

AHEAD_S = 86_400.0
"""By how much a node's clock may be ahead of the head's: by what a wrong time zone makes, and more."""
IMPOSSIBLE_TIMES = "its clock is wrong: times in its report lie more than a day ahead, or before 1970"

P = TypeVar("P", Evidence, RankProfile)


def with_possible_times(summary: NodeSummary, now_unix_s: float) -> NodeSummary:
    """The report without out-of-memory errors, evidence and profiles of a time that has not come: they would be the
    newest for ever, and from the year 10,000 on no calendar shows them. Ranks and launches are cut to what can be.
    The same object where all is possible."""
    latest_s = now_unix_s + AHEAD_S

    def possible(at_s: float) -> float:
        return min(max(at_s, 0.0), latest_s)

    def past(pieces: tuple[P, ...]) -> tuple[P, ...]:
        return tuple(piece for piece in pieces if possible(piece.at_unix_s) == piece.at_unix_s)

    def rank(one: RankSummary) -> RankSummary:
        oom, seen_s = one.last_oom, possible(one.last_sample_unix_s)
        if oom is not None and possible(oom.at_unix_s) != oom.at_unix_s:
            oom = None
        same = oom is one.last_oom and seen_s == one.last_sample_unix_s
        return one if same else replace(one, last_oom=oom, last_sample_unix_s=seen_s)

    def launch(one: LaunchSummary) -> LaunchSummary:
        began_s = possible(one.started_unix_s)
        return one if began_s == one.started_unix_s else replace(one, started_unix_s=began_s)

    found: dict[str, Any] = {
        "ranks": tuple(map(rank, summary.ranks)),
        "evidence": past(summary.evidence),
        "profiles": past(summary.profiles),
        "launches": tuple(map(launch, summary.launches)),
        "ended_launches": tuple(map(launch, summary.ended_launches)),
    }
    same = all(found[name] == getattr(summary, name) for name in found)
    return summary if same else replace(summary, **found)
