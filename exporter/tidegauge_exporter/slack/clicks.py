"""Buttons of messages on Slack, and what Slack tells of a click on one. Pure: nothing here is sent or decided.

A button carries which incident it is about, signed with a key of this head: whoever else posts in the app's name can
make no button that counts. Who clicked is Slack's word in the payload, never the button's.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.acts import DEFAULT_EXEMPT_HOURS, ActKind
from tidegauge_exporter.slack.blocks import Block

PREFIX: Final = "tidegauge:"
"""Before the name of what a button asks for, in its ``action_id``."""
MENU: Final = "menu"
"""The one button in the channel: it shows each person what they may do."""
SIGNED_CHARS: Final = 32
_VALUE: Final = re.compile(r"1\.([0-9]{1,10})\.([0-9]{1,16})\.([0-9a-f]{32})")
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
LABELS: Final[Mapping[ActKind, str]] = {
    ActKind.ACKNOWLEDGE: "Acknowledge",
    ActKind.UNACKNOWLEDGE: "Take the acknowledgement back",
    ActKind.EXEMPT: f"Exempt for {DEFAULT_EXEMPT_HOURS} h",
    ActKind.SNAPSHOT: "Ask for evidence",
    ActKind.LEAK: "A leak",
    ActKind.NOT_A_LEAK: "Not a leak",
}
_CONFIRMED: Final[Mapping[ActKind, str]] = {
    ActKind.EXEMPT: f"For {DEFAULT_EXEMPT_HOURS} hours Tidegauge takes no action on this attempt of the job, even if "
    "it is about to run out of memory. Its owner still gets messages.",
    ActKind.SNAPSHOT: "One rank records about 30 steps with the stacks of allocations. Training is slower meanwhile.",
}


class Subject(NamedTuple):
    """The incident that a button is about."""

    number: int
    opened_ms: int
    """The number alone would not do: a new database begins at 1 again."""

    @classmethod
    def of(cls, incident: Incident) -> Subject:
        return cls(incident.number, round(incident.opened_unix_s * 1000))


class Click(NamedTuple):
    """A click on one of our buttons, as Slack tells of it."""

    click_id: str
    """The same whenever Slack tells of the same click."""
    team: str
    """Id of the workspace of the person who clicked."""
    user: str
    channel: str
    thread_ts: str | None
    asked: str
    """``MENU``, or the value of an ``ActKind``; anything, if the button is not ours."""
    value: str

    @property
    def account(self) -> str:
        return f"{self.team}/{self.user}"

    @property
    def kind(self) -> ActKind | None:
        """``None``: the menu, or nothing that we know."""
        return ActKind(self.asked) if self.asked in {kind.value for kind in ActKind} else None


class Buttons:
    """Makes and reads buttons. ``key`` is a secret of this head."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def row(self, subject: Subject, asked: Sequence[ActKind]) -> list[Block]:
        """One button for each act, those that change something behind a question."""
        return [{"type": "actions", "elements": [self._act(subject, kind) for kind in asked]}] if asked else []

    def menu(self, subject: Subject) -> list[Block]:
        """The one button for a place where many read: it does nothing, and answers each person alone."""
        return [{"type": "actions", "elements": [self._button(subject, MENU, "What can I do?")]}]

    def subject(self, click: Click) -> Subject | None:
        """What a clicked button is about; ``None``: we did not make it, or not for this."""
        found = _VALUE.fullmatch(click.value)
        if found is None:
            return None
        subject = Subject(int(found[1]), int(found[2]))
        is_ours = hmac.compare_digest(self._signed(subject, click.asked), found[3])
        return subject if is_ours else None

    def _act(self, subject: Subject, kind: ActKind) -> Mapping[str, Any]:
        button = self._button(subject, kind.value, LABELS[kind])
        if kind not in _CONFIRMED:
            return button
        confirm = {
            "title": _plain(f"{LABELS[kind]}?"), "text": _plain(_CONFIRMED[kind]), "confirm": _plain(LABELS[kind]),
            "deny": _plain("Cancel"),
        }  # fmt: skip
        return {**button, "confirm": confirm}

    def _button(self, subject: Subject, asked: str, label: str) -> Mapping[str, Any]:
        value = f"1.{subject.number}.{subject.opened_ms}.{self._signed(subject, asked)}"
        return {"type": "button", "action_id": f"{PREFIX}{asked}", "text": _plain(label), "value": value}

    def _signed(self, subject: Subject, asked: str) -> str:
        words = f"slack button 1\0{asked}\0{subject.number}\0{subject.opened_ms}".encode(errors="replace")
        return hmac.new(self._key, words, hashlib.sha256).hexdigest()[:SIGNED_CHARS]


def key_of(app_token: str) -> bytes:
    """The key of the buttons: a new token makes new buttons, and old ones do nothing then."""
    return hashlib.sha256(f"tidegauge slack buttons\0{app_token}".encode()).digest()


def offered(incident: Incident) -> list[ActKind]:
    """The buttons in a message to the owner."""
    of_open = [ActKind.ACKNOWLEDGE, ActKind.EXEMPT, ActKind.SNAPSHOT] if incident.is_open else []
    return [*of_open, *([ActKind.LEAK, ActKind.NOT_A_LEAK] if incident.key.cause.is_growth else [])]


def parse_click(payload: object) -> Click | None:
    """The click in a payload of an interactive envelope; ``None``: it is none on a button with our prefix."""
    if not isinstance(payload, dict) or payload.get("type") != "block_actions":
        return None
    user, container, actions = payload.get("user"), payload.get("container"), payload.get("actions")
    if not (isinstance(user, dict) and isinstance(container, dict) and isinstance(actions, list) and actions):
        return None
    action = actions[0]
    if not isinstance(action, dict) or not str(action.get("action_id", "")).startswith(PREFIX):
        return None
    team = user.get("team_id") or _of(payload.get("team"), "id")
    named = [team, user.get("id"), container.get("channel_id"), container.get("message_ts"), action.get("action_ts")]
    if not all(isinstance(one, str) and _ID.fullmatch(one) for one in named):
        return None
    asked, value, thread = str(action["action_id"])[len(PREFIX) :][:40], str(action.get("value", ""))[:200], None
    if isinstance(container.get("thread_ts"), str) and _ID.fullmatch(container["thread_ts"]):
        thread = container["thread_ts"]
    words = json.dumps([*named, asked])
    click_id = f"slack-{hashlib.sha256(words.encode()).hexdigest()[:40]}"
    return Click(click_id, str(team), str(named[1]), str(named[2]), thread, asked, value)


def _of(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _plain(text: str) -> Mapping[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}
