"""Texts for the owner of a job, before they become a message on Slack or a mail.

The policy's own text says what Tidegauge does next, when, and how to prevent it. These texts add the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import Decision
from tidegauge.core.incidents.wording import (
    IF_GROWTH_CONTINUES,
    IF_THIS_CONTINUES,
    capitalised,
    change_sentence,
    evidence_sentences,
    incident_sentence,
    meaning,
    other_half,
)
from tidegauge_exporter.messages.headlines import (
    as_of,
    end_by_clock,
    end_by_time_left,
    headline,
    your_job,
    your_whole_job,
)
from tidegauge_exporter.messages.text import clock, tidy, tidy_lines
from tidegauge_exporter.messages.untrusted import MAX_NAME_CHARS, tamed_decision, tamed_story
from tidegauge_exporter.messages.values import Story

MAX_POLICY_TEXT_CHARS: Final = 1800


class OwnerText(NamedTuple):
    """Tidied texts for the owner of a job."""

    incident: Incident
    """The tamed incident (``untrusted``)."""
    whose: str
    """ "your job 4711"."""
    by_time_left: str
    """The headline for texts that are read at once: "... out of memory in 14-22 min"."""
    by_clock: str
    """The headline for texts that are read hours later: "... out of memory 06:14-06:22 UTC"."""
    sentences: tuple[str, ...]
    evidence: tuple[str, ...]
    """Paths of snapshots and reports."""
    footer: str


def owner_words(decision: Decision, story: Story, *, cluster: str, now_unix_s: float) -> OwnerText:
    """The growth, the forecast, the next actions, and advice to the owner."""
    policy_text = tidy_lines(str(decision.parameters.get("text", "")), MAX_POLICY_TEXT_CHARS)
    story = tamed_story(story)
    incident = story.incident
    said = incident_sentence(tamed_decision(decision).incident)
    whose = your_job(incident, story.replicas)
    return OwnerText(
        incident,
        your_whole_job(incident, story.replicas),
        by_time_left=headline(incident, whose, end_by_time_left(incident, now_unix_s)),
        by_clock=headline(incident, whose, end_by_clock(incident, now_unix_s)),
        sentences=tuple(_sentences(as_of(incident, now_unix_s), policy_text, said=said)),
        evidence=tuple(_evidence(incident)),
        footer=_footer(incident, cluster, now_unix_s),
    )


def _sentences(incident: Incident, policy_text: Sequence[str], *, said: str) -> list[str]:
    """The sentence of the incident as of now, the policy's text without its sentence ``said``, and advice."""
    found = evidence_sentences(incident)
    text = " ".join(policy_text)
    usual = capitalised(meaning(incident))
    # The usual places, which the policy's text names, are beside the point once the place is known.
    rest = [line.replace(usual, "").strip() if found else line for line in policy_text if line != said]
    if not incident.is_open:  # nothing is done any more if it continues
        rest = [line for line in rest if not line.startswith((IF_GROWTH_CONTINUES, IF_THIS_CONTINUES))]
    advice = capitalised(incident.explanation or ("" if found else usual))
    rest = [change_sentence(incident), *rest, *([] if advice in text else [advice])]
    return [incident_sentence(incident), *found, *filter(None, rest)]


def _evidence(incident: Incident) -> list[str]:
    named = (("Snapshot", incident.snapshots), ("Report", incident.reports))
    return [f"{what}: {path}" for what, paths in named for path in paths]


def _footer(incident: Incident, cluster: str, now_unix_s: float) -> str:
    name = [incident.job_name] if incident.job_name else []
    figures = clock(incident.updated_unix_s, now_unix_s)
    parts = [*name, f"cluster {tidy(cluster, MAX_NAME_CHARS)}", *([f"figures from {figures}"] if figures else [])]
    number = [f"incident {incident.number}", *filter(None, [other_half(incident)])]
    return " \N{MIDDLE DOT} ".join(["Tidegauge", *number, *parts])
