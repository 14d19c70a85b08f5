"""Clicks on Slack: who may, once each, whatever the socket does; over a real socket, to a fake coordinator."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exporter.notify.telling import story
from fakes.fake_slack import FakeSlack
from fakes.slack_chats import Clock, make_chat
from fakes.socket_mode import FakeSocketMode, buttons, clicked
from scheduler_values import decision
from tidegauge.core.incidents import IncidentCause, IncidentState
from tidegauge.core.incidents.acts import ActKind, ActOutcome, PersonAct
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.ports import ActAnswer, ActRequest, Message, RetryLaterError
from tidegauge_exporter.slack.actions import (
    FOREIGN,
    FORGED,
    LATE,
    LATE_S,
    MAX_OF_ACCOUNT,
    MAX_PENDING,
    SlackActions,
)
from tidegauge_exporter.slack.clickable import ClickableMessages
from tidegauge_exporter.slack.clicks import Buttons, Subject, key_of, offered, parse_click
from tidegauge_exporter.slack.people import People
from waiting import eventually

NOW_S = 1_800_000_000.0
TOLD = story(1, user_name="ada")
CHANNEL = "C0GPUMEMORY"


@dataclass
class FakeDesk:
    """``ports.ActDesk``: ada owns all, and what she asks for is done."""

    asked: list[ActRequest] = field(default_factory=list)
    away: bool = False
    begun: bool = False
    """An act is written down, and not finished."""
    looks: int = 0

    def may(self, number: int, *, by: str) -> Sequence[ActKind] | None:
        self._look()
        return [ActKind.ACKNOWLEDGE, ActKind.EXEMPT] if by == "ada" else None

    def ask(self, request: ActRequest) -> ActAnswer:
        self._look()
        self.asked.append(request)
        if request.refused is not None:
            return ActAnswer(ActOutcome.REFUSED, request.refused)
        if self.begun:
            return ActAnswer(ActOutcome.BEGUN, "This is under way already.")
        return ActAnswer(ActOutcome.DONE, "It is done.") if request.by == "ada" else ActAnswer(ActOutcome.REFUSED, "no")

    def _look(self) -> None:
        self.looks += 1
        if self.away:
            raise RetryLaterError("the coordinator is not available")


class Office:
    """A workspace with three people, and the part that answers clicks in it."""

    def __init__(self, slack: FakeSlack, folder: Path) -> None:
        self.slack, self.folder, self.desk, self.now_s = slack, folder, FakeDesk(), NOW_S
        self.ada, self.bob = slack.add_user("ada@example.org"), slack.add_user("bob@example.org")
        self.buttons = Buttons(key_of(slack.app_token))
        self.actions = self.opened()

    def opened(self) -> SlackActions:
        journal = DeliveryJournal(self.folder / "slack_clicks.jsonl", wall_s=lambda: self.now_s)
        chat = make_chat(self.slack, Clock(), people=People(None, "example.org"))
        return SlackActions(
            chat, self.desk, journal, self.buttons, app_token=self.slack.app_token, wall_s=lambda: self.now_s
        )

    def restart(self) -> None:
        assert self.actions.stop()
        self.actions = self.opened()

    def button(self, asked: str = "acknowledge", about: Story = TOLD) -> dict[str, Any]:
        subject = Subject.of(about.incident)
        row = self.buttons.menu(subject) if asked == "menu" else self.buttons.row(subject, [ActKind(asked)])
        return buttons([dict(block) for block in row])[asked]

    def click(self, asked: str = "acknowledge", user: str | None = None, **changes: Any) -> dict[str, Any]:
        button = changes.pop("button", None) or self.button(asked)
        return clicked(button, user=user or self.ada, channel=CHANNEL, ts="1800000001.000001", **changes)

    def answer(self, payload: object) -> str:
        """What the person reads who clicked."""
        assert self.actions.hear(payload)
        assert self.actions.answer_all()
        return self.slack.whispers[-1].text if self.slack.whispers else ""

    def counted(self) -> dict[tuple[str, str], int]:
        return {asked: count for asked, count in self.actions.clicks().items() if count}


@pytest.fixture
def office(slack: FakeSlack, tmp_path: Path) -> Iterator[Office]:
    found = Office(slack, tmp_path)
    yield found
    found.actions.stop()


def test_the_owners_click_is_passed_on_and_answered_to_them_alone(office: Office) -> None:
    assert office.answer(office.click()) == "It is done."
    (request,) = office.desk.asked
    assert (request.number, request.kind, request.by, request.account, request.refused) == (
        1, ActKind.ACKNOWLEDGE, "ada", f"T0ROSE/{office.ada}", None,
    )  # fmt: skip
    assert request.opened_ms == round(TOLD.incident.opened_unix_s * 1000)
    assert office.slack.whispers[0].options["user"] == office.ada
    assert office.slack.messages == [], "nobody else sees it"
    assert office.counted() == {("acknowledge", "done"): 1}


def test_the_same_click_however_often_slack_tells_of_it_is_passed_on_once(office: Office) -> None:
    payload = office.click()
    for _ in range(3):
        office.answer(payload)
    office.restart()
    office.answer(payload)
    assert len(office.desk.asked) == 1
    office.answer(office.click(at="1800000009.000100"))
    assert len(office.desk.asked) == 2, "a second click is another one"


def test_a_click_that_was_written_down_is_answered_after_a_restart(office: Office) -> None:
    office.desk.away = True
    assert office.actions.hear(office.click())
    assert not office.actions.answer_all()
    office.restart()
    office.desk.away = False
    assert office.actions.answer_all()
    assert len(office.desk.asked) == 1
    assert office.slack.whispers[-1].text == "It is done."


def test_an_answer_that_slack_does_not_take_is_given_later_with_the_same_request(office: Office) -> None:
    office.slack.fail("chat.postEphemeral", "internal_error")
    assert office.actions.hear(office.click())
    assert not office.actions.answer_all()
    office.restart()
    assert office.actions.answer_all()
    first, second = office.desk.asked
    assert first == second, "the coordinator does one request once"


def test_an_act_that_a_coordinator_began_and_left_unfinished_is_asked_for_until_it_is_done(office: Office) -> None:
    office.desk.begun = True
    assert office.actions.hear(office.click("exempt"))
    assert not office.actions.answer_all(), "its coordinator was killed: nothing is done yet"
    assert (office.slack.whispers, office.counted()) == ([], {})
    office.desk.begun = False
    assert office.actions.answer_all()
    assert office.slack.whispers[-1].text == "It is done."
    assert len({request.request_id for request in office.desk.asked}) == 1
    assert office.counted() == {("exempt", "done"): 1}


def test_an_answer_that_slack_never_takes_holds_up_no_other_click(office: Office) -> None:
    office.slack.fail("chat.postEphemeral", "internal_error")  # and then a silence of the client
    for number, asked in enumerate(("acknowledge", "exempt", "leak")):
        assert office.actions.hear(office.click(asked, at=f"180000000{number}.000001"))
    assert not office.actions.answer_all()
    assert [one.kind.value for one in office.desk.asked] == ["acknowledge", "exempt", "leak"], "all are done"
    office.restart()
    assert office.actions.answer_all()
    assert len(office.slack.whispers) == 3
    assert len({one.request_id for one in office.desk.asked}) == 3


def test_without_the_coordinator_no_click_after_the_first_waits_for_its_silence(office: Office) -> None:
    office.desk.away = True
    for number in range(3):
        assert office.actions.hear(office.click(at=f"180000000{number}.000001"))
    assert not office.actions.answer_all()
    assert office.desk.looks == 1


def test_a_clock_that_is_set_back_loses_no_click(office: Office) -> None:
    assert office.actions.hear(office.click())
    office.now_s -= 1.0
    assert office.actions.answer_all()
    assert office.counted() == {("acknowledge", "done"): 1}


def test_clicks_of_one_person_leave_room_for_those_of_others(office: Office) -> None:
    office.desk.away = True
    heard = [office.actions.hear(office.click(at=f"1800000001.{number:06}")) for number in range(MAX_PENDING)]
    assert heard.count(True) == MAX_OF_ACCOUNT
    assert office.actions.hear(office.click("menu", office.bob))


def test_a_click_that_nobody_could_pass_on_for_long_does_nothing_any_more(office: Office) -> None:
    office.desk.away = True
    office.actions.hear(office.click())
    office.actions.answer_all()
    office.now_s += LATE_S
    office.desk.away = False
    assert office.actions.answer_all()
    assert (office.desk.asked, office.counted()) == ([], {("acknowledge", "failed"): 1})
    assert [one.text for one in office.slack.whispers] == [LATE], "who clicked is told"


def test_a_scope_that_is_missing_is_a_problem_until_a_click_is_answered(office: Office) -> None:
    office.slack.scopes.remove("users:read")
    assert office.answer(office.click()) == ""
    assert "users:read" in (office.actions.status().problem or "")
    assert office.counted() == {("acknowledge", "failed"): 1}
    office.slack.scopes.add("users:read")
    office.answer(office.click(at="1800000009.000100"))
    assert office.actions.status().problem is None


def test_of_too_many_clicks_the_rest_is_left_to_slacks_own_repetition(office: Office) -> None:
    office.desk.away = True
    for number in range(MAX_PENDING):
        assert office.actions.hear(office.click(user=f"U{number:08}", at="1800000001.000001"))
    assert not office.actions.hear(office.click(at="1800000002.000001"))


def test_an_exemption_and_evidence_are_asked_about_before_they_are_sent(office: Office) -> None:
    assert [("confirm" in office.button(kind.value)) for kind in ActKind] == [False, False, True, True, False, False]


@pytest.mark.parametrize("asked", [kind.value for kind in ActKind])
def test_a_stranger_gets_the_coordinators_refusal(office: Office, asked: str) -> None:
    assert office.answer(office.click(asked, office.bob)) == "no"
    assert office.counted() == {(asked, "refused"): 1}
    assert office.desk.asked[0].by == "bob"


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"is_restricted": True}, "guests"),
        ({"is_ultra_restricted": True}, "guests"),
        ({"deleted": True}, "former members"),
        ({"is_bot": True}, "bots"),
        ({"is_stranger": True}, "guests"),
        ({"team_id": "T0OTHER"}, "another workspace"),
    ],
)
def test_a_guest_a_bot_and_who_is_of_another_workspace_act_for_nobody(
    office: Office, profile: dict[str, Any], words: str
) -> None:
    office.slack.profiles[office.ada] = profile
    assert words in office.answer(office.click())
    assert (office.desk.asked[0].by, office.counted()) == (None, {("acknowledge", "refused"): 1})


@pytest.mark.parametrize(
    "profile",
    [
        {"profile": {"email": "ada@elsewhere.org"}}, {"profile": {}}, {"is_email_confirmed": False},
        {"profile": {"email": "ada@example.org.evil.org"}}, {"profile": {"email": "evil@ada@example.org"}},
        {"profile": None},
    ],
)  # fmt: skip
def test_an_account_whose_address_says_nothing_is_unknown(office: Office, profile: dict[str, Any]) -> None:
    office.slack.profiles[office.ada] = profile
    office.answer(office.click())
    assert office.desk.asked[0].by is None
    assert office.desk.asked[0].refused is None, "the coordinator has the words"


def test_a_click_from_another_workspace_is_refused_before_anybody_is_looked_up(office: Office) -> None:
    assert office.answer(office.click(team="T0OTHER")) == FOREIGN
    assert office.slack.called("users.info") == []
    assert office.desk.asked[0].by is None


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_a_value_that_somebody_else_made_is_refused(office: Office, part: int) -> None:
    button = office.button()
    values = button["value"].split(".")
    values[part] = {0: "2", 1: "7", 2: "1800000000001", 3: "0" * 32}[part]
    assert office.answer(office.click(button={**button, "value": ".".join(values)})) == FORGED
    assert office.desk.asked[0].refused == FORGED


def test_the_value_of_one_button_does_not_work_for_another(office: Office) -> None:
    exempt = {**office.button("acknowledge"), "action_id": "tidegauge:exempt"}
    assert office.answer(office.click(button=exempt)) == FORGED
    other = Buttons(key_of("xapp-of-somebody-else")).row(Subject.of(TOLD.incident), [ActKind.EXEMPT])
    assert office.answer(office.click(button=buttons([dict(other[0])])["exempt"], at="1800000000.000200")) == FORGED
    kill = {**office.button("acknowledge"), "action_id": "tidegauge:kill"}
    assert office.answer(office.click(button=kill)) == FORGED
    assert office.counted() == {("exempt", "refused"): 2, ("unknown", "refused"): 1}


def test_the_menu_shows_each_person_what_they_may_do_and_does_nothing(office: Office) -> None:
    office.answer(office.click("menu"))
    whisper = office.slack.whispers[-1]
    assert list(buttons(whisper.blocks)) == ["acknowledge", "exempt"]
    assert office.answer(office.click("menu", office.bob)) == "There is nothing that you can do about it."
    assert buttons(office.slack.whispers[-1].blocks) == {}
    assert office.desk.asked == []
    assert office.answer(clicked(
        buttons(whisper.blocks)["acknowledge"], user=office.ada, channel=CHANNEL, ts=whisper.ts
    )) == "It is done."  # fmt: skip


def test_a_line_of_the_users_file_counts_from_the_next_click_on(office: Office, tmp_path: Path) -> None:
    users = tmp_path / "users.yaml"
    users.write_text(f"grace: {office.ada}\n")
    chat = make_chat(office.slack, Clock(), people=People(users, None))
    assert chat.account(office.ada).user_name == "grace"
    users.write_text(f"linus: {office.bob}\n")
    assert chat.account(office.ada).user_name is None, "removed: acts for nobody"
    assert chat.account(office.bob).user_name == "linus"
    assert len(office.slack.called("users.info")) == 2, "what Slack says of an account is asked once a minute"


def test_two_users_of_one_account_are_not_guessed_at(office: Office, tmp_path: Path) -> None:
    users = tmp_path / "users.yaml"
    users.write_text(f"ada: {office.ada}\nroot: ada@example.org\n")
    chat = make_chat(office.slack, Clock(), people=People(users, "example.org"))
    assert chat.account(office.ada).user_name is None
    assert "several users" in (chat.account(office.ada).problem or "")


def test_the_users_file_decides_before_the_domain(office: Office, tmp_path: Path) -> None:
    users = tmp_path / "users.yaml"
    users.write_text(f"ada: {office.bob}\ngrace: ADA@example.org\n")
    chat = make_chat(office.slack, Clock(), people=People(users, "example.org"))
    assert chat.account(office.bob).user_name == "ada"
    assert chat.account(office.ada).user_name == "grace"
    linus = office.slack.add_user("ada@example.org2")
    assert chat.account(linus).user_name is None


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "x",
        {},
        {"type": "block_actions"},
        {"type": "view_submission"},
        {"type": "block_actions", "actions": [7]},
    ],
)
def test_a_payload_that_is_no_click_of_ours_is_acknowledged_and_does_nothing(office: Office, payload: object) -> None:
    assert office.actions.hear(payload)
    assert office.actions.answer_all()
    assert (office.desk.asked, office.slack.calls) == ([], [])


@pytest.mark.parametrize("path", ["user.id", "container.channel_id", "container.message_ts", "user.team_id"])
@pytest.mark.parametrize("value", [None, 7, {}, "x" * 100, "a b\n", ""])
def test_a_click_with_a_part_that_slack_never_sends_is_none(office: Office, path: str, value: object) -> None:
    payload = office.click()
    where, name = path.split(".")
    payload[where][name] = value
    if path == "user.team_id":
        payload["team"] = value
    assert parse_click(payload) is None


# The socket.


@pytest.fixture
def wire(office: Office) -> Iterator[FakeSocketMode]:
    with FakeSocketMode() as running:
        office.slack.socket_url = running.url
        office.actions.start()
        running.wait_for_connection()
        yield running
        office.actions.stop()


def test_an_envelope_is_acknowledged_once_its_click_is_on_disk_and_answered_once(
    office: Office, wire: FakeSocketMode
) -> None:
    eventually(lambda: office.actions.connected)
    office.desk.away = True
    payload = office.click()
    wire.send("e-1", payload, pieces=5)
    wire.wait_for_acknowledgement("e-1")
    assert "acknowledge" in (office.folder / "slack_clicks.jsonl").read_text()
    wire.send("e-1", payload)
    wire.send("e-2", {**payload, "trigger_id": "9.9"})
    wire.wait_for_acknowledgement("e-2")
    office.desk.away = False
    office.actions._news.set()
    eventually(lambda: office.slack.whispers)
    assert len(office.desk.asked) == 1


def test_envelopes_of_other_kinds_are_acknowledged_and_nonsense_is_passed_over(
    office: Office, wire: FakeSocketMode
) -> None:
    for nonsense in ("not json", "[1]", "{", '{"type": 5}', '{"envelope_id": {}}', "[" * 50_000, "{}", "\ufffd"):
        wire.say(nonsense)
    wire.send("e-1", {"text": "hello"}, kind="events_api")
    wire.send("e-2", {"command": "/x"}, kind="slash_commands")
    wire.send("e-3", "no object")
    for envelope in ("e-1", "e-2", "e-3"):
        wire.wait_for_acknowledgement(envelope)
    assert (wire.connections, office.desk.asked) == (1, [])


@pytest.mark.parametrize("reason", ["refresh_requested", "warning"])
def test_slack_asks_for_a_new_connection_and_gets_it(office: Office, wire: FakeSocketMode, reason: str) -> None:
    wire.say({"type": "disconnect", "reason": reason, "debug_info": {"host": "x"}})
    wire.wait_for_connection(2)
    wire.send("e-1", office.click())
    wire.wait_for_acknowledgement("e-1")
    assert office.actions.status().problem is None


def test_a_slack_that_ends_each_connection_at_once_is_not_asked_for_the_next_without_a_pause(office: Office) -> None:
    with FakeSocketMode() as running:
        running.ends = True
        office.slack.socket_url = running.url
        began_s = time.monotonic()
        office.actions.start()
        running.wait_for_connection(3)
        assert time.monotonic() - began_s >= 1.0, "the first wish is followed at once, the second after a second"


def test_a_connection_that_is_cut_or_sends_nonsense_is_made_again(office: Office, wire: FakeSocketMode) -> None:
    eventually(lambda: office.actions.connected)
    wire.cut()
    wire.wait_for_connection(2)
    eventually(lambda: office.actions.connected)
    wire.send_bytes(b"\x81\x7f" + b"\xff" * 8)
    wire.wait_for_connection(3)
    wire.send("e-1", office.click())
    wire.wait_for_acknowledgement("e-1")


def test_socket_mode_that_is_off_or_a_token_that_is_wrong_is_a_problem_with_its_remedy(office: Office) -> None:
    office.slack.app_token = "xapp-another"
    office.actions.start()
    eventually(lambda: office.actions.status().problem)
    assert "slack_app_token_file" in (office.actions.status().problem or "")
    assert not office.actions.connected


# The messages.


def look(office: Office, told: Story, *, owner: bool) -> Message:
    messages = ClickableMessages(office.buttons)
    how = {"cluster": "lab", "links": Links(), "now_unix_s": NOW_S}
    if owner:
        return messages.owner_message(decision(incident=told.incident), told, **how)  # type: ignore[arg-type]  # SAFETY: as named
    return messages.incident_message(told, **how)  # type: ignore[arg-type]  # SAFETY: as named


def shown(message: Message) -> list[str]:
    blocks: list[dict[str, Any]] = json.loads(json.dumps(message.blocks))
    return list(buttons(blocks))


def test_the_channel_shows_one_button_and_the_owner_all_that_they_may_press(office: Office) -> None:
    assert shown(look(office, TOLD, owner=False)) == ["menu"]
    assert shown(look(office, TOLD, owner=True)) == ["acknowledge", "exempt", "snapshot", "leak", "not_a_leak"]
    office.slack.add_channel("#gpu-memory")
    chat = make_chat(office.slack, Clock())
    for owner in (True, False):  # the fake refuses what Slack would refuse
        chat.post("#gpu-memory", look(office, TOLD, owner=owner))


def test_what_was_done_takes_the_place_of_its_button(office: Office) -> None:
    act = PersonAct("a", 1, ActKind.ACKNOWLEDGE, "ada", False, NOW_S, outcome=ActOutcome.DONE)
    exempt = act._replace(request_id="b", kind=ActKind.EXEMPT, until_unix_s=NOW_S + 3600.0, by="root", as_admin=True)
    told = dataclasses.replace(TOLD, acts=(act, exempt, act._replace(request_id="c", outcome=ActOutcome.REFUSED)))
    message = look(office, told, owner=True)
    assert shown(message) == ["snapshot", "leak", "not_a_leak"]
    for each in (message, look(office, told, owner=False)):
        words = json.dumps(each.blocks, ensure_ascii=False)
        assert "Acknowledged by ada, 08:00 UTC." in words
        assert "No actions on this attempt of the job until 09:00 UTC, by root (admin)." in words


def test_a_closed_incident_can_be_graded_and_a_fact_cannot() -> None:
    over = dataclasses.replace(TOLD.incident, state=IncidentState.CLOSED)
    assert offered(over) == [ActKind.LEAK, ActKind.NOT_A_LEAK]
    share = dataclasses.replace(over, key=over.key._replace(cause=IncidentCause.SHARE_EXCEEDED))
    assert offered(share) == []
