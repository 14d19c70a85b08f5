from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from exporter.notify.channel import Channel, away_at
from exporter.notify.telling import Call, closed, escalated, story, warning
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import RetryLaterError
from tidegauge_exporter.notify.storms import FORGET_S, MAX_THREADS, QUIET_S, SHOW_EVERY_S, WITHIN_S


def in_storms(channel: Channel) -> list[str]:
    """The replies below heads of storms, as they read now."""
    heads = {ts for ts, said in channel.chat.said.items() if said.versions[0].startswith("storm ")}
    return [said.text for said in channel.chat.said.values() if said.thread in heads]


def storms(channel: Channel) -> list[str]:
    return [head for head in channel.chat.heads() if head.startswith("storm ")]


def alone(channel: Channel) -> list[str]:
    return [head for head in channel.chat.heads() if head.startswith("incident ")]


def test_beyond_five_threads_in_ten_minutes_the_rest_shares_one(channel: Channel) -> None:
    told = [warning(number) for number in range(1, 9)]
    channel.take(*told)
    assert len(alone(channel)) == MAX_THREADS
    assert storms(channel) == ["storm 6:open 7:open 8:open"]
    assert in_storms(channel) == [f"incident {number} open warning 1006632960" for number in (6, 7, 8)]
    calls = len(channel.chat.calls)
    channel.restart()
    channel.take(*told, after_s=SHOW_EVERY_S)
    assert len(channel.chat.calls) == calls


def test_the_worst_get_threads_of_their_own(channel: Channel) -> None:
    channel.take(*(warning(number) for number in range(1, 6)), *(story(number) for number in range(6, 11)))
    assert all(head.split()[3] == "critical" for head in alone(channel))
    assert all(line.split()[3] == "warning" for line in in_storms(channel))


def test_five_in_ten_minutes_are_no_storm(channel: Channel) -> None:
    told = []
    for number in range(1, 15):
        told.append(warning(number))
        channel.take(*told, after_s=WITHIN_S / MAX_THREADS + 1.0)
    assert (len(alone(channel)), storms(channel)) == (14, [])


def test_a_storm_takes_all_until_it_was_quiet_for_half_an_hour(channel: Channel) -> None:
    told = [warning(number) for number in range(1, 7)]
    channel.take(*told)
    for number in (7, 8):
        told.append(warning(number))
        channel.take(*told, after_s=QUIET_S - 10.0)
    assert len(in_storms(channel)) == 3
    told.append(warning(9))
    channel.take(*told, after_s=QUIET_S + 10.0)
    assert alone(channel)[MAX_THREADS:] == ["incident 9 open warning 1006632960"]
    assert storms(channel) == ["storm 6:open 7:open 8:open"]


def of_user(told: Story, uid: int) -> Story:
    key = told.incident.key
    return replace(told, incident=replace(told.incident, key=key._replace(job=key.job._replace(uid=uid))))


def test_the_flood_of_one_user_drowns_nobody_elses_incident(channel: Channel) -> None:
    flood = [story(number) for number in range(1, 9)]
    channel.take(*flood)
    ada, grace = of_user(warning(20), 2001), of_user(warning(21), 2002)
    channel.take(*flood, ada, grace)
    assert alone(channel)[MAX_THREADS:] == [
        "incident 20 open warning 1006632960",
        "incident 21 open warning 1006632960",
    ]
    # Kept going by an incident now and then, it still takes nobody else's first.
    for number in (9, 10):
        flood.append(story(number))
        channel.take(*flood, after_s=QUIET_S - 10.0)
    channel.restart()
    channel.take(*flood, of_user(warning(22), 2003))
    assert alone(channel)[-1] == "incident 22 open warning 1006632960"
    assert len(alone(channel)) == MAX_THREADS + 3
    assert len(in_storms(channel)) == 5


def test_the_first_of_each_user_comes_before_the_second_of_any(channel: Channel) -> None:
    channel.take(*(story(number) for number in range(1, 9)), of_user(warning(20), 2001))
    assert "incident 20 open warning 1006632960" in alone(channel)
    assert len(alone(channel)) == MAX_THREADS


