"""Values that pass between the coordinator, Alertmanager and the notifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidegauge.core.incidents import Incident, IncidentChange, ToldAs
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.acts import PersonAct
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.units import format_count


class ToldReplicas(NamedTuple):
    """Of an inference server: the replicas that one story is about."""

    kind: str
    """``Deployment``, ``StatefulSet`` or ``LeaderWorkerSet``."""
    names: tuple[str, ...]
    """Those whose incidents are open, in the order in which these were opened; of those that recover, if all do."""
    running: int
    """How many replicas run in all."""
    numbers: tuple[int, ...]
    """Of the incidents, closed ones too while they are known."""
    look_first: ToldAs
    """Number and beginning of the incident whose figures and ranks the story has."""

    @property
    def counted(self) -> str:
        """ "3 of 8 replicas"; empty once all is over."""
        return f"{len(self.names)} of {format_count(self.running, 'replica')}" if self.names else ""


@dataclass(frozen=True)
class Story:
    """An incident with its history, decisions and memory, the source of messages, threads and annotations."""

    incident: Incident
    history: tuple[IncidentChange, ...] = ()
    """Oldest first."""
    decisions: tuple[DecisionRecord, ...] = ()
    """Oldest first, with those not carried out (``would``, ``withheld``)."""
    memory: Sequence[MemoryPoint] = ()
    """Memory of the rank to look at first (``incident.findings[0]``), oldest first; empty if it is unknown."""
    acts: tuple[PersonAct, ...] = ()
    """What people asked for, oldest first, with what was refused."""
    replicas: ToldReplicas | None = None
    """Of an inference server, where the stories of its replicas are joined (``notify.replicas``)."""

    @property
    def look_first(self) -> Incident:
        """The incident for links and for what people do: of replicas the one to look at first, under its own number."""
        if self.replicas is None:
            return self.incident
        return replace(self.incident, **self.replicas.look_first._asdict())


@dataclass(frozen=True)
class Alert:
    """An alert of Alertmanager's webhook (version "4")."""

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
    """A notification of Alertmanager about a group of alerts."""

    group_key: str
    """The key of the group, to which its message belongs."""
    firing: bool
    """True if at least one alert fires."""
    alerts: tuple[Alert, ...]
    group_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""
    """Alertmanager's own address, for a link to silences."""
    left_out: int = 0
    """Number of alerts that Alertmanager cut off."""


INCIDENT_ALERT = "TidegaugeIncident"
"""``alertname`` of incidents that are posted to Alertmanager by us; its label ``incident`` is the incident's number."""
