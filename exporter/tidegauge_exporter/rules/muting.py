"""Which alert mutes which: the table that docs/alerts.md is made from, and that alertmanager.yml is held to."""

from __future__ import annotations

from dataclasses import dataclass

from tidegauge_exporter.messages.values import INCIDENT_ALERT

_OF_JOB = ("cluster", "job_id", "attempt", "group")
_OF_NODE = ("cluster", "hostname")


@dataclass(frozen=True)
class Mute:
    """While one of ``sources`` fires, ``targets`` with the same ``equal`` labels are not told of."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    equal: tuple[str, ...]
    source_severity: str | None = None
    """``None``: of any severity."""
    target_severity: str | None = None


MUTES: tuple[Mute, ...] = (
    Mute(
        (INCIDENT_ALERT,),
        (
            "TidegaugeLeak",
            "TidegaugeLeakOomSoon",
            "TidegaugeFragmentation",
            "TidegaugeOutOfMemory",
            "TidegaugeUntrackedGrowth",
        ),
        _OF_JOB,
    ),
    Mute(
        ("TidegaugeLeakOomSoon", "TidegaugeOutOfMemory"),
        (
            "TidegaugeLeak",
            "TidegaugeFragmentation",
            "TidegaugeMemoryNearlyFull",
            "TidegaugeRankLost",
            "TidegaugeUntrackedGrowth",
        ),
        _OF_JOB,
    ),
    Mute(("TidegaugeRankLost",), ("TidegaugeRankLost",), _OF_JOB, "warning", "info"),
    Mute(
        ("TidegaugeAgentDown",),
        ("TidegaugeRankLost", "TidegaugeRankSilent", "TidegaugeDetectorSilent", "TidegaugeSeriesDropped"),
        _OF_NODE,
    ),
    Mute(
        ("TidegaugeCoordinatorDown",),
        (
            "TidegaugeNodeStale",
            "TidegaugeStoreDown",
            "TidegaugeActionsFailing",
            "TidegaugeBreakerOpen",
            "TidegaugeUserBreakerOpen",
        ),
        ("cluster",),
    ),
)
