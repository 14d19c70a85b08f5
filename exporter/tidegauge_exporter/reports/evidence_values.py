"""What the report with evidence is made of: an incident's story, curves, findings, snapshots. Values of the core only.

Every part may be missing: what is not known is left out of the page, or said in ``ReportContent.absent``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidegauge.core.allocator.trace import Trace
from tidegauge.core.evidence import Evidence
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import OK, Verdict
from tidegauge_exporter.messages.values import Story


class RankCurve(NamedTuple):
    """How one rank's memory went. ``points`` are oldest first; ``place`` is its host and GPU, for people."""

    rank: int
    place: str
    points: tuple[MemoryPoint, ...]
    verdict: Verdict = OK
    limit_bytes: int | None = None
    concerned: bool = False
    """It is one of the ranks that the report is about."""


class TriedSetting(NamedTuple):
    """One allocator setting that was tried on the recorded trace."""

    name: str
    peak_reserved_bytes: int
    waste_bytes: int
    """Reserved and not allocated, at that peak."""
    alloc_retries: int
    ooms: int
    confidence: str
    today: bool = False
    advised: bool = False


class WhatIfTable(NamedTuple):
    """Allocator settings, best first, and what there is to know of them."""

    settings: tuple[TriedSetting, ...]
    sentences: tuple[str, ...]
    export_line: str | None = None
    """What brings the advised settings into force."""


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report may tell."""

    made_unix_s: float
    title: str
    subject: tuple[tuple[str, str | None], ...]
    """What it is about: label (ours) and value, such as ``("Job", "4711")``."""
    story: Story | None = None
    ranks: tuple[RankCurve, ...] = ()
    """The odd one first."""
    by_step: bool = False
    """Curves are told by training step; else by time."""
    evidence: Evidence | None = None
    """Of one window on the rank to look at first."""
    early: Trace | None = None
    late: Trace | None = None
    """Snapshots of one device; ``Trace.end`` are the segments, the events its history."""
    whatif: WhatIfTable | None = None
    absent: tuple[str, ...] = ()
    """What the report lacks, and why: sentences for people."""
