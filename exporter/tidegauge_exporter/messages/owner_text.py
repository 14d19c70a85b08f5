"""What the owner of a job is told, before it takes the shape of a message on Slack or of a mail. Pure.

What Tidegauge does next, and when, and how to keep it from that, is the policy's own text; it is written nowhere else.
What that text leaves out and an owner needs is added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import Decision
from tidegauge.core.incidents.wording import capitalised, evidence_sentences, incident_sentence, meaning
from tidegauge_exporter.messages.headlines import as_of, end_by_clock, end_by_time_left, headline, your_job
from tidegauge_exporter.messages.text import clock, tidy, tidy_lines
from tidegauge_exporter.messages.untrusted import MAX_NAME_CHARS, tamed_decision, tamed_story
from tidegauge_exporter.messages.values import Story

MAX_POLICY_TEXT_CHARS: Final = 1800


class OwnerText(NamedTuple):
    """Every text is tidied: in lines of their own, visible, and not too long."""

    incident: Incident
    """Fit to be written (``untrusted``)."""
    by_time_left: str
    """The line that says it all, for what is read at once: "... out of memory in 14-22 min"."""
    by_clock: str
    """The same for what is read hours later: "... out of memory 06:14-06:22 UTC"."""
    sentences: tuple[str, ...]
    evidence: tuple[str, ...]
    """Where snapshots and reports lie."""
    footer: str


def owner_words(decision: Decision, story: Story, *, cluster: str, now_unix_s: float) -> OwnerText:
    """What grows, when it ends, what will be done when, and what the owner can do now."""
    policy_text = tidy_lines(str(decision.parameters.get("text", "")), MAX_POLICY_TEXT_CHARS)
    incident = tamed_story(story).incident
    said = incident_sentence(tamed_decision(decision).incident)
    whose = your_job(incident)
    return OwnerText(
        incident,
        by_time_left=headline(incident, whose, end_by_time_left(incident, now_unix_s)),
        by_clock=headline(incident, whose, end_by_clock(incident, now_unix_s)),
        sentences=tuple(_sentences(as_of(incident, now_unix_s), policy_text, said=said)),
        evidence=tuple(_evidence(incident)),
        footer=_footer(incident, cluster, now_unix_s),
    )


def _sentences(incident: Incident, policy_text: Sequence[str], *, said: str) -> list[str]:
    """The sentence of the incident as of now, the policy's text without the same sentence as of then, and advice."""
    found = evidence_sentences(incident)
    text = " ".join(policy_text)
    usual = capitalised(meaning(incident))
    # The usual places, which the policy's text names, are beside the point once the place is known.
    rest = [line.replace(usual, "").strip() if found else line for line in policy_text if line != said]
    advice = capitalised(incident.explanation or ("" if found else usual))
    return [incident_sentence(incident), *found, *filter(None, rest), *([] if advice in text else [advice])]


def _evidence(incident: Incident) -> list[str]:
    named = (("Snapshot", incident.snapshots), ("Report", incident.reports))
    return [f"{what}: {path}" for what, paths in named for path in paths]


def _footer(incident: Incident, cluster: str, now_unix_s: float) -> str:
    name = [incident.job_name] if incident.job_name else []
    figures = clock(incident.updated_unix_s, now_unix_s)
    parts = [*name, f"cluster {tidy(cluster, MAX_NAME_CHARS)}", *([f"figures from {figures}"] if figures else [])]
    return " \N{MIDDLE DOT} ".join(["Tidegauge", f"incident {incident.number}", *parts])
