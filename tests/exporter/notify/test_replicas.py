"""Replicas of an inference server that leak: one incident each, and people are told of one problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.notify.channel import Channel
from exporter.notify.telling import LINKS, MEMORY, Clock, FakeChat, PlainLook, decided, draw, release
from incident_watch import OOM, RULES, Watch, ended, replica
from sample_views import LEAK, NOW_S
from scheduler_values import decision, record
from slack_stories import FOUND
from tidegauge.core.incidents import ChangeKind, Incident
from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, Disposition, Outcome
from tidegauge.core.incidents.acts import ActKind, ActOutcome, PersonAct
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.owner import OwnerNotifier
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.notify.replicas import told_as_one
from tidegauge_exporter.slack.owner_channel import SlackWay


class CountingLook(PlainLook):
    """Says of a server how many replicas it is about."""

    def incident_message(self, story: Story, **_: Any) -> Message:
        counted = "" if story.replicas is None else story.replicas.counted
        return Message(f"{story.incident.number} {story.incident.state.value} {counted}".strip())

    def owner_message(self, decision: Decision, story: Story, **_: Any) -> Message:
        counted = "" if story.replicas is None else story.replicas.counted
        return Message(f"{decision.decision_id}: {story.incident.state.value} {counted}".strip())


class Service:
    """The coordinator: what its tracker has told of jobs, as stories."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.forgotten: set[int] = set()
        self.more: dict[int, dict[str, Any]] = {}

    def see(self, *jobs: JobView, for_s: float = 1.0) -> list[Story]:
        self.watch.see(*jobs, for_s=for_s)
        return self.stories

    @property
    def stories(self) -> list[Story]:
        newest = {change.incident.number: change.incident for change in self.watch.told}
        newest |= {one.number: one for one in self.watch.tracker.incidents}
        return [self._story(one) for number, one in newest.items() if number not in self.forgotten]

    def _story(self, incident: Incident) -> Story:
        history = tuple(change for change in self.watch.told if change.incident.number == incident.number)
        return replace(Story(incident, history, memory=MEMORY), **self.more.get(incident.number, {}))


def leaking(numbers: Iterable[int]) -> list[JobView]:
    """Eight replicas, of which these leak."""
    return [replica(number, LEAK if number in numbers else OK) for number in range(8)]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def counting(channel: Channel) -> Channel:
    channel.open(look=CountingLook())
    return channel


def test_eight_replicas_are_one_thread_that_follows_them_and_says_so_when_they_have_doubled(
    service: Service, counting: Channel
) -> None:
    for many in range(1, 9):
        counting.take(*service.see(*leaking(range(many)), for_s=60))
    assert counting.chat.heads() == ["1 open 8 of 8 replicas"]
    (head,) = (said for said in counting.chat.said.values() if said.thread is None)
    assert head.versions == [f"1 open {many} of 8 replicas" for many in range(1, 9)]
    assert counting.chat.replies(head.text) == ["opened at 1", "2 of 8 replicas", "4 of 8 replicas", "8 of 8 replicas"]
    assert len(counting.chat.uploads) == 1


def test_eight_replicas_that_begin_at_once_are_one_message(service: Service, counting: Channel) -> None:
    counting.take(*service.see(*leaking(range(8))))
    assert counting.chat.heads() == ["1 open 8 of 8 replicas"]
    assert counting.chat.replies("1 open 8 of 8 replicas") == ["opened at 1"]


def test_a_replica_that_recovers_is_taken_out_though_it_was_the_first_and_nothing_is_told_twice(
    service: Service, counting: Channel
) -> None:
    counting.take(*service.see(*leaking(range(4))))
    stories = service.see(*leaking(range(1, 4)), for_s=RULES.recover_after_s + 2)
    counting.take(*stories)
    assert counting.chat.heads() == ["1 open 3 of 8 replicas"]
    service.forgotten = {1}
    service.watch.restart()
    counting.restart()
    counting.open(look=CountingLook())
    counting.take(*service.see(*leaking(range(1, 5))))
    assert counting.chat.heads() == ["1 open 4 of 8 replicas"]
    assert counting.chat.replies("1 open 4 of 8 replicas") == ["opened at 1"]


def test_a_replica_that_is_not_heard_of_after_a_restart_neither_leads_nor_counts_while_another_grows(
    service: Service,
) -> None:
    service.see(*leaking(range(3)))
    service.watch.restart()
    (joined,) = told_as_one(service.see(*leaking(range(3))[1:], for_s=RULES.culprits_ended_after_s + 1))
    assert joined.replicas is not None
    assert (joined.look_first.number, joined.replicas.names) == (2, ("replica 1", "replica 2"))
    assert not joined.incident.stale, "all that it says is of now"


