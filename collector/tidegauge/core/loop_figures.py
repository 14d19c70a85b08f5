"""Incidents and actions in figures: what the coordinator hands to the exporter for one scrape. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegauge.core.actions import Disposition, Outcome
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.verdicts import Severity

ACTION_OUTCOMES = (*(outcome.value for outcome in Outcome), Disposition.WOULD.value, Disposition.WITHHELD.value)
"""How a decision can end: the values of the label ``outcome`` of ``tidegauge_actions_total``."""


@dataclass(frozen=True)
class LoopFigures:
    """Pairs that a mapping does not name are 0."""

    store_works: bool
    """Whether the database answered. If not, the four mappings mean nothing."""
    acting: bool
    """The policy's mode is ``act``."""
    paused: bool
    breaker_open: bool
    incidents_total: Mapping[IncidentCause, int] = field(default_factory=dict)
    """Ever opened, as the database remembers."""
    incidents_open: Mapping[tuple[IncidentCause, Severity], int] = field(default_factory=dict)
    actions_total: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Decisions ever made, by the words of ``ActionKind`` and ``ACTION_OUTCOMES``; those that are still being carried
    out are not in it."""
