"""Annotations of an incident: a region from its opening to its end, and marks for escalations and actions.

Dashboards find them by their tags. Job ids and reasons are other people's words, and Grafana shows the text of an
annotation as HTML: they are escaped, and bounded.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass

from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange
from tidegauge.core.incidents.actions import DecisionRecord, DecisionStatus, Disposition
from tidegauge.core.incidents.wording import CLOSURES, OUTCOME_WORDS, incident_sentence
from tidegauge.core.text import one_line
from tidegauge.core.units import format_duration
from tidegauge_exporter.grafana.values import Annotation
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.text import cut
from tidegauge_exporter.messages.values import Story

TAG = "tidegauge"
"""The tag of everything that Tidegauge puts into Grafana."""
MAX_VALUE_CHARS = 100
"""Characters of a tag's value as Grafana's database holds it (it may be MySQL, which cuts or refuses), counted as JSON,
because Grafana also refuses tags that are more than 500 characters of JSON in all."""
MAX_TEXT_CHARS = 500
"""Bound of one sentence."""


@dataclass(frozen=True)
class AnnotationText:
    """An annotation, and its key in the journal."""

    key: str
    annotation: Annotation
    final: bool
    """True if it will not change any more."""


def annotations_of(story: Story, *, cluster: str, links: Links) -> tuple[AnnotationText, ...]:
    """The annotations of an incident, oldest first. The region of an open incident has no end yet."""
    incident = story.incident
    # The number alone would not do: a new database begins at 1 again.
    key = f"{cluster}/{incident.number}@{_ms(incident.opened_unix_s)}"
    tags = (TAG, tag("cluster", cluster), f"incident:{incident.number}", tag("job", incident.key.job.job_id))
    remarks = [AnnotationText(f"{key}/opened", _region(story, tags, links), final=not incident.is_open)]
    remarks += [
        AnnotationText(f"{key}/escalated@{_ms(change.at_unix_s)}", _escalation(change, tags, links), final=True)
        for change in story.history
        if change.kind is ChangeKind.ESCALATED
    ]
    remarks += [
        AnnotationText(
            f"{key}/{record.decision.decision_id}", _action(record, record.finished_s, tags, links), final=True
        )
        for record in story.decisions
        if record.finished_s is not None and _was_carried_out(record)
    ]
    return tuple(sorted(remarks, key=lambda remark: remark.annotation.at_unix_ms))


def tag(name: str, value: str) -> str:
    """ "job:4711". Grafana takes a tag apart at its first colon and strips the parts, so white space is made single."""
    text = " ".join(one_line(value, None, replacement=" ").split())
    while _json_chars(text) > MAX_VALUE_CHARS:
        text = text[:-1].rstrip()
    return f"{name}:{text}" if text else name


def _region(story: Story, tags: tuple[str, ...], links: Links) -> Annotation:
    incident, first = story.incident, _as_opened(story)
    lines = [_bold(f"Incident {incident.number}: {first.key.cause.value}, {first.severity.value}")]
    lines += [_plain(incident_sentence(first if incident.is_open else incident))]
    end_ms = None
    if incident.closed_unix_s is not None:
        end_ms = _ms(incident.closed_unix_s)
        lasted = format_duration(max(incident.closed_unix_s - incident.opened_unix_s, 0.0))
        why = f": {CLOSURES[incident.closure]}" if incident.closure is not None else ""
        worst = f" Peak severity: {incident.worst_severity.value}." if incident.worst_severity is not None else ""
        lines.append(_plain(f"Closed after {lasted}{why}.{worst}"))
    at_ms = _ms(incident.opened_unix_s)
    return Annotation(at_ms, end_ms, (*tags, f"cause:{incident.key.cause.value}"), _text(lines, incident, links))


def _escalation(change: IncidentChange, tags: tuple[str, ...], links: Links) -> Annotation:
    incident = change.incident
    lines = [_bold(f"Incident {incident.number}: now {incident.severity.value}"), _plain(incident_sentence(incident))]
    tags = (*tags, f"cause:{incident.key.cause.value}", "escalated")
    return Annotation(_ms(change.at_unix_s), None, tags, _text(lines, incident, links))


def _action(record: DecisionRecord, finished_s: float, tags: tuple[str, ...], links: Links) -> Annotation:
    decision = record.decision
    assert record.outcome is not None, "only what was carried out is told"
    lines = [_bold(f"{decision.action.value} {OUTCOME_WORDS[record.outcome]}")]
    lines += [_plain(text) for text in (record.detail, f"Why: {decision.reason}") if text]
    tags = (*tags, f"action:{decision.action.value}")
    return Annotation(_ms(finished_s), None, tags, _text(lines, decision.incident, links))


def _was_carried_out(record: DecisionRecord) -> bool:
    """True for an action that changed the job, or was meant to; messages and decisions not carried out are left out."""
    decision = record.decision
    carried_out = decision.disposition is Disposition.DO and record.status is DecisionStatus.FINISHED
    return carried_out and decision.action.is_acting and record.outcome is not None


def _as_opened(story: Story) -> Incident:
    """The incident when it was opened: the text of a region stays the same while figures move."""
    opened = (change.incident for change in story.history if change.kind is ChangeKind.OPENED)
    return next(opened, story.incident)


def _text(lines: list[str], incident: Incident, links: Links) -> str:
    report = links.incident(incident.number)
    if report is not None:
        lines = [*lines, f'<a href="{html.escape(report)}" target="_blank" rel="noopener">report</a>']
    return "<br>".join(lines)


def _bold(text: str) -> str:
    return f"<b>{_plain(text)}</b>"


def _plain(text: str) -> str:
    """Markup that shows this text."""
    return html.escape(cut(" ".join(text.split()), MAX_TEXT_CHARS))


def _ms(unix_s: float) -> int:
    return round(unix_s * 1000)


def _json_chars(text: str) -> int:
    """Largest length as JSON: Go writes these three characters as six."""
    return len(json.dumps(text)) + 5 * sum(text.count(char) for char in "<>&")