def test_a_server_of_which_nothing_is_heard_after_a_restart_is_told_as_before_and_stale(service: Service) -> None:
    service.see(*leaking(range(2)))
    service.watch.restart()
    (joined,) = told_as_one(service.see(for_s=RULES.culprits_ended_after_s + 1))
    assert joined.replicas is not None
    assert (joined.replicas.names, joined.incident.stale) == (("replica 0", "replica 1"), True)


def test_replicas_that_leak_by_turns_and_then_all_recover_are_never_said_to_leak_together(
    service: Service, counting: Channel
) -> None:
    for turn in range(4):
        counting.take(*service.see(*leaking((turn,)), for_s=30))
    counting.take(*service.see(*leaking(()), for_s=2))
    assert counting.chat.heads() == ["1 recovering 4 of 8 replicas"]
    assert counting.chat.replies(counting.chat.heads()[0]) == ["opened at 1"]


def test_a_rolling_update_goes_on_in_the_thread_and_the_last_replica_closes_it(
    service: Service, counting: Channel
) -> None:
    old, new = [replica(f"pod old-{name}") for name in "ab"], [replica(f"pod new-{name}") for name in "ab"]
    counting.take(*service.see(*old))
    counting.take(*service.see(old[1], new[0], ended(old[0]), for_s=5))
    assert counting.chat.heads() == ["1 open 2 of 8 replicas"]
    counting.take(*service.see(ended(old[1]), ended(new[0]), replica("pod new-b", OK), for_s=5))
    assert counting.chat.heads() == ["1 closed"]
    assert counting.chat.replies("1 closed")[1:] == [f"closed at {service.watch.now_s - 5 + 1 - NOW_S:g}"]
    counting.take(*service.see(new[1]))
    assert counting.chat.heads() == ["1 closed", "4 open 1 of 8 replicas"], "the new version leaks, too: that is news"


def test_two_launches_of_a_job_and_two_servers_stay_apart(service: Service, counting: Channel) -> None:
    steps = [replace(replica(name, server="4711"), replicas=None) for name in ("", "step 1")]
    counting.take(*service.see(*steps, replica(0), replica(0, server="team-a/llama")))
    heads = sorted(counting.chat.heads())
    assert heads == ["1 open", "2 open", "3 open 1 of 8 replicas", "4 open 1 of 8 replicas"]


def test_a_finding_and_a_rung_of_the_policy_are_told_once_for_all_replicas(service: Service, counting: Channel) -> None:
    service.see(*leaking(range(3)))
    for number in (1, 2, 3):
        told = record(decision(ActionKind.NOTIFY, decision_id=f"n{number}"), Outcome.DONE)
        found = replace(service.stories[number - 1].incident, evidence=(FOUND,))
        change = service.watch.told[number - 1]._replace(kind=ChangeKind.EVIDENCE, incident=found)
        history = (service.watch.told[number - 1], change)
        service.more[number] = {"decisions": (told,), "incident": found, "history": history}
    counting.take(*service.stories)
    (head,) = counting.chat.heads()
    replies = counting.chat.replies(head)
    assert [reply.split()[0] for reply in replies].count("evidence") == 1
    assert [reply.split()[0] for reply in replies].count("notify") == 1


def held_back(number: int, action: ActionKind, brake: str, **changes: Any) -> DecisionRecord:
    made = decision(action, decision_id=f"{action.value}{number}", decided_s=NOW_S + 2.0, **changes)
    return record(replace(made, disposition=Disposition.WITHHELD, brake=brake))


def test_what_is_held_back_as_one_replica_recovers_is_not_told_of_the_server(
    service: Service, counting: Channel
) -> None:
    service.see(*leaking(range(2)))
    stories = service.see(*leaking((1,)), for_s=2)
    held = held_back(1, ActionKind.CAP, "recovering", incident=stories[0].incident)
    service.more[1] = {"decisions": (held,)}
    counting.take(*service.stories)
    assert counting.chat.replies(counting.chat.heads()[0]) == ["opened at 1"]
    assert [one.decisions for one in told_as_one(service.stories)] == [()]


def test_that_a_server_is_never_acted_on_is_said_once_whatever_rungs_and_replicas(
    service: Service, counting: Channel
) -> None:
    stories = service.see(*leaking(range(2)))
    for number, story in enumerate(stories, start=1):
        rungs = (ActionKind.CAP, ActionKind.CHECKPOINT, ActionKind.REQUEUE)
        held = tuple(held_back(number, action, "exempt", incident=story.incident) for action in rungs)
        service.more[number] = {"decisions": held}
    counting.take(*service.stories)
    assert counting.chat.replies(counting.chat.heads()[0]) == ["opened at 1", "cap withheld cap1"]


