"""Mails to the owner of a job, as plain text and as HTML. Nothing here knows how they are sent.

The words are those of Slack's messages (``messages.owner_text``). A mail has room for commands to copy, and is sorted
by its subject: that stays the same for all mails about an incident.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from tidegauge.core.incidents import Incident, IncidentState
from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.incidents.wording import capitalised, evidence_in_words, evidence_sentences, incident_sentence
from tidegauge.core.jobs.exemption import exempting_command
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.links import Link, Links, chosen_links
from tidegauge_exporter.mail.html_parts import (
    CALM_COLOUR,
    PARAGRAPH,
    PLOT,
    MailText,
    heading,
    page,
    paragraph,
    plain_text,
    small_lines,
)
from tidegauge_exporter.messages.action_text import TO_OWNER, deed, told_at
from tidegauge_exporter.messages.headlines import noun, replica_names, replicas_sentence, your_whole_job
from tidegauge_exporter.messages.owner_text import owner_words
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import MAX_NAME_CHARS, tamed, tamed_record, tamed_story
from tidegauge_exporter.messages.values import Story

MAX_SUBJECT_CHARS: Final = 160

_OPEN_COLOURS: Final = {Severity.CRITICAL: "#c9342b", Severity.WARNING: "#d9822b", Severity.NOTE: "#c7a500"}


class ShownCommand(NamedTuple):
    """A command for the owner."""

    line: str
    effect: str


def owner_letter(
    decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float, has_plot: bool
) -> MailText:
    """The growth, the forecast, the next actions, and advice to the owner."""
    words = owner_words(decision, story, cluster=cluster, now_unix_s=now_unix_s)
    incident = words.incident
    commands = owner_commands(incident)
    chosen = chosen_links(story.look_first, cluster=cluster, links=links)
    text = [
        words.by_clock,
        *words.sentences,
        "\n".join(f"{one.effect}:\n    {one.line}" for one in commands),
        "\n".join(words.evidence),
        _addresses(chosen),
    ]
    html = [
        *map(paragraph, words.sentences),
        _picture(incident_sentence(incident)) if has_plot else "",
        _commands(commands),
        small_lines(words.evidence),
        _links(chosen),
    ]
    return _letter(_subject(incident, words.whose, cluster), incident, words.by_clock, text, html, words.footer)


def followup_letter(record: DecisionRecord, story: Story, *, cluster: str) -> MailText:
    """A decision about the owner's job and its outcome, in the thread of the mail that announced it."""
    done = deed(tamed_record(record), TO_OWNER)
    line = told_at(done, done.at_unix_s)
    return _reply(story, cluster, f"{done.sentence}.", [line], [paragraph(line)])


def evidence_letter(story: Story, *, cluster: str, links: Links) -> MailText:
    """The evidence about the owner's job, in the thread of the mail that announced the incident."""
    incident = tamed(story.incident)
    line = f"{capitalised(evidence_in_words(incident))}."
    found = evidence_sentences(incident)
    chosen = chosen_links(story.look_first, cluster=cluster, links=links)
    text = [line, *found, _addresses(chosen)]
    return _reply(story, cluster, line, text, [*map(paragraph, found), _links(chosen)])


def replicas_letter(story: Story, *, cluster: str, links: Links) -> MailText:
    """How many replicas of the owner's server are affected by now, in the thread of the mail that announced it."""
    told = tamed_story(story)
    line, names = replicas_sentence(told.incident, told.replicas), replica_names(told.replicas)
    chosen = chosen_links(story.look_first, cluster=cluster, links=links)
    html = [paragraph(names), paragraph(incident_sentence(told.incident)), _links(chosen)]
    return _reply(story, cluster, line, [line, names, incident_sentence(told.incident), _addresses(chosen)], html)


def owner_commands(incident: Incident) -> Sequence[ShownCommand]:
    """Commands for the owner of a running Slurm job; of a tamed incident."""
    job_id = incident.key.job.job_id
    exempting = exempting_command(job_id, incident.scheduler)
    if exempting is None or not exempting.is_complete or not incident.is_open:
        return ()
    return (
        ShownCommand(
            " ".join(exempting.words),
            "To exempt this job from actions (replaces the job's comment)",
        ),
        ShownCommand(f"scancel {job_id}", "To cancel it yourself, after saving what you need"),
    )


def _reply(story: Story, cluster: str, line: str, text: Sequence[str], html: Sequence[str]) -> MailText:
    incident = tamed(story.incident)
    subject = f"Re: {_subject(incident, your_whole_job(incident, story.replicas), cluster)}"
    return _letter(subject, incident, line, text, html, _short_footer(incident, cluster))


def _subject(incident: Incident, whose: str, cluster: str) -> str:
    about = f"{noun(incident)} in {whose}"
    return tidy(f"{about} (incident {incident.number} on {tidy(cluster, MAX_NAME_CHARS)})", MAX_SUBJECT_CHARS)


def _short_footer(incident: Incident, cluster: str) -> str:
    return f"Tidegauge, incident {incident.number}, cluster {tidy(cluster, MAX_NAME_CHARS)}"


def _letter(
    subject: str, incident: Incident, line: str, text: Sequence[str], html: Sequence[str], footer: str
) -> MailText:
    return MailText(subject, plain_text(text, footer), page([_heading(line, incident), *html, small_lines([footer])]))


def _addresses(chosen: Sequence[Link]) -> str:
    return "\n".join(f"{link.label}: {link.url}" for link in chosen)


def _heading(line: str, incident: Incident) -> str:
    colour = _OPEN_COLOURS[incident.severity] if incident.state is IncidentState.OPEN else CALM_COLOUR
    if oom_end(incident) is not None:
        colour = _OPEN_COLOURS[Severity.CRITICAL]
    return heading(line, colour)


def _picture(description: str) -> str:
    return (
        f'<p style="{PARAGRAPH}"><img src="cid:{PLOT}" width="640" alt="{escape(description)}" '
        'style="max-width:100%;height:auto;border-radius:6px"></p>'
    )


def _commands(commands: Sequence[ShownCommand]) -> str:
    return "\n".join(
        f'<p style="margin:0 0 4px">{escape(one.effect)}:</p>\n'
        '<pre style="margin:0 0 12px;padding:8px 10px;background:#f1f3f5;border-radius:4px;'
        f'font:13px/1.4 Menlo,Consolas,monospace;white-space:pre-wrap">{escape(one.line)}</pre>'
        for one in commands
    )


def _links(chosen: Sequence[Link]) -> str:
    anchors = [
        f'<a href="{escape(link.url)}" style="color:#0b5cad;font-weight:bold">{escape(link.label)}</a>'
        for link in chosen
        if link.url is not None
    ]
    return f'<p style="margin:16px 0 0">{" &nbsp; ".join(anchors)}</p>' if anchors else ""
