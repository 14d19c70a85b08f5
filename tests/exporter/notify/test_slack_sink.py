from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from exporter.notify.channel import Channel
from exporter.notify.telling import (
    MEMORY,
    Call,
    PlainLook,
    closed,
    considered,
    decided,
    done,
    escalated,
    group,
    happened,
    ran_out,
    release,
    story,
    warning,
)
from sample_views import NOW_S
from slack_stories import FOUND
from tidegauge.core.incidents import ChangeKind, IncidentState
from tidegauge.core.incidents.actions import ActionKind, Disposition
from tidegauge.core.incidents.acts import ActKind, ActOutcome, PersonAct
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import Message, RefusedError, RetryLaterError
from tidegauge_exporter.notify.story_lines import ACT_LINE_EVERY_S, MAX_CONSIDERED, MAX_LINES_AT_ONCE
from tidegauge_exporter.slack.sink import FIGURES_EVERY_S


def test_an_incident_is_one_thread_with_its_plot_and_its_lines(channel: Channel) -> None:
    told = replace(warning(), memory=MEMORY)
    for _ in range(3):
        channel.take(told)
    assert channel.chat.heads() == ["incident 1 open warning 1006632960"]
    assert channel.chat.replies(channel.chat.heads()[0]) == ["opened at 0"]
    assert [title for _, title in channel.chat.uploads] == ["Memory of rank 1 of job 471"]
    channel.restart()
    channel.take(told)
    assert len(channel.chat.calls) == 3


def test_the_head_follows_what_matters_at_once_and_the_story_goes_on_in_order(channel: Channel) -> None:
    channel.take(warning())
    told = decided(escalated(warning()), done(at_s=40.0, name="capped"))
    channel.take(told)
    assert channel.chat.heads() == ["incident 1 open critical 1006632960"]
    channel.take(closed(told))
    assert channel.chat.heads() == ["incident 1 closed critical 1006632960"]
    assert channel.chat.replies(channel.chat.heads()[0]) == [
        "opened at 0", "escalated at 30", "cap done capped", "closed at 60",
    ]  # fmt: skip


def test_what_people_did_is_a_line_and_changes_the_head_at_once(channel: Channel) -> None:
    channel.take(warning())
    act = PersonAct("r1", 1, ActKind.ACKNOWLEDGE, "ada", False, NOW_S + 5.0, outcome=ActOutcome.DONE)
    others = [act._replace(request_id="r2", outcome=one) for one in ActOutcome if one is not ActOutcome.DONE]
    moved = happened(warning(), ChangeKind.UPDATED, 10.0, grown_bytes=7)
    for acts in ((), tuple(others)):
        channel.take(replace(moved, acts=acts))
    assert channel.chat.heads() == ["incident 1 open warning 1006632960"], "figures alone wait"
    for _ in range(2):
        channel.take(replace(moved, acts=(act, *others)))
        channel.restart()
    assert channel.chat.heads() == ["incident 1 open warning 7"]
    assert channel.chat.replies(channel.chat.heads()[0]) == ["opened at 0", "act acknowledge by ada"]


def test_a_button_that_a_person_presses_on_and_on_is_one_line_in_ten_minutes(channel: Channel) -> None:
    began_s = NOW_S - NOW_S % ACT_LINE_EVERY_S
    first = PersonAct("0", 1, ActKind.ACKNOWLEDGE, "ada", False, began_s, outcome=ActOutcome.DONE)
    kinds = [ActKind.ACKNOWLEDGE, ActKind.UNACKNOWLEDGE]
    pressed = [first._replace(request_id=str(at), kind=kinds[at % 2], at_unix_s=began_s + at) for at in range(400)]
    channel.take(warning())
    for at in range(0, 400, 40):
        channel.take(replace(warning(), acts=tuple(pressed[max(0, at - 50) : at + 1])))  # the database keeps the latest
    lines = channel.chat.replies(channel.chat.heads()[0])
    assert lines == ["opened at 0", "act acknowledge by ada", "act unacknowledge by ada"]
    later = first._replace(request_id="later", at_unix_s=began_s + ACT_LINE_EVERY_S)
    other = first._replace(request_id="other", by="root", at_unix_s=began_s + 1.0)
    channel.take(replace(warning(), acts=(other, later)))
    assert channel.chat.replies(channel.chat.heads()[0])[3:] == ["act acknowledge by root", "act acknowledge by ada"]


