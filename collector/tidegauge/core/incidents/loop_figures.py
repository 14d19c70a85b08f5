"""Figures of incidents, actions and nodes that the coordinator hands to the exporter for one scrape. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.actions import Disposition, Outcome
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy
from tidegauge.core.verdicts import Severity

ACTION_OUTCOMES = (*(outcome.value for outcome in Outcome), Disposition.WOULD.value, Disposition.WITHHELD.value)
"""How a decision can end: the values of the label ``outcome`` of ``tidegauge_actions_total``."""


class OpenIncident(NamedTuple):
    """The figures of one incident."""

    number: int
    cause: IncidentCause
    severity: Severity
    opened_unix_s: float


@dataclass(frozen=True)
class JobFigures:
    """The closed loop's figures for one attempt of one user's job."""

    incidents: tuple[OpenIncident, ...] = ()
    """Those that are not closed; at most one of each cause."""
    last_actions: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """When the latest action of a kind that ended in an outcome was over, in unix time, by the words of ``ActionKind``
    and ``Outcome``. Pairs that did not occur lately are not in it."""


class SlurmLabels(NamedTuple):
    """Slurm's facts about a job, read once and kept for its life, so that its labels do not come and go."""

    partition: Optional[str]
    account: Optional[str]
    array: Optional[str] = None
    """``123_4`` for a task of an array."""


@dataclass(frozen=True)
class LoopFigures:
    """All figures of one scrape. What ``incidents_*`` and ``actions_total`` do not name is 0."""

    store_works: bool
    """Whether the database answered. If not, the mappings mean nothing, but for ``nodes``."""
    acting: bool
    """The policy's mode is ``act``."""
    paused: bool
    breaker_open: bool
    user_breakers_open: int = 0
    """Users whose jobs are held back by a breaker of their own."""
    incidents_total: Mapping[IncidentCause, int] = field(default_factory=dict)
    """Ever opened, as the database remembers."""
    incidents_open: Mapping[tuple[IncidentCause, Severity], int] = field(default_factory=dict)
    actions_total: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Decisions ever made, by the words of ``ActionKind`` and ``ACTION_OUTCOMES``; those that are still being carried
    out are not in it."""
    of_jobs: Mapping[JobKey, JobFigures] = field(default_factory=dict)
    slurm: Mapping[JobKey, SlurmLabels] = field(default_factory=dict)
    """Of the jobs that Slurm has described so far."""
    usage: Mapping[UsageBy, Sequence[GpuUsage]] = field(default_factory=dict)
    """What jobs that ended in the last seven days had and needed."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Nodes by the words of ``NodeHealth``: all of its words, or none where nobody counted."""
