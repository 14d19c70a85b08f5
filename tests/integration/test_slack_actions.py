"""Buttons on Slack end to end: real coordinator, notifier and database; a fake Slack with a real WebSocket server."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_slack import FakeMessage, FakeSlack, Fault
from fakes.socket_mode import FakeSocketMode, buttons, clicked
from integration.server_process import free_port
from integration.service import Service, eventually
from matrix import turn
from scheduler_values import decision, facts, finding, incident
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge.core.incidents.actions import Outcome

pytestmark = pytest.mark.timeout(600)

CHANNEL, OWNER, ADMIN, STRANGER = "#gpu-memory", "ada@example.org", "grace@example.org", "mallory@example.org"
ADAS, BOBS = 1, 2


def seed(service: Service) -> None:
    """Two open incidents, as an earlier coordinator left them; ada was told of hers, another way than by Slack."""
    now_s = time.time()
    service.files.root.mkdir(mode=0o700)
    store = open_store(sqlite_url(service.files.root))
    for number, owner in ((ADAS, "ada"), (BOBS, "bob")):
        known = incident(
            job=JobKey(f"{owner}s-job", 0, 4000 + number), number=number, user_name=owner, job_name=f"{owner}s-model",
            findings=(finding(1),), opened_unix_s=now_s - 60.0, updated_unix_s=now_s,
        )  # fmt: skip
        store.incidents.save([IncidentChange(ChangeKind.OPENED, now_s - 60.0, known)])
        told = decision(
            decision_id=f"{number}:leak:0:1", incident=known, decided_s=now_s - 30.0,
            facts=replace(facts(), user_name=owner),
        )  # fmt: skip
        store.audit.write_ahead([told])
        store.audit.begin(told.decision_id, at_s=now_s - 30.0)
        store.audit.finish(told.decision_id, Outcome.DONE, "email", at_s=now_s - 29.0)
    store.close()


@dataclass
class Office:
    """The service, and the people on Slack."""

    service: Service
    slack: FakeSlack
    wire: FakeSocketMode
    port: int
    clicks: int = 0

    def acts(self, number: int = ADAS) -> list[dict[str, Any]]:
        return list(self.service.answer(f"/api/v1/acts?incident={number}")["acts"])

    def done(self, number: int = ADAS) -> list[tuple[str, str | None]]:
        return [(one["kind"], one["by"]) for one in self.acts(number) if one["outcome"] == "done"]

    def head(self, number: int = ADAS) -> FakeMessage | None:
        found = [one.parent for one in self.slack.threads(CHANNEL) if f"Incident {number} " in one.parent.words]
        return found[0] if found else None

    def to_owner(self) -> FakeMessage | None:
        threads = self.slack.direct_threads(OWNER)
        return threads[0].parent if threads else None

    def press(
        self, message: FakeMessage, asked: str, email: str, *, envelope: str | None = None, **changes: Any
    ) -> str:
        """Click a button of a message, and wait until Slack has its acknowledgement; the id of the envelope."""
        self.clicks += 1
        envelope = envelope or f"envelope-{self.clicks}"
        payload = clicked(
            buttons(message.blocks)[asked], user=self.slack.users[email], channel=message.channel, ts=message.ts,
            at=f"1800000000.{self.clicks:06}", **changes,
        )  # fmt: skip
        self.wire.send(envelope, payload)
        self.wire.wait_for_acknowledgement(envelope)
        return envelope

    def told(self, email: str, count: int) -> list[str]:
        """What this person alone has read, once it is so many answers."""

        def found() -> list[str] | None:
            mine = [one.text for one in self.slack.whispers if one.options["user"] == self.slack.users[email]]
            return mine if len(mine) >= count else None

        return eventually(found, f"{count} answers to {email}")

    def menu_of(self, email: str, message: FakeMessage) -> Mapping[str, Any]:
        before = len(self.slack.whispers)
        self.press(message, "menu", email)
        eventually(lambda: len(self.slack.whispers) > before, "an answer")
        return buttons(self.slack.whispers[-1].blocks)

    def metrics(self) -> str:
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10.0) as answer:
            return str(answer.read().decode())


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    service, port = Service(), free_port()
    with FakeSlack() as slack, FakeSocketMode() as wire:
        slack.socket_url = wire.url
        for email in (OWNER, ADMIN, STRANGER):
            slack.add_user(email)
        (tmp_path / "users.yaml").write_text(f"ada: {slack.users[OWNER]}\ngrace: {ADMIN}\n")
        for name, text in (("slack-token", slack.token), ("app-token", slack.app_token)):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o600)
        service.environ |= {
            "TIDEGAUGE_NOTIFY_PORT": str(port),
            "TIDEGAUGE_SLACK_API_URL": slack.api_url,
            "TIDEGAUGE_SLACK_TOKEN_FILE": str(tmp_path / "slack-token"),
            "TIDEGAUGE_SLACK_APP_TOKEN_FILE": str(tmp_path / "app-token"),
            "TIDEGAUGE_SLACK_CHANNEL": CHANNEL,
            "TIDEGAUGE_SLACK_USERS_FILE": str(tmp_path / "users.yaml"),
            "TIDEGAUGE_API_ADMINS": "grace",
        }
        seed(service)
        try:
            service.up()
            wire.wait_for_connection()
            yield Office(service, slack, wire, port)
        finally:
            service.close()


def test_owner_admin_and_stranger_click_and_each_gets_what_is_theirs(office: Office) -> None:
    status = eventually(lambda: office.service.call("status").out, "a status")
    assert "slack actions" in status
    head = eventually(office.head, "the thread of ada's incident")
    letter = eventually(office.to_owner, "ada's message")
    assert list(buttons(head.blocks)) == ["menu"]
    assert list(buttons(letter.blocks)) == ["acknowledge", "exempt", "snapshot", "leak", "not_a_leak"]

    # The owner, in her own message: it changes, and so does the head of the thread.
    envelope = office.press(letter, "acknowledge", OWNER)
    assert "looking at it" in office.told(OWNER, 1)[0]
    assert office.done() == [("acknowledge", "ada")]
    eventually(lambda: "Acknowledged by ada" in letter.words, "her message says so")
    assert "acknowledge" not in buttons(letter.blocks)
    eventually(lambda: "Acknowledged by ada" in head.words, "the channel says so")
    assert "acknowledged" in office.service.call("incidents", "show", str(ADAS)).out

    # Slack tells of it again: nothing is done twice.
    payload = clicked(
        {"action_id": "tidegauge:acknowledge", "value": "1.1.1." + "0" * 32, "type": "button"},
        user=office.slack.users[OWNER], channel=letter.channel, ts=letter.ts, at="1800000000.000001",
    )  # fmt: skip
    office.wire.send(f"{envelope}-again", payload)
    office.wire.wait_for_acknowledgement(f"{envelope}-again")

    # A stranger: no buttons, and a refusal for one that they got from somewhere.
    assert office.menu_of(STRANGER, head) == {}
    office.press(letter, "exempt", STRANGER)
    assert "slack_users_file" in office.told(STRANGER, 2)[1]
    # The owner of one job at another's incident.
    bobs = eventually(lambda: office.head(BOBS), "the thread of bob's incident")
    assert office.menu_of(OWNER, bobs) == {}

    # An admin: what she may is shown to her alone, and done.
    offered = office.menu_of(ADMIN, head)
    assert list(offered) == ["acknowledge", "unacknowledge", "exempt", "snapshot", "leak", "not_a_leak"]
    whisper = office.slack.whispers[-1]
    office.press(whisper, "exempt", ADMIN)
    assert "For the next 24 h" in office.told(ADMIN, 2)[1]
    office.press(whisper, "not_a_leak", ADMIN)
    eventually(lambda: len(office.done()) == 3, "her answer")
    assert office.done()[1:] == [("exempt", "grace"), ("not_a_leak", "grace")]
    refused = [(one["by"], one["outcome"]) for one in office.acts() if one["outcome"] != "done"]
    assert refused == [(None, "refused")], "the stranger, once"

    # The evidence is not to be had, as the job is gone: told, and on record.
    office.press(whisper, "snapshot", ADMIN)
    eventually(lambda: office.acts()[-1]["outcome"] == "failed", "the snapshot's end")

    # By the form of the API it is the same record, and the log has all of it with the accounts.
    log = office.service.call("policy", "log").out
    assert f"{office.slack.team}/{office.slack.users[STRANGER]}" in log
    grades = office.service.answer(f"/api/v1/incident?number={ADAS}")["answers"]
    assert [(one["by"], one["as_admin"], one["grade"]) for one in grades] == [("grace", True, "not_a_leak")]
    metrics = office.metrics()
    for sample in (
        'tidegauge_slack_actions_total{action="exempt",cluster="test",outcome="done"} 1.0',
        'tidegauge_slack_actions_total{action="exempt",cluster="test",outcome="refused"} 1.0',
        'tidegauge_slack_connected{cluster="test"} 1.0',
    ):
        assert sample in metrics


@turn(4)
def test_a_click_survives_dead_processes_and_a_slack_that_is_down_and_is_done_once(office: Office) -> None:
    letter = eventually(office.to_owner, "ada's message")

    # The coordinator stands still: the click is acknowledged at once all the same, and waits.
    for pid in office.service.coordinators():
        os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    office.press(letter, "exempt", OWNER, envelope="waits")
    assert time.monotonic() - began_s < 30.0
    for pid in office.service.actors("NotifierActor"):
        os.kill(pid, signal.SIGKILL)
    for pid in office.service.coordinators():
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: office.done() == [("exempt", "ada")], "the new ones do it", within_s=180.0)

    # Slack's answers fail: the act is done, its answer comes later, and messages still go out.
    office.wire.wait_for_connection(2)
    letter = eventually(office.to_owner, "ada's message")
    office.slack.down["chat.update"] = Fault(200, {"ok": False, "error": "internal_error"})
    office.slack.fail("chat.postEphemeral", "internal_error", times=2)
    office.press(letter, "acknowledge", OWNER)
    eventually(lambda: ("acknowledge", "ada") in office.done(), "the act", within_s=60.0)
    eventually(lambda: any("looking at it" in one.text for one in office.slack.whispers), "its answer", within_s=60.0)
    del office.slack.down["chat.update"]
    eventually(lambda: "Acknowledged by ada" in letter.words, "the message, once Slack takes it", within_s=60.0)

    # A new connection at Slack's wish; an old envelope again; a frame that nobody sends.
    connections = office.wire.connections
    office.wire.say({"type": "disconnect", "reason": "refresh_requested"})
    office.wire.wait_for_connection(connections + 1)
    office.wire.send_bytes(b"\x81\x7f" + b"\xff" * 8)
    office.wire.wait_for_connection(connections + 2)
    office.press(letter, "leak", OWNER)
    eventually(lambda: ("leak", "ada") in office.done(), "the last click")
    assert sorted(kind for kind, _ in office.done()) == ["acknowledge", "exempt", "leak"]
    journal = (office.service.files.root / "slack_clicks.jsonl").read_text()
    assert office.slack.app_token not in journal + office.service.logs()
    assert "secret-ticket" not in office.service.logs()
    assert json.loads(journal.splitlines()[0])[0] == "tidegauge-notebook"