def test_an_exemption_and_its_end_are_two_lines(channel: Channel) -> None:
    given = PersonAct("0", 1, ActKind.EXEMPT, "ada", False, NOW_S, until_unix_s=NOW_S + 60.0, outcome=ActOutcome.DONE)
    ended = given._replace(request_id="1", at_unix_s=NOW_S + 1.0, until_unix_s=NOW_S + 1.0)
    channel.take(replace(warning(), acts=(given, ended)))
    assert channel.chat.replies(channel.chat.heads()[0]) == ["opened at 0", *["act exempt by ada"] * 2]


def test_figures_follow_every_five_minutes_and_only_while_it_is_open(channel: Channel) -> None:
    channel.take(warning())
    moved = happened(warning(), ChangeKind.UPDATED, 10.0, grown_bytes=7)
    channel.take(moved)
    assert len(channel.chat.calls) == 2
    channel.take(moved, after_s=FIGURES_EVERY_S)
    assert channel.chat.heads() == ["incident 1 open warning 7"]
    channel.take(moved, after_s=FIGURES_EVERY_S)
    over = closed(moved)
    channel.take(over)
    calls = len(channel.chat.calls)
    channel.take(replace(over, incident=replace(over.incident, grown_bytes=9)), after_s=FIGURES_EVERY_S)
    assert len(channel.chat.calls) == calls
    assert [call.method for call in channel.chat.calls].count("update") == 2


def test_slack_sink_posts_evidence_as_a_reply_and_updates_the_head(channel: Channel) -> None:
    channel.take(warning())
    known = happened(warning(), ChangeKind.EVIDENCE, 10.0, evidence=(FOUND,), grown_bytes=7)
    channel.take(known)
    assert channel.chat.heads() == ["incident 1 open warning 7"]
    assert channel.chat.replies(channel.chat.heads()[0])[-1] == "evidence at 10"
    calls = len(channel.chat.calls)
    channel.take(replace(known, incident=replace(known.incident, evidence=(FOUND._replace(grown_bytes=1),))))
    assert len(channel.chat.calls) == calls


def test_a_clock_that_was_set_back_stops_no_figures(channel: Channel) -> None:
    channel.take(warning())
    channel.take(happened(warning(), ChangeKind.UPDATED, 10.0, grown_bytes=7), after_s=-86400.0)
    assert channel.chat.heads() == ["incident 1 open warning 7"]


def test_a_note_is_not_told_until_it_is_more(channel: Channel) -> None:
    note = story(severity=Severity.NOTE, worst_severity=Severity.NOTE)
    channel.take(note)
    assert channel.chat.calls == []
    channel.take(escalated(note))
    assert channel.chat.heads() == ["incident 1 open critical 1006632960"]


def test_slack_sink_posts_an_outcome_after_the_incident_closed(channel: Channel) -> None:
    channel.take(warning())
    over = closed(warning())
    channel.take(over)
    channel.take(decided(over, done(ActionKind.REQUEUE, at_s=70.0, name="again")))
    assert channel.chat.replies(channel.chat.heads()[0])[-2:] == ["closed at 60", "requeue done again"]


def test_the_end_is_told_once_also_where_the_history_does_not_have_it_yet(channel: Channel) -> None:
    channel.take(warning())
    over = closed(warning())
    channel.take(replace(over, history=over.history[:-1]))
    channel.take(over)
    assert channel.chat.replies(channel.chat.heads()[0]) == ["opened at 0", "closed at 60"]


def test_decisions_under_way_are_no_line_and_considered_ones_are_few(channel: Channel) -> None:
    under_way = replace(done(name="x"), outcome=None, status=done().status)
    same = [considered(Disposition.WITHHELD, brake="paused", reason=f"for {number} s") for number in range(30)]
    kinds = [considered(Disposition.WOULD, kind) for kind in ActionKind]
    channel.take(decided(warning(), under_way, *same, *kinds))
    lines = channel.chat.replies(channel.chat.heads()[0])[1:]
    assert len(lines) == MAX_CONSIDERED
    assert [line.split(" d")[0] for line in lines[:2]] == ["cap withheld", "notify would"]


