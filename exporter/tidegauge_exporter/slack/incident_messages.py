"""An incident in the channel of those who run the cluster: the first message of a thread, and its replies."""

from __future__ import annotations

from collections.abc import Iterable

from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange, IncidentState, RankFinding
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.wording import (
    CLOSURES,
    capitalised,
    change_in_words,
    evidence_sentences,
    incident_sentence,
    name_ranks,
    rate,
)
from tidegauge.core.units import format_bytes, format_duration
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.action_text import deed, latest_deeds, told_at
from tidegauge_exporter.messages.chat import Message
from tidegauge_exporter.messages.headlines import (
    as_of,
    crash,
    end_by_clock,
    end_by_time_left,
    headline,
    owners_job,
    seconds_left,
    sign,
)
from tidegauge_exporter.messages.incident_links import chosen_links
from tidegauge_exporter.messages.text import clock, code, local_clock, tidy
from tidegauge_exporter.messages.untrusted import MAX_NAME_CHARS, tamed_change, tamed_record, tamed_story
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.slack.blocks import Block, context, fields, header, link_row, message, paragraph

EVIDENCE_SIGN = "\N{LEFT-POINTING MAGNIFYING GLASS}"
ADVICE_SIGN = "\N{WRENCH}"

_CHANGE_SIGNS = {
    ChangeKind.ESCALATED: "\N{UPWARDS BLACK ARROW}",
    ChangeKind.EASED: "\N{DOWNWARDS BLACK ARROW}",
    ChangeKind.SPREAD: "\N{LEFT RIGHT ARROW}",
    ChangeKind.EVIDENCE: EVIDENCE_SIGN,
}
"""Of changes that the colour of the incident does not tell."""


