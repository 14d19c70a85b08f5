from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.notify.telling import (
    LINKS,
    MEMORY,
    Call,
    Clock,
    Crash,
    FakeChat,
    PlainLook,
    closed,
    considered,
    decided,
    done,
    draw,
    ran_out,
    story,
)
from sample_views import NOW_S
from scheduler_values import decision, record
from slack_stories import FOUND
from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.incidents import Closure
from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, Disposition, Outcome
from tidegauge.core.incidents.acts import ActKind, ActOutcome, PersonAct, acknowledgement
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.deliveries import DeliveryOutcome
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.owner import OwnerNotifier, tell_owner
from tidegauge_exporter.notify.ports import Message, RefusedError, RetryLaterError
from tidegauge_exporter.slack.owner_channel import SlackWay

TOLD = "Slack DM"
FIRST = decision(decision_id="first")
SECOND = decision(decision_id="second")


class ClickableLook(PlainLook):
    """Says who acknowledged, as a message with buttons does."""

    revises_owner = True

    def owner_message(
        self, decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float
    ) -> Message:
        plain = super().owner_message(decision, story, cluster=cluster, links=links, now_unix_s=now_unix_s)
        by = acknowledgement(story.acts)
        return Message(f"{plain.text}{'' if by is None else f', acknowledged by {by.by}'} {story.incident.state.value}")


class Owners:
    look = PlainLook()

    def __init__(self, path: Path) -> None:
        self.clock, self.chat, self.path = Clock(), FakeChat(), path
        self.journal = DeliveryJournal(path, wall_s=self.clock)
        self.messages = self.open()

    def open(self) -> OwnerNotifier:
        way = SlackWay(self.chat, cluster="rose", links=LINKS, look=self.look, draw=draw)
        self.messages = OwnerNotifier(way, self.journal, wall_s=self.clock)
        return self.messages

    def restart(self) -> None:
        self.journal.close()
        self.journal = DeliveryJournal(self.path, wall_s=self.clock)
        self.open()

    def take(self, *stories: Story) -> None:
        self.clock.now_s += 2.0
        self.messages.take(stories)


@pytest.fixture
def owners(tmp_path: Path) -> Owners:
    return Owners(tmp_path / "notified.jsonl")


def acted(told: Story, *by: str) -> Story:
    """The story with acknowledgements by these people, the last one refused."""
    act = PersonAct("r", told.incident.number, ActKind.ACKNOWLEDGE, None, False, NOW_S, outcome=ActOutcome.DONE)
    acts = tuple(act._replace(request_id=f"r{number}", by=name) for number, name in enumerate(by))
    return replace(told, acts=(*acts, act._replace(by="mallory", outcome=ActOutcome.REFUSED)))


def notified(*names: str) -> Story:
    return decided(story(), *(record(decision(decision_id=name), Outcome.DONE) for name in names))


def test_what_people_did_changes_each_message_with_buttons_once_also_after_a_restart(owners: Owners) -> None:
    owners.look = ClickableLook()
    owners.open()
    for decision_told in (FIRST, SECOND):
        owners.messages.tell(decision_told, story())
    owners.take(notified("first", "second"))
    assert [call.method for call in owners.chat.calls].count("update") == 0, "nobody did anything"
    told = acted(notified("first", "second"), "ada")
    for _ in range(2):
        owners.take(told)
        owners.restart()
    assert owners.chat.heads() == [
        "to ada: first, acknowledged by ada open",
        "to ada: second, acknowledged by ada open",
    ]
    assert [call.method for call in owners.chat.calls].count("update") == 2
    owners.take(closed(told))
    assert owners.chat.heads()[0] == "to ada: first, acknowledged by ada closed", "the buttons are gone"


def test_a_message_without_buttons_is_never_edited(owners: Owners) -> None:
    owners.messages.tell(FIRST, story())
    owners.take(acted(notified("first"), "ada"))
    owners.take(closed(acted(notified("first"), "ada")))
    assert [call.method for call in owners.chat.calls].count("update") == 0


def test_an_edit_that_slack_refuses_holds_up_no_reply_and_is_tried_again(owners: Owners) -> None:
    owners.look = ClickableLook()
    owners.open()
    owners.messages.tell(FIRST, story())

    def fail(call: Call) -> None:
        if call.method == "update":
            raise RetryLaterError("no edits now", after_s=1.0)

    owners.chat.before = fail
    told = decided(acted(notified("first"), "ada"), done(name="cap"))
    with pytest.raises(RetryLaterError):
        owners.take(told)
    assert owners.chat.replies("to ada: first open") == ["cap done cap"]
    owners.chat.before = lambda _: None
    owners.take(told)
    assert owners.chat.heads() == ["to ada: first, acknowledged by ada open"]


