"""What the owner of a job gets as a direct message: short, because it is read on a telephone.

What Tidegauge does next, and when, and how to keep it from that, is the policy's own text; it is written nowhere else.
What that text leaves out and an owner needs is added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegauge.core.actions import Decision, DecisionRecord
from tidegauge.core.incidents import Incident
from tidegauge.core.wording import capitalised, hint, incident_sentence
from tidegauge_exporter.links import Links
from tidegauge_exporter.notify.values import Story
from tidegauge_exporter.slack.blocks import context, header, message, paragraph
from tidegauge_exporter.slack.chat import Message
from tidegauge_exporter.slack.deeds import TO_OWNER, deed, told_at
from tidegauge_exporter.slack.headlines import (
    as_of,
    end_by_clock,
    end_by_time_left,
    headline,
    sign,
    your_job,
)
from tidegauge_exporter.slack.incident_messages import incident_links
from tidegauge_exporter.slack.text import clock, tidy, tidy_lines
from tidegauge_exporter.slack.untrusted import MOST_NAME, tamed_decision, tamed_record, tamed_story

MOST_POLICY_TEXT: Final = 1800


def owner_message(
    decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float
) -> Message:  # fmt: skip
    """What grows, when it ends, what will be done when, and what the owner can do now."""
    asked = incident_links(story.incident, cluster=cluster, links=links)
    policy_text = tidy_lines(str(decision.parameters.get("text", "")), MOST_POLICY_TEXT)
    incident = tamed_story(story).incident
    said = incident_sentence(tamed_decision(decision).incident)
    whose = your_job(incident)
    return message(
        f"{sign(incident)} {headline(incident, whose, end_by_time_left(incident, now_unix_s))}",
        [header(f"{sign(incident)} {headline(incident, whose, end_by_clock(incident, now_unix_s))}")],
        paragraph(_spaced(_sentences(as_of(incident, now_unix_s), policy_text, said=said))),
        paragraph(_evidence(incident)),
        asked,
        context(_footer(incident, cluster, now_unix_s)),
    )


def owner_followup(record: DecisionRecord) -> Message:
    """What became of a decision about the owner's job, as a reply below the message that announced it."""
    done = deed(tamed_record(record), TO_OWNER)
    return message(f"{done.sign} {done.sentence}", paragraph([told_at(done, done.at_unix_s)]))


def _sentences(incident: Incident, policy_text: Sequence[str], *, said: str) -> list[str]:
    """The sentence of the incident as of now, the policy's text without the same sentence as of then, and advice."""
    rest = [line for line in policy_text if line != said]
    text = " ".join(policy_text)
    advice = incident.explanation or hint(incident.key.cause)
    return [incident_sentence(incident), *rest, *([] if advice in text else [capitalised(advice)])]


def _evidence(incident: Incident) -> list[str]:
    named = (("Snapshot", incident.snapshots), ("Report", incident.reports))
    return [f"{what}: {path}" for what, paths in named for path in paths]


def _spaced(lines: Sequence[str]) -> list[str]:
    """An empty line between any two: a paragraph each."""
    return ["\n\n".join(lines)]


def _footer(incident: Incident, cluster: str, now_unix_s: float) -> str:
    name = [incident.job_name] if incident.job_name else []
    figures = clock(incident.updated_unix_s, now_unix_s)
    parts = [*name, f"cluster {tidy(cluster, MOST_NAME)}", *([f"figures of {figures}"] if figures else [])]
    return " \N{MIDDLE DOT} ".join(["Tidegauge", f"incident {incident.number}", *parts])
