"""What the owner of a job gets as a direct message: short, because it is read on a telephone."""

from __future__ import annotations

from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge.core.incidents.wording import capitalised, evidence_in_words
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.action_text import TO_OWNER, deed, told_at
from tidegauge_exporter.messages.chat import Message
from tidegauge_exporter.messages.headlines import sign
from tidegauge_exporter.messages.owner_text import owner_words
from tidegauge_exporter.messages.untrusted import tamed, tamed_record
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.slack.blocks import context, header, message, paragraph
from tidegauge_exporter.slack.incident_messages import EVIDENCE_SIGN, evidence_paragraph, incident_links


def owner_message(decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
    """What grows, when it ends, what will be done when, and what the owner can do now."""
    words = owner_words(decision, story, cluster=cluster, now_unix_s=now_unix_s)
    shown = sign(words.incident)
    return message(
        f"{shown} {words.by_time_left}",
        [header(f"{shown} {words.by_clock}")],
        paragraph(["\n\n".join(words.sentences)]),
        paragraph(words.evidence),
        incident_links(story.incident, cluster=cluster, links=links),
        context(words.footer),
    )


def owner_followup(record: DecisionRecord) -> Message:
    """What became of a decision about the owner's job, as a reply below the message that announced it."""
    done = deed(tamed_record(record), TO_OWNER)
    return message(f"{done.sign} {done.sentence}", paragraph([told_at(done, done.at_unix_s)]))


def owner_evidence(story: Story) -> Message:
    """What keeps the memory of the owner's job, as a reply below the message that announced it."""
    incident = tamed(story.incident)
    line = f"{EVIDENCE_SIGN} {capitalised(evidence_in_words(incident))}"
    return message(line, evidence_paragraph(incident))