def test_after_a_long_absence_the_newest_lines_are_told_and_the_rest_counted(channel: Channel) -> None:
    told = warning()
    for number in range(1, 38):
        told = happened(told, ChangeKind.SPREAD, float(number))
    channel.take(told)
    lines = channel.chat.replies(channel.chat.heads()[0])
    assert lines[0].startswith("18 earlier updates skipped")
    assert lines[1:] == [f"spread at {number}" for number in range(18, 38)]
    assert len(lines) == 1 + MAX_LINES_AT_ONCE
    channel.restart()
    channel.take(happened(told, ChangeKind.SPREAD, 99.0))
    assert channel.chat.replies(channel.chat.heads()[0])[len(lines) :] == ["spread at 99"]


def test_an_incident_that_flaps_for_weeks_repeats_no_line(channel: Channel) -> None:
    told = warning()
    for number in range(1, 400):
        told = happened(told, ChangeKind.REOPENED, float(number))
        channel.take(told)
    lines = channel.chat.replies(channel.chat.heads()[0])
    assert lines == ["opened at 0", *(f"reopened at {number}" for number in range(1, 400))]
    assert len(channel.journal.said("slack", "incident/1") or "") < 6_000


def test_slack_sink_ignores_incidents_closed_before_it_started(channel: Channel) -> None:
    channel.clock.now_s = NOW_S + 100.0
    channel.take(closed(warning(1), 60.0), warning(2))
    assert channel.chat.heads() == ["incident 2 open warning 1006632960"]
    channel.take(closed(warning(3), 103.0))
    assert channel.chat.heads()[1:] == ["incident 3 closed warning 1006632960"]


def test_with_alertmanager_an_incident_waits_for_its_word(channel: Channel) -> None:
    sink = channel.open(wait_for_release=True)
    channel.take(warning(1), warning(2))
    assert channel.chat.calls == []
    sink.take_group(release(2))
    channel.restart()
    channel.open(wait_for_release=True)
    channel.take(warning(1), warning(2))
    assert channel.chat.heads() == ["incident 2 open warning 1006632960"]


@pytest.mark.parametrize(
    "word",
    [
        release(1, cluster="tulip"),
        replace(release(1), alerts=tuple(replace(alert, firing=False) for alert in release(1).alerts)),
        group(replace(release(1).alerts[0], labels={"alertname": "TidegaugeIncident", "cluster": "rose"})),
        group(replace(release(1).alerts[0], labels={**release(1).alerts[0].labels, "incident": "1; drop"})),
        group(replace(release(1).alerts[0], labels={**release(1).alerts[0].labels, "incident": "1" * 10_000})),
    ],
)
def test_a_word_about_something_else_releases_nothing(channel: Channel, word: Any) -> None:
    channel.open(wait_for_release=True).take_group(word)
    channel.take(warning(1))
    assert channel.chat.calls == []


def test_when_alertmanager_is_away_incidents_are_told_directly(channel: Channel) -> None:
    away = [False]
    channel.open(wait_for_release=True, release_all=lambda: away[0])
    channel.take(warning(1))
    assert channel.chat.calls == []
    away[0] = True
    channel.take(warning(1), closed(warning(2)))  # the latter may have been silenced, and is over
    assert channel.chat.heads() == ["incident 1 open warning 1006632960"]


def test_a_silence_afterwards_ends_no_thread(channel: Channel) -> None:
    channel.open(wait_for_release=True).take_group(release(1))
    channel.take(warning(1))
    channel.sink.take_group(replace(release(1), firing=False, alerts=(replace(release(1).alerts[0], firing=False),)))
    channel.take(escalated(warning(1)))
    assert channel.chat.heads() == ["incident 1 open critical 1006632960"]


def test_a_limit_ends_the_round_and_the_rest_is_told_in_the_next(channel: Channel) -> None:
    left = [3]

    def limited(call: Call) -> None:
        if left[0] == 0:
            raise RetryLaterError("one message a second", after_s=1.0)
        left[0] -= 1

    channel.chat.before = limited
    told = [escalated(warning(number)) for number in range(1, 4)]
    for _ in range(4):
        with pytest.raises(RetryLaterError):
            channel.take(*told)
        left[0] = 1
    left[0] = 100
    channel.take(*told)
    for number in range(1, 4):
        head = f"incident {number} open critical 1006632960"
        assert channel.chat.heads().count(head) == 1
        assert channel.chat.replies(head) == ["opened at 0", "escalated at 30"]