def test_the_owner_gets_a_direct_message_with_a_plot(owners: Owners) -> None:
    assert owners.messages.tell(FIRST, replace(story(), memory=MEMORY)) == TOLD
    assert [(said.channel, said.text) for said in owners.chat.said.values()] == [("D-ada", "to ada: first")]
    assert [title for _, title in owners.chat.uploads] == ["Memory of rank 1 of job 471"]


def test_the_same_decision_is_told_once_also_after_a_restart(owners: Owners) -> None:
    for _ in range(2):
        assert owners.messages.tell(FIRST, story()) == TOLD
        owners.restart()
    assert len(owners.chat.calls) == 1
    owners.messages.tell(SECOND, story())
    assert owners.chat.heads() == ["to ada: first", "to ada: second"]


def test_a_decision_of_a_new_database_is_told_though_an_older_one_had_its_number(owners: Owners) -> None:
    owners.messages.tell(FIRST, story())
    owners.take(decided(story(), done(name="cap")))
    newer = replace(FIRST, decided_s=FIRST.decided_s + 86400.0)
    assert owners.messages.tell(newer, story(opened_unix_s=newer.decided_s - 60.0)) == TOLD
    assert owners.chat.heads() == ["to ada: first", "to ada: first"]
    owners.take(decided(story(opened_unix_s=newer.decided_s - 60.0), done(at_s=86500.0, name="cap")))
    assert [said.thread for said in owners.chat.said.values() if said.text == "cap done cap"] == ["1.0", "3.0"]


def test_a_user_whom_nobody_knows_is_refused_with_what_to_do(owners: Owners) -> None:
    with pytest.raises(RefusedError, match=r"'eve'.*slack_users_file.*slack_email_domain"):
        owners.messages.tell(FIRST, story(user_name="eve"))
    assert owners.chat.calls == []


def test_an_error_is_told_in_the_thread_of_the_growth_before_it_and_beside_it(owners: Owners) -> None:
    growth, error = story(), ran_out(2, growth=1)
    owners.messages.tell(FIRST, growth)
    owners.restart()
    owners.take(growth, error)
    owners.messages.tell(SECOND, replace(error, memory=MEMORY))
    third = decided(error, done(ActionKind.CANCEL, name="third"))
    owners.take(growth, third)
    assert owners.chat.heads() == ["to ada: first"]
    assert owners.chat.replies("to ada: first") == ["to ada: second", "cancel done third"]
    assert [said.beside_thread for said in owners.chat.said.values()] == [False, True, False]
    assert owners.chat.uploads[-1][0].ts == next(iter(owners.chat.said))


def test_an_error_begins_a_thread_where_the_owner_has_none_of_the_growth(owners: Owners) -> None:
    error = ran_out(2, growth=1)
    owners.take(story(), error)
    owners.messages.tell(FIRST, error)
    assert owners.chat.heads() == ["to ada: first"]


@pytest.mark.parametrize("error", [RetryLaterError("away"), RefusedError("token revoked")])
def test_owner_message_that_failed_raises_and_is_sent_at_the_next_attempt(owners: Owners, error: Exception) -> None:
    def fail(call: Call) -> None:
        raise error

    owners.chat.before = fail
    with pytest.raises(type(error), match=str(error)):
        owners.messages.tell(FIRST, story())
    owners.chat.before = lambda _: None
    assert owners.messages.tell(FIRST, story()) == TOLD
    assert owners.chat.heads() == ["to ada: first"]


