"""A chat, a look, stories and a clock for tests of the notifier: all in memory, and all that was told there to see."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sample_views import NOW_S
from scheduler_values import JOB, decision, incident, record
from tidegauge.core.incidents import (
    ChangeKind,
    Closure,
    Incident,
    IncidentCause,
    IncidentChange,
    IncidentKey,
    IncidentState,
)
from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, Disposition, Outcome
from tidegauge.core.incidents.acts import PersonAct
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import INCIDENT_ALERT, Alert, AlertGroup, Story
from tidegauge_exporter.notify.ports import Message, Posted

CHANNEL = "#gpu-memory"
LINKS = Links("https://grafana.example", "https://head.example")
MEMORY = (MemoryPoint(NOW_S - 60, 190, 10, 20, None), MemoryPoint(NOW_S, 200, 20, 30, None))


class Clock:
    """Wall and monotonic time alike."""

    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Crash(BaseException):
    """SIGKILL: nobody catches it."""


@dataclass
class Said:
    """A message as people see it now, and all that it ever said."""

    channel: str
    thread: str | None
    versions: list[str]
    beside_thread: bool = False

    @property
    def text(self) -> str:
        return self.versions[-1]


class Call(NamedTuple):
    """What is asked of the chat."""

    method: str
    channel: str
    text: str


@dataclass
class FakeChat:
    """Keeps what was said. ``before`` is asked first and may raise; ``after`` likewise, once it has been said."""

    users: dict[str, str] = field(default_factory=lambda: {"ada": "D-ada"})
    said: dict[str, Said] = field(default_factory=dict)
    uploads: list[tuple[Posted, str]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    before: Callable[[Call], None] = lambda _: None
    after: Callable[[Call], None] = lambda _: None

    def post(
        self, channel: str, message: Message, *, thread: Posted | None = None, beside_thread: bool = False
    ) -> Posted:
        call = self._begin("post", channel, message.text)
        posted = Posted(channel.replace("#", "C-"), f"{len(self.said) + 1}.0")
        self.said[posted.ts] = Said(
            posted.channel, None if thread is None else thread.ts, [message.text], beside_thread
        )
        self.after(call)
        return posted

    def update(self, posted: Posted, message: Message) -> None:
        call = self._begin("update", posted.channel, message.text)
        self.said[posted.ts].versions.append(message.text)
        self.after(call)

    def upload(self, png: bytes, *, title: str, alt_text: str, thread: Posted) -> None:
        call = self._begin("upload", thread.channel, title)
        self.uploads.append((thread, title))
        self.after(call)

    def direct(self, user_name: str) -> str | None:
        return self.users.get(user_name)

    def check(self, *, owners: bool, plots: bool) -> None:
        self._begin("check", "", f"{owners=} {plots=}")

    def heads(self) -> list[str]:
        """Of each thread, as it reads now."""
        return [said.text for said in self.said.values() if said.thread is None]

    def replies(self, head: str) -> list[str]:
        """To the message that reads so now, or once did."""
        wanted = {ts for ts, said in self.said.items() if said.thread is None and head in said.versions}
        return [said.text for said in self.said.values() if said.thread in wanted]

    def _begin(self, method: str, channel: str, text: str) -> Call:
        call = Call(method, channel, text)
        self.calls.append(call)
        self.before(call)
        return call


class PlainLook:
    """Says what it is about, and nothing else."""

    def incident_message(self, story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
        about = story.incident
        return Message(f"incident {about.number} {about.state.value} {about.severity.value} {about.grown_bytes}")

    revises_owner = False

    def act_reply(self, act: PersonAct) -> Message:
        return Message(f"act {act.kind.value} by {act.by}")

    def change_reply(self, change: IncidentChange) -> Message:
        return Message(f"{change.kind.value} at {change.at_unix_s - NOW_S:g}")

    def action_reply(self, record: DecisionRecord) -> Message:
        ended = record.decision.disposition.value if record.outcome is None else record.outcome.value
        return Message(f"{record.decision.action.value} {ended} {record.decision.decision_id}")

    def replicas_reply(self, story: Story) -> Message:
        return Message("" if story.replicas is None else story.replicas.counted)

    def owner_message(
        self, decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float
    ) -> Message:
        return Message(f"to {story.incident.user_name}: {decision.decision_id}")

    def owner_followup(self, record: DecisionRecord) -> Message:
        return self.action_reply(record)

    def owner_evidence(self, story: Story) -> Message:
        best = story.incident.evidence[0]
        return Message(f"evidence {best.evidence_id}: {best.cause.value}, {best.confidence.value}")

    def alert_message(self, group: AlertGroup, *, links: Links) -> Message:
        each = [f"{alert.name} {alert.labels.get('hostname', '')}".strip() for alert in group.alerts if alert.firing]
        return Message(", ".join(each) if group.firing else "all over")

    def storm_message(self, stories: Sequence[Story], *, cluster: str, links: Links, now_unix_s: float) -> Message:
        return Message("storm " + " ".join(f"{one.incident.number}:{one.incident.state.value}" for one in stories))


def draw(story: Story, *, now_unix_s: float) -> bytes | None:
    return f"plot of {story.incident.number}".encode()


def story(number: int = 1, **changes: Any) -> Story:
    """An incident that was opened a moment ago, with the line that says so; ``changes`` are the incident's."""
    key = IncidentKey(JOB._replace(job_id=f"47{number}"), incident().key.cause)
    about = incident(**{"number": number, "key": key, "opened_unix_s": NOW_S, **changes})
    opened = IncidentChange(ChangeKind.OPENED, about.opened_unix_s, about)
    return Story(about, (opened,))


