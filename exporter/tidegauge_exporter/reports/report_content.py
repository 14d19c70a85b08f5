"""The content of a report: an incident's story, curves, evidence, snapshots.

Every part may be missing: the page leaves it out, or has the reason in ``ReportContent.absent``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegauge.core.allocator.trace import Trace
from tidegauge.core.evidence import Evidence
from tidegauge.core.incidents.wording import capitalised, further_name, job_and_run, other_half, snapshots_gone
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.verdicts import OK, Verdict
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.headlines import noun, owners_job
from tidegauge_exporter.messages.untrusted import tamed
from tidegauge_exporter.messages.values import Story

if TYPE_CHECKING:
    from tidegauge.analysis.profile.recording import NamedRecording

NO_LINKS: Final = Links()


class RankCurve(NamedTuple):
    """The memory of one rank. ``points`` are oldest first; ``place`` is its host and GPU, for people."""

    rank: int
    place: str
    points: tuple[MemoryPoint, ...]
    verdict: Verdict = OK
    limit_bytes: int | None = None
    concerned: bool = False
    """True for a rank that the report is about."""


class TriedSetting(NamedTuple):
    """An allocator setting that was tried on the recorded trace."""

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
    """Allocator settings, best first, and the findings."""

    settings: tuple[TriedSetting, ...]
    sentences: tuple[str, ...]
    export_line: str | None = None
    """The shell line that puts the advised settings into force."""


@dataclass(frozen=True)
class ReportContent:
    """The content of one report."""

    made_unix_s: float
    title: str
    subject: tuple[tuple[str, str | None], ...]
    """Labels and values of the subject, such as ``("Job", "4711")``."""
    story: Story | None = None
    cluster: str = ""
    links: Links = NO_LINKS
    """Configured links to other pages about the incident."""
    ranks: tuple[RankCurve, ...] = ()
    """The affected ones first."""
    by_step: bool = False
    """True for curves by training step; else by time."""
    evidence: Evidence | None = None
    """Evidence of one window on the rank to look at first."""
    early: Trace | None = None
    late: Trace | None = None
    """Snapshots of one device; ``Trace.end`` are the segments, the events its history."""
    whatif: WhatIfTable | None = None
    profile: StepProfile | None = None
    """Of the history of ``late``, where the report is about the peak."""
    recording: NamedRecording | None = None
    """Of which ``profile`` was made."""
    snapshots_gone: str | None = None
    """Of ``wording.snapshots_gone``."""
    absent: tuple[str, ...] = ()
    """Sentences about the gaps of the report and their reasons."""


def incident_content(
    story: Story, *, made_unix_s: float, keep_snapshots_s: float, cluster: str = "", links: Links = NO_LINKS
) -> ReportContent:
    """The report of an incident as the coordinator knows it."""
    told = tamed(story.incident)
    subject = (
        ("Incident", str(told.number)),
        ("Job", job_and_run(told)),
        ("Name", further_name(told)),
        ("User", told.user_name),
        ("Cluster", cluster),
        ("Related", (other := other_half(told)) and capitalised(other)),
    )
    title = f"{noun(told)} in {owners_job(told)} (incident {told.number})"
    gone = snapshots_gone(story.incident, kept_s=keep_snapshots_s, now_s=made_unix_s)
    return ReportContent(made_unix_s, title, subject, story, cluster, links, snapshots_gone=gone)