@pytest.mark.parametrize("error", [RetryLaterError("away"), RefusedError("no files:write")])
def test_a_plot_that_fails_fails_no_message(owners: Owners, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fail(call: Call) -> None:
        if call.method == "upload":
            raise error

    owners.chat.before = fail
    assert owners.messages.tell(FIRST, replace(story(), memory=MEMORY)) == TOLD
    assert "is left out" in caplog.text


def test_owner_replies_follow_actions_once_each_and_in_order(owners: Owners) -> None:
    owners.messages.tell(FIRST, story())
    capped, asked = done(at_s=50.0, name="cap"), done(ActionKind.CHECKPOINT, at_s=40.0, name="save")
    told = decided(story(), capped, asked, done(ActionKind.NOTIFY, name="first"), considered(Disposition.WOULD))
    for _ in range(2):
        owners.take(told)
        owners.restart()
    owners.take(decided(told, done(ActionKind.REQUEUE, at_s=90.0, name="again")))
    assert owners.chat.replies("to ada: first") == [
        "checkpoint done save", "cap done cap", "requeue done again",
    ]  # fmt: skip


def test_owner_reply_goes_to_the_latest_message(owners: Owners) -> None:
    owners.messages.tell(FIRST, story())
    owners.take(decided(story(), done(name="one")))
    owners.messages.tell(SECOND, story())
    owners.take(decided(story(), done(name="one"), done(name="two")))
    assert owners.chat.replies("to ada: first") == ["cap done one"]
    assert owners.chat.replies("to ada: second") == ["cap done two"]


def test_owner_without_a_message_gets_no_replies(owners: Owners) -> None:
    owners.messages.tell(FIRST, story(1))
    owners.take(decided(story(2), done()))
    assert len(owners.chat.said) == 1


@pytest.mark.parametrize("crash_before_it_is_said", [True, False])
def test_a_crash_repeats_one_message_and_loses_none(owners: Owners, crash_before_it_is_said: bool) -> None:
    def crash(call: Call) -> None:
        raise Crash

    if crash_before_it_is_said:
        owners.chat.before = crash
    else:
        owners.chat.after = crash
    with pytest.raises(Crash):
        owners.messages.tell(FIRST, story())
    owners.chat.before = owners.chat.after = lambda _: None
    owners.restart()
    owners.messages.tell(FIRST, story())
    owners.take(decided(story(), done(name="one")))
    heads = [ts for ts, said in owners.chat.said.items() if said.thread is None]
    assert len(heads) == (1 if crash_before_it_is_said else 2)
    assert owners.chat.said[list(owners.chat.said)[-1]].thread == heads[-1]


def test_two_who_tell_the_same_at_once_say_it_once(owners: Owners) -> None:
    both = threading.Barrier(2)

    def tell() -> None:
        both.wait()
        owners.messages.tell(FIRST, story())

    threads = [threading.Thread(target=tell) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert owners.chat.heads() == ["to ada: first"]


def missed(at_s: float, name: str) -> DecisionRecord:
    """A message that reached the terminal, and not Slack."""
    return done(ActionKind.NOTIFY, at_s=at_s, name=name)


def test_owner_who_was_told_in_the_terminal_alone_is_told_the_latest_on_slack_later(owners: Owners) -> None:
    told = decided(story(), missed(-50.0, "first"), missed(-20.0, "second"))
    for _ in range(2):
        owners.take(told)
        owners.restart()
    assert owners.chat.heads() == ["to ada: second"]


def test_owner_already_notified_is_not_notified_again(owners: Owners) -> None:
    record = missed(-5.0, "first")
    owners.messages.tell(record.decision, story())
    owners.take(decided(story(), record))
    assert owners.chat.heads() == ["to ada: first"]


@pytest.mark.parametrize(
    ("told", "age_s"),
    [
        (story(), 3700.0),
        (story(user_name="eve"), 50.0),
        (closed(story()), 50.0),
    ],
)
def test_owner_gets_no_late_message_if_stale_recovered_or_unknown(owners: Owners, told: Story, age_s: float) -> None:
    owners.take(decided(told, missed(-age_s, "first")))
    assert owners.chat.calls == []


@pytest.mark.parametrize("closure", [Closure.JOB_ENDED, Closure.RAN_OUT_OF_MEMORY])
def test_owner_whose_job_ended_while_slack_was_away_is_told_when_it_is_back(owners: Owners, closure: Closure) -> None:
    over = closed(story())
    over = decided(replace(over, incident=replace(over.incident, closure=closure)), missed(-50.0, "first"))

    def away(call: Call) -> None:
        raise RetryLaterError("Slack is away")

    owners.chat.before = away
    with pytest.raises(RetryLaterError):
        owners.take(over)
    owners.chat.before = lambda _: None
    owners.clock.now_s += 1800.0
    for _ in range(2):
        owners.take(over)
        owners.restart()
    assert owners.chat.heads() == ["to ada: first"]


def test_a_warning_that_could_not_be_sent_for_an_hour_is_dropped_and_counted_once(owners: Owners) -> None:
    def away(call: Call) -> None:
        raise RetryLaterError("Slack is away")

    owners.chat.before = away
    told = decided(story(), missed(-50.0, "first"))
    with pytest.raises(RetryLaterError):
        owners.take(told)
    owners.chat.before = lambda _: None
    owners.clock.now_s += 3700.0
    for _ in range(2):
        owners.take(told)
    assert owners.chat.heads() == []
    totals = owners.messages.deliveries.figures().totals
    assert (totals[DeliveryOutcome.RETRIED], totals[DeliveryOutcome.DROPPED]) == (1, 1)


class Elsewhere(SlackWay):
    """A second way beside Slack."""

    name = "pigeons"
    told = "pigeon"


@pytest.fixture
def both(owners: Owners) -> tuple[OwnerNotifier, OwnerNotifier]:
    pigeons = Elsewhere(FakeChat({"ada": "P-ada", "eve": "P-eve"}), cluster="rose", links=LINKS, look=PlainLook(),
                        draw=None)  # fmt: skip
    return owners.messages, OwnerNotifier(pigeons, owners.journal, wall_s=owners.clock)


def test_owners_are_told_in_all_ways(both: tuple[OwnerNotifier, OwnerNotifier]) -> None:
    assert tell_owner(both, FIRST, story()) == "Slack DM, pigeon"


def test_owner_notified_one_way_reports_the_way_that_failed(both: tuple[OwnerNotifier, OwnerNotifier]) -> None:
    told = tell_owner(both, FIRST, story(user_name="eve"))
    assert told.startswith("pigeon (failed: no Slack account known for user 'eve'")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (RetryLaterError("rate limit", after_s=60.0), RefusedError("revoked"), RetryLaterError),
        (RefusedError("revoked"), RefusedError("no relay"), RefusedError),
    ],
)
def test_no_way_is_to_be_tried_again_if_any_of_them_may_work_later(
    owners: Owners, first: Exception, second: Exception, expected: type[Exception]
) -> None:
    def refusing(error: Exception) -> OwnerNotifier:
        def fail(_: Call) -> None:
            raise error

        chat = FakeChat(before=fail)
        way = SlackWay(chat, cluster="rose", links=LINKS, look=PlainLook(), draw=None)
        return OwnerNotifier(way, owners.journal, wall_s=owners.clock)

    with pytest.raises(expected, match=f"{first}; {second}") as caught:
        tell_owner([refusing(first), refusing(second)], FIRST, story())
    if isinstance(caught.value, RetryLaterError):
        assert caught.value.after_s == 60.0


