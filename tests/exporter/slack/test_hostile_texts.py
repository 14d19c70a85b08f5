"""Whatever a job, a scheduler or an alert says: Slack takes the message, and nothing in it is interpreted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from fakes.block_kit import block_problems, control_sequences, skeleton, text_objects
from sample_views import NOW_S
from scheduler_values import decision, record
from slack_stories import ALL, FOUND, leak, notify_decision
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, Disposition, Outcome
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Alert, AlertGroup, Story
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.slack.messages import (
    action_reply,
    alert_message,
    change_reply,
    incident_message,
    owner_evidence,
    owner_followup,
    owner_message,
    storm_message,
)

LINKS = Links("https://grafana.example/", "https://tidegauge.example/")

HOSTILE = [
    "<!channel> <@U024BE7LH> <#C024BE7LR|general> <https://evil.example|click>",
    "*bold* _italic_ ~gone~ `code` ```block``` :fire: > quote",
    "@channel #general https://evil.example mailto:x@y.z",
    "a\nb\r\n\u2028c\x00\x1b[31m\u202eevil\u200b",
    "&lt;!channel&gt; &amp; <",
    "\ud800 lone",
    "`",
    "x" * 100_000,
    "<" * 5_000,
    "&" * 5_000,
    "{0} {job} %s %(a)s",
    "\N{GRINNING FACE}" * 3_000,
]
Builder = Callable[[str], Message]


def _story(text: str) -> Story:
    story = leak()
    one = story.incident
    job = one.key.job._replace(job_id=text)
    worst = replace(one.findings[0], hostname=text)
    told = replace(
        one,
        key=one.key._replace(job=job),
        user_name=text,
        job_name=text,
        scheduler=text,
        explanation=text,
        snapshots=(text,) * 5,
        reports=(text,),
        findings=(worst,),
        evidence=(FOUND._replace(line=CodeLine(text, 41, text), holder=text, advice=text),) * 5,
    )
    return Story(told, decisions=(_record(text), _withheld(text)))


def _record(text: str) -> DecisionRecord:
    made = decision(ActionKind.CHECKPOINT, reason=text, rule=text, parameters={"text": text})
    return record(made, Outcome.FAILED, detail=text)


def _withheld(text: str) -> DecisionRecord:
    return record(decision(ActionKind.REQUEUE, disposition=Disposition.WITHHELD, reason=text, brake="paused"))


def _group(text: str) -> AlertGroup:
    labels = {"alertname": text, "severity": "critical", "job_id": text}
    alert = Alert(
        True, labels, {"summary": text, "runbook_url": text, "dashboard_url": text}, "f", "2027-01-15T08:00:00Z"
    )
    return AlertGroup("key", True, (alert,) * 30, {"alertname": text}, f"https://am.example/{text}", left_out=3)


def _owner(text: str) -> Message:
    asked = notify_decision(_story(text), f"{text}\n{text}\nwhat happens next")
    return owner_message(asked, _story(text), cluster=text, links=LINKS, now_unix_s=NOW_S)


BUILDERS: dict[str, Builder] = {
    "incident": lambda text: incident_message(_story(text), cluster=text, links=LINKS, now_unix_s=NOW_S),
    "change": lambda text: change_reply(IncidentChange(ChangeKind.ESCALATED, NOW_S, _story(text).incident)),
    "evidence": lambda text: change_reply(IncidentChange(ChangeKind.EVIDENCE, NOW_S, _story(text).incident)),
    "action": lambda text: action_reply(_record(text)),
    "withheld": lambda text: action_reply(_withheld(text)),
    "owner": _owner,
    "owner's evidence": lambda text: owner_evidence(_story(text)),
    "followup": lambda text: owner_followup(_record(text)),
    "alerts": lambda text: alert_message(_group(text), links=LINKS),
    "storm": lambda text: storm_message([_story(text)] * 30, cluster=text, links=LINKS, now_unix_s=NOW_S),
}


def _check(build: Builder, text: str) -> None:
    message = build(text)
    assert block_problems(message.blocks) == []
    assert 1 <= len(message.text) <= 4_000
    texts = [message.text, *(one["text"] for one in text_objects(message.blocks))]
    assert [found for one in texts for found in control_sequences(one)] == []
    for one in texts:
        one.encode()  # JSON for Slack: no half characters
    if text.strip():
        marked = [one for one in skeleton(message.blocks) if one not in ("section", "context", "rich_text")]
        usual = set(skeleton(build("usual").blocks))
        assert set(marked) <= usual


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("name", BUILDERS)
def test_no_text_becomes_a_mention_a_link_formatting_or_a_block(name: str, text: str) -> None:
    _check(BUILDERS[name], text)


@pytest.mark.parametrize("name", BUILDERS)
@given(text=st.text(alphabet=st.one_of(st.characters(), st.sampled_from("<>&|!@#*_~`:\n\\\"'")), min_size=1))
@fewer(2)
def test_no_text_at_all_does(name: str, text: str) -> None:
    _check(BUILDERS[name], f"a{text}")


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u200b"])
@pytest.mark.parametrize("name", BUILDERS)
def test_an_empty_text_leaves_a_message_that_slack_takes(name: str, text: str) -> None:
    message = BUILDERS[name](text)
    assert block_problems(message.blocks) == []
    assert message.text.strip()


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_slack_takes_every_message_of_a_usual_story(make: Callable[[], Story]) -> None:
    story = make()
    for message in (
        incident_message(story, cluster="prod", links=LINKS, now_unix_s=NOW_S),
        owner_message(notify_decision(story), story, cluster="prod", links=LINKS, now_unix_s=NOW_S),
        *map(action_reply, story.decisions),
        *map(change_reply, story.history),
    ):
        assert block_problems(message.blocks) == []


@given(
    seconds=st.tuples(*[st.floats(0.0, allow_nan=False, width=64)] * 3),
    now_s=st.floats(0.0, 4e9),
    updated_s=st.floats(0.0, 4e9),
)
def test_any_forecast_at_any_time_can_be_said(
    seconds: tuple[float, float, float], now_s: float, updated_s: float
) -> None:
    from tidegauge.core.verdicts import Band

    low, likely, high = sorted(seconds)
    story = Story(replace(leak().incident, seconds_to_oom=Band(low, likely, high), updated_unix_s=updated_s))
    message = incident_message(story, cluster="prod", links=LINKS, now_unix_s=now_s)
    assert block_problems(message.blocks) == []