def test_alertmanager_releases_a_server_by_the_number_of_its_first_incident(
    service: Service, counting: Channel
) -> None:
    sink = counting.open(look=CountingLook(), wait_for_release=True)
    counting.take(*service.see(*leaking((2, 5))))
    assert counting.chat.heads() == []
    sink.take_group(release(1))
    counting.take(*service.stories)
    assert counting.chat.heads() == ["1 open 2 of 8 replicas"]


def test_errors_of_replicas_are_one_reply_in_the_thread_of_their_growth(service: Service, counting: Channel) -> None:
    counting.take(*service.see(*leaking(range(8))))
    failed = [replica(number, LEAK, last_oom=OOM) for number in range(2)]
    counting.take(*service.see(*failed, *leaking(range(8))[2:]))
    assert counting.chat.heads() == ["1 open 8 of 8 replicas"]
    assert counting.chat.replies(counting.chat.heads()[0])[1:] == ["9 open 2 of 8 replicas"]


def test_what_people_do_is_about_the_incident_to_look_at_first_and_shows_in_the_story(service: Service) -> None:
    service.see(*leaking(range(2)))
    service.see(*leaking((1,)), for_s=RULES.recover_after_s + 2)
    act = PersonAct("r", 2, ActKind.ACKNOWLEDGE, "ada", False, NOW_S, outcome=ActOutcome.DONE)
    service.more[2] = {"acts": (act,)}
    (joined,) = told_as_one(service.stories)
    assert (joined.incident.number, joined.look_first.number, joined.acts) == (1, 2, (act,))
    assert joined.look_first.opened_unix_s == service.stories[1].incident.opened_unix_s
    assert joined.replicas is not None
    assert (joined.replicas.names, joined.replicas.numbers) == (("replica 1",), (1, 2))


class Owners:
    def __init__(self, path: Path) -> None:
        self.clock, self.chat, self.path = Clock(), FakeChat({"ada": "D-ada"}), path
        self.journal = DeliveryJournal(path, wall_s=self.clock)
        self.open()

    def open(self) -> None:
        way = SlackWay(self.chat, cluster="rose", links=LINKS, look=CountingLook(), draw=draw)
        self.messages = OwnerNotifier(way, self.journal, wall_s=self.clock)

    def restart(self) -> None:
        self.journal.close()
        self.journal = DeliveryJournal(self.path, wall_s=self.clock)
        self.open()


def notify(number: int, **changes: Any) -> Decision:
    return decision(ActionKind.NOTIFY, decision_id=f"n{number}", **changes)


def test_the_owner_of_a_server_gets_one_message_that_follows_also_after_a_restart(
    service: Service, tmp_path: Path
) -> None:
    owners = Owners(tmp_path / "notified.jsonl")
    for many in range(1, 9):
        stories = service.see(*leaking(range(many)), for_s=60)
        assert owners.messages.tell(notify(many), stories[-1]) == "Slack DM"
        told = record(notify(many), Outcome.DONE)
        service.more[many] = {"decisions": (told,)}
        owners.messages.take(service.stories)
        if many == 5:
            service.watch.restart()
            owners.restart()
    assert owners.chat.heads() == ["n1: open 8 of 8 replicas"]
    assert owners.chat.replies("n1: open 8 of 8 replicas") == ["2 of 8 replicas", "4 of 8 replicas", "8 of 8 replicas"]
    calls = len(owners.chat.calls)
    owners.messages.take(service.stories)
    assert len(owners.chat.calls) == calls


def test_each_rung_of_the_policy_is_one_message_to_the_owner_of_a_server(service: Service, tmp_path: Path) -> None:
    owners = Owners(tmp_path / "notified.jsonl")
    stories = service.see(*leaking(range(3)))
    owners.messages.take(stories)
    for rung in (0, 2):
        for number, story in enumerate(stories, start=1):
            owners.messages.tell(notify(10 * rung + number, rung=rung, attempt=number), story)
    assert owners.chat.heads() == ["n1: open 3 of 8 replicas", "n21: open 3 of 8 replicas"]


def test_an_owner_whom_a_way_could_not_reach_gets_one_message_about_a_server_later(
    service: Service, tmp_path: Path
) -> None:
    owners = Owners(tmp_path / "notified.jsonl")
    stories = service.see(*leaking(range(3)))
    told = [decided(one, record(notify(one.incident.number), Outcome.DONE)) for one in stories]
    for _ in range(2):
        owners.messages.take(told)
    assert owners.chat.heads() == ["n3: open 3 of 8 replicas"]