def test_without_any_way_that_is_said() -> None:
    with pytest.raises(RefusedError, match="no way to notify owners is configured"):
        tell_owner([], FIRST, story())


LIKELY = FOUND._replace(evidence_id="auto-1", confidence=Confidence.LIKELY)


def test_owner_gets_later_evidence_once_as_a_reply(owners: Owners) -> None:
    owners.messages.tell(FIRST, story())
    for _ in range(2):
        owners.take(story(evidence=(FOUND,)))
        owners.restart()
    owners.take(story(evidence=(FOUND._replace(evidence_id="auto-13-3", grown_bytes=1),)))
    assert owners.chat.replies("to ada: first") == ["evidence auto-12-3: python_container, named"]


def test_owner_gets_three_evidence_replies_at_most(owners: Owners) -> None:
    owners.messages.tell(FIRST, story())
    owners.take(story(evidence=(LIKELY,)))
    owners.take(story(evidence=(FOUND,)))
    assert owners.chat.replies("to ada: first") == [
        "evidence auto-1: python_container, likely",
        "evidence auto-12-3: python_container, named",
    ]
    for cause in EvidenceCause:
        owners.take(story(evidence=(FOUND._replace(cause=cause),)))
    assert len(owners.chat.replies("to ada: first")) == 3


def test_evidence_that_was_in_the_warning_is_not_told_again(owners: Owners) -> None:
    owners.messages.tell(FIRST, story(evidence=(FOUND,)))
    owners.take(story(evidence=(FOUND,)))
    assert owners.chat.replies("to ada: first") == []


def test_evidence_is_told_of_nobody_who_was_not_warned_and_of_nothing_that_says_nothing(owners: Owners) -> None:
    owners.take(story(evidence=(FOUND,)))
    owners.messages.tell(FIRST, story())
    owners.take(story(evidence=(EvidenceBrief("auto-1", 3, 0.0),)))
    assert len(owners.chat.calls) == 1


def test_evidence_that_could_not_be_told_is_told_later(owners: Owners) -> None:
    owners.messages.tell(FIRST, story())

    def away(call: Call) -> None:
        raise RetryLaterError("Slack is away")

    owners.chat.before = away
    with pytest.raises(RetryLaterError):
        owners.take(story(evidence=(FOUND,)))
    owners.chat.before = lambda _: None
    owners.clock.now_s += 3600.0
    owners.take(story(evidence=(FOUND,)))
    assert owners.chat.replies("to ada: first") == ["evidence auto-12-3: python_container, named"]