def refuse(call: Call) -> None:
    raise RefusedError("token_revoked")


def test_slack_sink_posts_other_incidents_if_one_is_refused(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    def refuse_the_first(call: Call) -> None:
        if call.text.startswith("incident 1 "):
            raise RefusedError("msg_too_long")

    channel.chat.before = refuse_the_first
    for _ in range(5):
        channel.take(warning(1), warning(2))
    assert channel.chat.heads() == ["incident 2 open warning 1006632960"]
    assert [call.text for call in channel.chat.calls].count("incident 1 open warning 1006632960") == 1
    channel.take(warning(1), warning(2), warning(3), after_s=300.0)
    assert caplog.text.count("msg_too_long") == 1
    channel.chat.before = lambda _: None
    channel.take(warning(1), warning(2), warning(3), after_s=300.0)
    assert len(channel.chat.heads()) == 3


def test_a_revoked_token_is_noticed_after_a_few_tries(channel: Channel) -> None:
    channel.chat.before = refuse
    with pytest.raises(RefusedError, match="token_revoked"):
        channel.take(*(warning(number) for number in range(1, 30)))
    assert len(channel.chat.calls) == 3
    channel.chat.before = lambda _: None
    channel.take(warning(1))
    assert len(channel.chat.heads()) == 1


def test_a_refusal_is_seen_for_as_long_as_nothing_else_was_taken(channel: Channel) -> None:
    told = [warning(number) for number in range(1, 4)]
    channel.take(*told)
    channel.chat.before = refuse
    calls = len(channel.chat.calls)
    for _ in range(3):
        with pytest.raises(RetryLaterError, match="token_revoked"):
            channel.take(*told, warning(4))
    assert len(channel.chat.calls) == calls + 1
    channel.chat.before = lambda _: None
    channel.take(*told, warning(4), warning(5))
    channel.take(*told, warning(4), warning(5))


def test_slack_sink_moves_incidents_that_failed_a_round_to_the_end(channel: Channel) -> None:
    def refuse_some(call: Call) -> None:
        if call.text.startswith(("incident 1 ", "incident 2 ", "incident 3 ", "incident 4 ")):
            refuse(call)

    channel.chat.before = refuse_some
    told = [story(number) for number in range(1, 5)] + [warning(5)]
    for _ in range(2):
        with pytest.raises((RefusedError, RetryLaterError)):
            channel.take(*told, after_s=300.0)
    assert channel.chat.heads() == ["incident 5 open warning 1006632960"]
    channel.chat.before = lambda _: None
    channel.take(*told, after_s=300.0)
    assert len(channel.chat.heads()) == 5


def test_plot_is_drawn_again_when_it_is_worse_and_only_then(channel: Channel) -> None:
    told = replace(warning(), memory=MEMORY)
    channel.take(told)
    worse = escalated(told)
    for _ in range(3):
        channel.take(worse)
        channel.restart()
    eased = happened(worse, ChangeKind.EASED, 40.0, severity=Severity.WARNING)
    channel.take(eased)
    channel.take(closed(eased))
    assert len(channel.chat.uploads) == 2


def test_a_plot_that_is_refused_is_left_out(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    def no_files(call: Call) -> None:
        if call.method == "upload":
            raise RefusedError("missing_scope files:write")

    channel.chat.before = no_files
    for _ in range(3):
        channel.take(replace(warning(), memory=MEMORY))
    assert channel.chat.replies(channel.chat.heads()[0]) == ["opened at 0"]
    assert [call.method for call in channel.chat.calls].count("upload") == 1
    assert "missing_scope" in caplog.text


def test_a_plot_that_cannot_be_drawn_is_left_out(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    def broken(told: Story, *, now_unix_s: float) -> bytes | None:
        raise ZeroDivisionError

    channel.open(draw=broken)
    channel.take(replace(warning(), memory=MEMORY))
    assert channel.chat.replies(channel.chat.heads()[0]) == ["opened at 0"]
    assert "could not be drawn" in caplog.text


def test_a_story_that_brings_out_a_defect_silences_no_other(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    class Stumbling(PlainLook):
        def incident_message(self, story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
            if story.incident.number == 1:
                raise ZeroDivisionError
            return super().incident_message(story, cluster=cluster, links=links, now_unix_s=now_unix_s)

    channel.open(look=Stumbling())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            channel.take(warning(1), warning(2))
    assert channel.chat.heads() == ["incident 2 open warning 1006632960"]
    assert caplog.text.count("Traceback") == 1


def test_a_recovering_incident_is_shown_as_such(channel: Channel) -> None:
    channel.take(warning())
    channel.take(happened(warning(), ChangeKind.RECOVERING, 20.0, state=IncidentState.RECOVERING))
    assert channel.chat.heads() == ["incident 1 recovering warning 1006632960"]


def test_an_incident_of_a_new_database_gets_a_thread_though_an_older_one_had_its_number(channel: Channel) -> None:
    channel.take(closed(story(1)))
    channel.take(story(1))
    channel.take(story(1, opened_unix_s=NOW_S + 86400.0), after_s=86400.0)
    assert len(channel.chat.heads()) == 2


def test_the_error_that_growth_ended_in_is_told_in_the_thread_of_the_growth(channel: Channel) -> None:
    channel.take(story(1))
    for _ in range(2):
        channel.take(closed(story(1)), ran_out(2, growth=1))
    head = "incident 1 closed critical 1006632960"
    assert channel.chat.heads() == [head]
    assert channel.chat.replies(head) == ["opened at 0", "incident 2 open critical 1006632960", "closed at 60"]
    channel.restart()
    channel.take(closed(story(1)), closed(ran_out(2, growth=1), at_s=90.0))
    assert channel.chat.replies(head)[1] == "incident 2 closed critical 1006632960", "it is kept up to date"
    assert channel.chat.heads() == [head]


def test_growth_and_its_error_that_are_told_together_are_one_thread(channel: Channel) -> None:
    channel.take(ran_out(2, growth=1), story(1))
    assert channel.chat.heads() == ["incident 1 open critical 1006632960"]
    assert "incident 2 open critical 1006632960" in channel.chat.replies(channel.chat.heads()[0])


@pytest.mark.parametrize("others", [[], [story(1, severity=Severity.NOTE, worst_severity=Severity.NOTE)]])
def test_an_error_without_a_thread_of_its_growth_begins_one(channel: Channel, others: list[Story]) -> None:
    channel.take(ran_out(2, growth=1), *others)
    assert channel.chat.heads() == ["incident 2 open critical 1006632960"]


def test_the_error_waits_for_the_thread_of_its_growth(channel: Channel) -> None:
    def refuse(call: Call) -> None:
        if call.text.startswith("incident 1 "):
            raise RetryLaterError("not now")

    channel.chat.before = refuse
    with pytest.raises(RetryLaterError):
        channel.take(story(1), ran_out(2, growth=1))
    assert channel.chat.heads() == []
    channel.chat.before = lambda _: None
    channel.take(story(1), ran_out(2, growth=1), after_s=60.0)
    assert channel.chat.heads() == ["incident 1 open critical 1006632960"]


def test_with_alertmanager_the_error_comes_with_the_growth_and_brings_it_along(channel: Channel) -> None:
    channel.open(wait_for_release=True)
    channel.sink.take_group(release(1))
    channel.take(story(1))
    channel.take(closed(story(1)), ran_out(2, growth=1))
    assert len(channel.chat.replies(channel.chat.heads()[0])) == 3, "its growth was released"
    channel.sink.take_group(release(4))
    channel.take(story(3), ran_out(4, growth=3))
    assert channel.chat.heads()[1:] == ["incident 3 open critical 1006632960"]


def test_the_error_of_growth_in_a_storm_is_told_in_the_storm(channel: Channel) -> None:
    many = [story(number) for number in range(1, 9)]
    channel.take(*many)
    (storm,) = [head for head in channel.chat.heads() if head.startswith("storm")]
    in_storm = next(text for text in channel.chat.replies(storm)).split()[1]
    channel.take(*many, ran_out(20, growth=int(in_storm)))
    assert channel.chat.replies(storm)[-1] == "incident 20 open critical 1006632960"