def test_a_bad_night_of_many_users_is_a_storm_too(channel: Channel) -> None:
    channel.take(*(of_user(warning(number), 2000 + number) for number in range(1, 41)))
    channel.take(*(of_user(warning(number), 2000 + number) for number in range(1, 81)))
    assert len(alone(channel)) == MAX_THREADS
    assert len(in_storms(channel)) == 75


def test_replies_and_head_of_a_storm_follow_its_incidents(channel: Channel) -> None:
    channel.take(*(warning(number) for number in range(1, 8)))
    channel.take(escalated(warning(6)), warning(7), after_s=SHOW_EVERY_S)
    assert in_storms(channel) == ["incident 6 open critical 1006632960", "incident 7 open warning 1006632960"]
    channel.take(closed(escalated(warning(6))), warning(7), after_s=SHOW_EVERY_S)
    assert storms(channel) == ["storm 6:closed 7:open"]
    # The service does not tell of incident 6 any more: the head does not shrink.
    channel.take(closed(warning(7), 100.0))
    assert storms(channel) == ["storm 6:closed 7:closed"]
    assert not any("closed at" in said.text for said in channel.chat.said.values() if said.text in in_storms(channel))


def test_a_storm_that_is_over_is_left_alone(channel: Channel) -> None:
    told = [closed(warning(number), 60.0) for number in range(1, 8)]
    channel.take(*(warning(number) for number in range(1, 8)))
    channel.take(*told)
    channel.take(*told, after_s=QUIET_S)
    kept = [channel.journal.said("slack", key) for key in channel.journal.keys("slack", "storm/")]
    assert len(kept) == 1
    assert '"over":true' in (kept[0] or "")


def test_a_storm_with_incidents_that_nobody_tells_of_is_over_after_a_week(channel: Channel) -> None:
    channel.take(*(warning(number) for number in range(1, 8)))
    channel.restart()
    channel.take(closed(warning(6)), after_s=QUIET_S)
    (key,) = channel.journal.keys("slack", "storm/")
    assert '"over":true' not in (channel.journal.said("slack", key) or "")
    assert storms(channel) == ["storm 6:open 7:open"]
    channel.take(closed(warning(6)), after_s=FORGET_S)
    assert '"over":true' in (channel.journal.said("slack", key) or "")


def test_a_storm_that_slack_interrupts_is_gathered_later_in_the_same_place(channel: Channel) -> None:
    left = [8]

    def limited(call: Call) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RetryLaterError("one message a second")

    channel.chat.before = limited
    told = [warning(number) for number in range(1, 12)]
    with pytest.raises(RetryLaterError):
        channel.take(*told)
    channel.restart()
    left[0] = 1000
    channel.take(*told, after_s=QUIET_S * 2)
    assert len(storms(channel)) == 1
    assert sorted(int(line.split()[1]) for line in in_storms(channel)) == list(range(6, 12))


@fewer(2)
@given(
    pauses_s=st.lists(st.floats(0.0, 2000.0), min_size=1, max_size=30),
    failing=st.lists(st.booleans(), max_size=60),
)
def test_every_incident_is_told_once_and_no_more_than_five_threads_begin_in_ten_minutes(
    pauses_s: list[float], failing: list[bool]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        channel = Channel(Path(folder) / "notified.jsonl")
        began_s: list[float] = []

        def after(call: Call) -> None:
            if call.method == "post" and channel.chat.said[list(channel.chat.said)[-1]].thread is None:
                began_s.extend([channel.clock.now_s] * call.text.startswith("incident "))

        channel.chat.before, channel.chat.after = away_at(failing), after
        channel.take_one_more_each(pauses_s)
        numbers = sorted(int(line.split()[1]) for line in [*alone(channel), *in_storms(channel)])
        channel.journal.close()
    assert numbers == list(range(1, len(pauses_s) + 1))
    for at_s in began_s:
        assert sum(at_s <= other_s < at_s + WITHIN_S for other_s in began_s) <= MAX_THREADS


def test_a_storm_of_notes_is_none(channel: Channel) -> None:
    note = {"severity": Severity.NOTE, "worst_severity": Severity.NOTE}
    channel.take(*(story(number, **note) for number in range(1, 20)))
    assert channel.chat.calls == []