def incident_message(story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
    """The first message of a thread: what a sleepy person needs to decide whether to get up."""
    asked = incident_links(story.incident, cluster=cluster, links=links)
    story = tamed_story(story)
    incident = story.incident
    whose = owners_job(incident)
    return message(
        f"{sign(incident)} {headline(incident, whose, end_by_time_left(incident, now_unix_s))}",
        [header(f"{sign(incident)} {headline(incident, whose, end_by_clock(incident, now_unix_s))}")],
        paragraph(_sentences(incident, now_unix_s)),
        evidence_paragraph(incident),
        _figures(incident, now_unix_s),
        paragraph(_deeds(story, now_unix_s)),
        asked,
        context(_footer(incident, cluster, now_unix_s)),
    )


def change_reply(change: IncidentChange) -> Message:
    """What happened to an incident, as a reply in its thread."""
    change = tamed_change(change)
    shown = _CHANGE_SIGNS.get(change.kind, sign(change.incident))
    when = clock(change.at_unix_s, change.at_unix_s)
    crashed = crash(change.incident, "the job") if change.kind is ChangeKind.CLOSED else None
    words = change_in_words(change) if crashed is None else f"closed: {crashed[:1].lower()}{crashed[1:]}"
    return message(f"{shown} {capitalised(words)}", paragraph([f"{shown} {when}: {words}"]))


def evidence_paragraph(incident: Incident) -> list[Block]:
    """What grows where, what holds it, why, and what to change; of an incident that is fit to be written."""
    signs = (EVIDENCE_SIGN, ADVICE_SIGN)
    return paragraph(f"{sign} {words}" for sign, words in zip(signs, evidence_sentences(incident), strict=False))


def action_reply(record: DecisionRecord) -> Message:
    """What became of a decision of the policy, as a reply in the incident's thread."""
    record = tamed_record(record)
    done = deed(record)
    decision = record.decision
    origin = f"rule {decision.rule}, rung {decision.rung + 1}, mode {decision.mode}"
    return message(
        f"{done.sign} {done.sentence}",
        paragraph([told_at(done, done.at_unix_s)]),
        context(f"Policy: {origin}"),
    )


def incident_links(incident: Incident, *, cluster: str, links: Links) -> list[Block]:
    """``chosen_links`` beside each other."""
    return link_row(chosen_links(incident, cluster=cluster, links=links))


def _sentences(incident: Incident, now_unix_s: float) -> Iterable[str]:
    if incident.state is IncidentState.CLOSED:
        closed_s = incident.closed_unix_s if incident.closed_unix_s is not None else incident.updated_unix_s
        how = CLOSURES[incident.closure] if incident.closure is not None else "closed"
        when = clock(closed_s, now_unix_s)
        yield f"{capitalised(how)}.{f' Closed at {when}' if when else ''}{_lasted(incident, closed_s)}"
        if incident.explanation and crash(incident, None) is not None:
            yield capitalised(incident.explanation)
        return
    if incident.state is IncidentState.RECOVERING:
        yield "It has stopped; the incident closes if it does not come back. Last seen:"
    if incident.stale:
        yield "A node of this job is not reporting: figures are stale, and Tidegauge takes no action."
    yield incident_sentence(as_of(incident, now_unix_s))
    if incident.explanation:
        yield capitalised(incident.explanation)


def _lasted(incident: Incident, closed_s: float) -> str:
    lasted_s = closed_s - incident.opened_unix_s
    return f", after {format_duration(lasted_s)}." if lasted_s >= 0 else "."


def _figures(incident: Incident, now_unix_s: float) -> list[Block]:
    job = incident.key.job
    shown = incident.called.job_id
    goes_by_name = shown != job.job_id and shown == incident.job_name
    first = incident.findings[0] if incident.findings else None
    closed = incident.state is IncidentState.CLOSED
    pairs: list[tuple[str, str | None]] = [
        ("Owner", code(incident.user_name)),
        ("Job", code(shown) + (f", attempt {job.attempt}" if job.attempt else "")),
        ("Name", code(incident.job_name) if incident.job_name and not goes_by_name else None),
        ("Id", None if job.job_id == shown else code(job.job_id)),
        ("Ranks", _ranks(incident)),
        ("Growth", _growth(incident)),
    ]
    if not closed:
        pairs += [
            ("Look first at", _place(first) if first else None),
            ("Since", None if incident.onset_step is None else f"step {incident.onset_step:,}"),
            ("Out of memory", _end(incident, now_unix_s)),
        ]
    worst = incident.worst_severity or incident.severity
    pairs.append(("Peak severity", worst.value) if closed else ("Severity", incident.severity.value))
    return fields(pairs)


def _ranks(incident: Incident) -> str | None:
    if not incident.findings:
        return None
    if len(incident.findings) + incident.ranks_left_out == incident.world_size:
        return "1 of 1" if incident.world_size == 1 else f"all {incident.world_size}"
    return f"{name_ranks(incident.ranks, left_out=incident.ranks_left_out)} of {incident.world_size}"


def _place(finding: RankFinding) -> str:
    gpu = "" if finding.gpu is None else f", GPU {finding.gpu}"
    return f"rank {finding.rank} on {code(finding.hostname)}{gpu}"


def _growth(incident: Incident) -> str | None:
    speed = rate(incident.bytes_per_step)
    if speed is None:
        return None
    if not incident.grown_bytes:
        return f"{speed} per step"
    return f"{speed} per step, {format_bytes(incident.grown_bytes)} {'so far' if incident.is_open else 'in total'}"


def _end(incident: Incident, now_unix_s: float) -> str | None:
    left = seconds_left(incident, now_unix_s)
    if left is None:
        return None
    first = local_clock(now_unix_s + left.low, now_unix_s)
    words = end_by_time_left(incident, now_unix_s) or ""
    return words if first is None else f"{words}: not before {first}, your time"


def _deeds(story: Story, now_unix_s: float) -> list[str]:
    told = [told_at(one, now_unix_s) for one in latest_deeds(story.decisions)]
    if not told and story.incident.is_open:
        return ["No action taken."]
    return told


def _footer(incident: Incident, cluster: str, now_unix_s: float) -> str:
    opened, figures = (clock(at_s, now_unix_s) for at_s in (incident.opened_unix_s, incident.updated_unix_s))
    parts = [f"Incident {incident.number}", incident.state.value, f"cluster {tidy(cluster, MAX_NAME_CHARS)}"]
    parts += [f"opened {opened}"] * (opened is not None)
    parts += [f"figures from {figures}"] * (figures is not None and incident.is_open)
    return " \N{MIDDLE DOT} ".join(parts)