def warning(number: int = 1, **changes: Any) -> Story:
    return story(number, **{"severity": Severity.WARNING, "worst_severity": Severity.WARNING, **changes})


def happened(told: Story, kind: ChangeKind, at_s: float, **changes: Any) -> Story:
    """The story with one change more, ``at_s`` after ``NOW_S``."""
    about = replace(told.incident, **changes)
    return replace(told, incident=about, history=(*told.history, IncidentChange(kind, NOW_S + at_s, about)))


def closed(told: Story, at_s: float = 60.0) -> Story:
    return happened(
        told, ChangeKind.CLOSED, at_s,
        state=IncidentState.CLOSED, closure=Closure.RECOVERED, closed_unix_s=NOW_S + at_s,
    )  # fmt: skip


def ran_out(number: int, growth: int | None, **changes: Any) -> Story:
    """The out-of-memory error, a minute later, of the rank that ``growth`` is about."""
    key = IncidentKey(JOB._replace(job_id=f"47{growth or number}"), IncidentCause.OUT_OF_MEMORY)
    return story(number, key=key, grew_in=growth, opened_unix_s=NOW_S + 60.0, **changes)


def escalated(told: Story, at_s: float = 30.0) -> Story:
    return happened(told, ChangeKind.ESCALATED, at_s, severity=Severity.CRITICAL, worst_severity=Severity.CRITICAL)


def decided(told: Story, *records: DecisionRecord) -> Story:
    return replace(told, decisions=(*told.decisions, *records))


_numbers = itertools.count(1)


def done(action: ActionKind = ActionKind.CAP, at_s: float = 40.0, *, name: str | None = None) -> DecisionRecord:
    """A decision that was carried out."""
    made = decision(action, decision_id=name or f"d{next(_numbers)}", decided_s=NOW_S + at_s - 1)
    return record(made, Outcome.DONE, finished_s=NOW_S + at_s)


def considered(
    disposition: Disposition, action: ActionKind = ActionKind.CAP, at_s: float = 40.0, **changes: Any
) -> DecisionRecord:
    """A decision that was written down only."""
    name = f"d{next(_numbers)}"
    return record(decision(action, decision_id=name, disposition=disposition, decided_s=NOW_S + at_s, **changes))


def alert(name: str = "TidegaugeAgentDown", *, firing: bool = True, **labels: str) -> Alert:
    whole = {"alertname": name, **labels}
    return Alert(firing, whole, {}, fingerprint=repr(sorted(whole.items())), starts_at="2026-11-21T06:00:00Z")


def group(*alerts: Alert, key: str = "{}:{alertname}") -> AlertGroup:
    return AlertGroup(key, any(one.firing for one in alerts), alerts)


def release(*numbers: int, cluster: str = "rose") -> AlertGroup:
    """Alertmanager tells of these incidents."""
    return group(*(alert(INCIDENT_ALERT, cluster=cluster, incident=str(number)) for number in numbers))


def is_about(told: Incident, text: str) -> bool:
    return text.startswith(f"incident {told.number} ")
