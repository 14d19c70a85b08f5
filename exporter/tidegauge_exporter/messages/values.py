"""What crosses between the service, Alertmanager and whoever tells people: values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.memory_history import MemoryPoint


@dataclass(frozen=True)
class Story:
    """An incident and all that happened with it: what a message, a thread or an annotation is made from."""

    incident: Incident
    history: tuple[IncidentChange, ...] = ()
    """Oldest first."""
    decisions: tuple[DecisionRecord, ...] = ()
    """Oldest first, those that were only considered (``would``, ``withheld``) included."""
    memory: Sequence[MemoryPoint] = ()
    """Of the rank to look at first (``incident.findings[0]``), oldest first; empty where nobody remembers it."""


@dataclass(frozen=True)
class Alert:
    """One alert as Alertmanager's webhook tells it (version "4")."""

    firing: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    fingerprint: str
    starts_at: str
    """RFC 3339."""
    generator_url: str = ""

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")


@dataclass(frozen=True)
class AlertGroup:
    """One notification of Alertmanager: alerts that it grouped."""

    group_key: str
    """The same for every notification of a group; what a thread belongs to."""
    firing: bool
    """At least one alert of it fires."""
    alerts: tuple[Alert, ...]
    group_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""
    """Alertmanager's own address, for a link that silences."""
    left_out: int = 0
    """Alerts that Alertmanager cut off."""


INCIDENT_ALERT = "TidegaugeIncident"
"""``alertname`` of incidents that are posted to Alertmanager by us; its label ``incident`` is the incident's number."""
