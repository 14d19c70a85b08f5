from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from exporter.notify.channel import Channel
from exporter.notify.telling import Call, alert, group, release
from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.notify.alert_posts import ANEW_AFTER_S
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

FIRING = group(alert(hostname="n1"))
MORE = group(alert(hostname="n1"), alert(hostname="n2"))
RESOLVED = group(alert(hostname="n1", firing=False))


def test_a_group_is_one_message_that_follows_it(channel: Channel) -> None:
    for told in (FIRING, MORE, FIRING, RESOLVED):
        channel.sink.take_group(told)
    assert [said.versions for said in channel.chat.said.values()] == [
        ["TidegaugeAgentDown n1", "TidegaugeAgentDown n1, TidegaugeAgentDown n2", "TidegaugeAgentDown n1", "all over"]
    ]


def test_the_same_again_says_nothing_also_after_a_restart(channel: Channel) -> None:
    channel.sink.take_group(MORE)
    channel.restart()
    channel.sink.take_group(group(*reversed(MORE.alerts)))
    moved = replace(MORE.alerts[0], annotations={"summary": "for 5 min"})
    channel.sink.take_group(group(moved, MORE.alerts[1]))
    assert len(channel.chat.calls) == 1


def test_groups_are_told_apart_by_their_key(channel: Channel) -> None:
    channel.sink.take_group(FIRING)
    channel.sink.take_group(replace(FIRING, group_key="another"))
    assert len(channel.chat.heads()) == 2


def test_alert_post_replies_in_the_thread_if_an_alert_fires_again(channel: Channel) -> None:
    for told in (FIRING, RESOLVED, FIRING):
        channel.sink.take_group(told)
    assert channel.chat.heads() == ["TidegaugeAgentDown n1"]
    assert channel.chat.replies("TidegaugeAgentDown n1") == ["TidegaugeAgentDown n1"]


def test_alert_post_is_a_new_message_if_an_alert_fires_again_after_a_day(channel: Channel) -> None:
    channel.sink.take_group(FIRING)
    channel.sink.take_group(RESOLVED)
    channel.clock.now_s += ANEW_AFTER_S
    channel.sink.take_group(FIRING)
    assert channel.chat.heads() == ["all over", "TidegaugeAgentDown n1"]


def test_the_end_of_what_was_never_told_is_not_told(channel: Channel) -> None:
    channel.sink.take_group(RESOLVED)
    assert channel.chat.calls == []


def test_incidents_among_other_alerts_are_released_and_left_out(channel: Channel) -> None:
    channel.open(wait_for_release=True)
    channel.sink.take_group(group(*release(7).alerts, *FIRING.alerts))
    assert channel.chat.heads() == ["TidegaugeAgentDown n1"]
    assert channel.journal.said("slack", "release/7") == "1"
    mixed = group(alert(INCIDENT_ALERT, cluster="rose", incident="7"), *RESOLVED.alerts)
    channel.sink.take_group(mixed)
    assert channel.chat.heads() == ["all over"]


@pytest.mark.parametrize("error", [RetryLaterError("away"), RefusedError("token revoked")])
@pytest.mark.parametrize("told_before", [0, 1, 2])
@pytest.mark.parametrize("fails_at", ["post", "update"])
def test_alert_post_that_failed_is_sent_at_alertmanagers_next_delivery(
    channel: Channel, error: Exception, told_before: int, fails_at: str
) -> None:
    history = [FIRING, RESOLVED, FIRING]

    def fail(call: Call) -> None:
        if call.method == fails_at:
            raise error

    for told in history[:told_before]:
        channel.sink.take_group(told)
    channel.chat.before = fail
    for _ in range(3):
        with contextlib.suppress(type(error)):
            channel.sink.take_group(history[told_before])
        channel.restart()
    channel.chat.before = lambda _: None
    channel.sink.take_group(history[told_before])
    assert channel.chat.heads() == ["all over" if told_before == 1 else "TidegaugeAgentDown n1"]
    assert len(channel.chat.said) == (2 if told_before == 2 else 1)
