"""Clicks on Slack: heard over Socket Mode, written down, passed to the coordinator, answered to who clicked.

Slack's word on a click is acknowledged once it is on disk, so that it is neither lost nor done twice: whatever was not
answered yet is passed on again after a restart, and the coordinator does one request once. Nothing that sends messages
waits for any of this: it has threads and a journal of its own.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from tidegauge.core.incidents.acts import ActKind, ActOutcome
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.notifier import PartStatus
from tidegauge_exporter.notify.ports import ActDesk, ActRequest, Message, RefusedError, RetryLaterError
from tidegauge_exporter.slack.blocks import message, paragraph
from tidegauge_exporter.slack.clicks import MENU, Buttons, Click, Subject, parse_click
from tidegauge_exporter.slack.websocket import WebSocket, WebSocketError

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

NAME: Final = "slack actions"
CLICKS: Final = "click"
DONE: Final = "done"
MAX_PENDING: Final = 200
"""Clicks that wait for an answer; of more, Slack's own repetition is heard later."""
MAX_OF_ACCOUNT: Final = 10
"""Of these, clicks of one account: nobody takes the places of others."""
LATE_S: Final = 600.0
"""Age at which a click is done no more: nobody expects it to do anything now."""
AGAIN_S: Final = 5.0
LOOK_S: Final = 1.0
HELLO_WITHIN_S: Final = 15.0
CONNECT_WITHIN_S: Final = 10.0
MAX_BACK_OFF_S: Final = 60.0
BRIEF_S: Final = 10.0
"""A connection that Slack ends sooner is no reason to ask for the next one at once, again and again."""
REFUSED_WAIT_S: Final = 300.0
STOP_WITHIN_S: Final = 5.0
FORGED: Final = "this button was not made by this Tidegauge, or with an earlier token: use a newer message"
LATE: Final = "Tidegauge could not answer this within 10 minutes. If the message does not show it as done, click again."
FOREIGN: Final = "you belong to another workspace or organization than Tidegauge's Slack app"


class _CoordinatorAwayError(Exception):
    """No click can be passed on now."""


class ClickOutcome(str, Enum):
    """What became of a click."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    """The rank gave no evidence, say; or neither Slack nor the coordinator answered in ten minutes."""


ASKED: Final = (MENU, *(kind.value for kind in ActKind), "unknown")
"""What a click can ask for, as the metrics count it."""


class Account(NamedTuple):
    """Whom an account on Slack belongs to."""

    user_name: str | None
    """Login name on the cluster."""
    problem: str | None = None
    """Why nobody acts by this account, for the one who clicked."""


class ClickChat(Protocol):
    """Slack, as far as clicks need it. Methods raise ``RetryLaterError`` and ``RefusedError``."""

    def team(self) -> str:
        """Id of the workspace of the app."""

    def account(self, user: str) -> Account:
        """The person of the cluster behind a user of the workspace."""

    def whisper(self, channel: str, user: str, message: Message, *, thread_ts: str | None) -> None:
        """Post what only this user sees."""

    def socket_url(self, app_token: str) -> str:
        """A fresh address for Socket Mode."""


class SlackActions:
    """``start`` once, ``stop`` at the end; ``status``, ``clicks`` and ``connected`` from any thread."""

    def __init__(
        self,
        chat: ClickChat,
        desk: ActDesk,
        journal: DeliveryJournal,
        buttons: Buttons,
        *,
        app_token: str,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._chat = chat
        self._desk = desk
        self._journal = journal
        self._buttons = buttons
        self._app_token = app_token
        self._wall_s = wall_s
        self._counts: Counter[tuple[str, str]] = Counter()
        self._problem: str | None = None
        self._refused: str | None = None
        """Why the latest click could not be answered, if a person has to mend that."""
        self._said: str | None = None
        self._is_tried = False
        self._connected = False
        self._since_unix_s = wall_s()
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for name, run in (("listen", self._keep_listening), ("answer", self._keep_answering)):
            thread = threading.Thread(target=run, name=f"tidegauge-slack-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> bool:
        """False: Slack hangs, and the threads end with the process."""
        self._stopping.set()
        self._news.set()
        deadline_s = time.monotonic() + STOP_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        is_over = not any(thread.is_alive() for thread in self._threads)
        if is_over:
            self._journal.close()
        return is_over

    def status(self) -> PartStatus:
        problem = self._problem or self._refused or self._journal.problem
        return PartStatus(NAME, problem, self._since_unix_s, is_tried=self._is_tried)

    def clicks(self) -> Mapping[tuple[str, str], int]:
        """How many clicks asked for what, and what became of them: every pair, from 0."""
        every = {(asked, outcome.value): 0 for asked in ASKED for outcome in ClickOutcome}
        return {**every, **self._counts}

    @property
    def connected(self) -> bool:
        """Whether clicks are heard now."""
        return self._connected

    def hear(self, payload: object) -> bool:
        """Write a click down, once; returns whether the envelope is to be acknowledged. Never raises."""
        click = parse_click(payload)
        if click is None:
            return True  # of another app's message, or nothing that anybody can answer
        key = f"{CLICKS}/{click.click_id}"
        if self._journal.said(NAME, key) is None:
            waiting = [_read(self._journal.said(NAME, one)) for one in self._pending()]
            theirs = sum(kept is not None and kept[0].account == click.account for kept in waiting)
            if theirs >= MAX_OF_ACCOUNT or len(waiting) >= MAX_PENDING:
                return False
            self._journal.say(NAME, key, json.dumps([*click, self._wall_s()]))
            self._news.set()
        return True

    def answer_all(self) -> bool:
        """Answer the clicks that wait, oldest first; returns whether none waits any more. One that Slack does not let
        answer holds up no other; without the coordinator none is tried further. Never raises."""
        is_over = True
        for key in self._pending():
            kept = _read(self._journal.said(NAME, key))
            if kept is None:
                self._journal.say(NAME, key, DONE, over=True)
                continue
            click, at_unix_s = kept
            try:
                if abs(self._wall_s() - at_unix_s) >= LATE_S:
                    outcome = ClickOutcome.FAILED
                    self._tell_late(click)
                else:
                    outcome, self._refused = self._answer(click), None
            except (RetryLaterError, _CoordinatorAwayError) as error:
                log.info("a click on Slack waits: %s", error)
                is_over = False
                if isinstance(error, _CoordinatorAwayError):
                    break
                continue
            except RefusedError as error:
                log.warning("a click on Slack cannot be answered: %s", error)
                self._refused = str(error)
                outcome = ClickOutcome.FAILED
            except Exception:  # a defect that one click brings out must not silence all others
                log.exception("a click on Slack could not be answered")
                outcome = ClickOutcome.FAILED
            asked = click.asked if click.asked in ASKED else "unknown"
            self._counts[asked, outcome.value] += 1
            self._journal.say(NAME, key, DONE, over=True)
        return is_over

    def _answer(self, click: Click) -> ClickOutcome:
        """Pass on one click, and tell who clicked what came of it. Raises ``RetryLaterError``, ``RefusedError`` and
        ``_CoordinatorAwayError``."""
        subject, problem, by = self._buttons.subject(click), None, None
        if subject is None or (click.kind is None and click.asked != MENU):
            problem = FORGED
        elif click.team != self._chat.team():
            problem = FOREIGN
        else:
            by, problem = self._chat.account(click.user)
        if click.asked == MENU and subject is not None:
            may = None if problem is not None or by is None else _passed(self._desk.may, subject.number, by=by)
            self._whisper(click, problem or ("" if may else "There is nothing that you can do about it."), subject, may)
            return ClickOutcome.DONE if may else ClickOutcome.REFUSED
        shown = subject or Subject(0, 0)
        done = _passed(
            self._desk.ask,
            ActRequest(click.click_id, shown.number, shown.opened_ms, click.kind or ActKind.ACKNOWLEDGE, by,
                       click.account, problem),
        )  # fmt: skip
        if done.outcome is ActOutcome.BEGUN:
            raise RetryLaterError(f"the coordinator has not finished {click.asked} on incident {shown.number}")
        self._whisper(click, done.text, subject, None)
        known = {ActOutcome.REFUSED: ClickOutcome.REFUSED, ActOutcome.FAILED: ClickOutcome.FAILED}
        return known.get(done.outcome, ClickOutcome.DONE)

    def _tell_late(self, click: Click) -> None:
        try:
            self._whisper(click, LATE, None, None)
        except RetryLaterError as error:
            log.info("nobody is told that a click came to nothing: %s", error)

    def _whisper(self, click: Click, text: str, subject: Subject | None, may: Sequence[ActKind] | None) -> None:
        words = text or f"What you can do about incident {subject.number if subject else 0}:"
        row = self._buttons.row(subject, may) if subject is not None and may else []
        told = message(words, paragraph([words]), row)
        self._chat.whisper(click.channel, click.user, told, thread_ts=click.thread_ts)

    def _pending(self) -> list[str]:
        return [key for key in self._journal.keys(NAME, CLICKS) if self._journal.said(NAME, key) != DONE]

    def _keep_answering(self) -> None:
        while not self._stopping.is_set():
            self._news.clear()
            self._news.wait(None if self.answer_all() else AGAIN_S)

    def _keep_listening(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            wait_s, began_s = 0.0, time.monotonic()
            try:
                self._listen()  # until Slack asks for a new connection
                failures = failures + 1 if time.monotonic() - began_s < BRIEF_S else 0
                if failures > 1:
                    wait_s = min(2.0 ** min(failures - 2, 10), MAX_BACK_OFF_S)
            except RefusedError as error:
                self._note(str(error))
                wait_s = REFUSED_WAIT_S
            except (RetryLaterError, WebSocketError) as error:
                was_connected, failures = self._connected, 0 if self._connected else failures + 1
                wait_s = min(2.0 ** min(failures, 10), MAX_BACK_OFF_S)
                if isinstance(error, RetryLaterError):
                    wait_s = max(wait_s, min(error.after_s, REFUSED_WAIT_S))
                self._note(None if was_connected else f"Slack's clicks are not heard: {error}")
            except Exception as error:
                if self._problem is None:
                    log.exception("listening to Slack failed")
                self._note(f"a defect: {error!r}; the log has the traceback")
                wait_s = MAX_BACK_OFF_S
            self._connected = False
            self._stopping.wait(wait_s)

    def _listen(self) -> None:
        """One connection; returns when Slack asks for another, or at the end. Raises ``RetryLaterError``,
        ``RefusedError`` and ``WebSocketError``."""
        connection = WebSocket(self._chat.socket_url(self._app_token), timeout_s=CONNECT_WITHIN_S)
        began_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                text = connection.receive(timeout_s=LOOK_S)
                if text is not None and self._heard(connection, text):
                    return
                if not self._connected and time.monotonic() - began_s > HELLO_WITHIN_S:
                    raise WebSocketError("Slack is silent")
        finally:
            connection.close()

    def _heard(self, connection: WebSocket, text: str) -> bool:
        """Take one message; returns whether Slack ends this connection."""
        told = _object(text)
        kind, envelope_id = told.get("type"), told.get("envelope_id")
        if kind == "hello":
            self._connected = True
            self._note(None)
        elif kind == "disconnect":
            log.info("Slack asks for a new connection: %s", str(told.get("reason"))[:40])
            return True
        elif isinstance(envelope_id, str) and (kind != "interactive" or self.hear(told.get("payload"))):
            connection.send(json.dumps({"envelope_id": envelope_id}))
        return False

    def _note(self, problem: str | None) -> None:
        """Remember a problem, and log when it begins or ends."""
        if problem is not None and problem != self._said:
            log.warning("%s", problem)
        elif problem is None and self._said is not None:
            log.info("clicks on Slack are heard again")
        if (problem is None) is not (self._problem is None):
            self._since_unix_s = self._wall_s()
        self._problem = self._said = problem
        self._is_tried = True


def _passed(ask: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The coordinator's answer. Raises ``_CoordinatorAwayError``."""
    try:
        return ask(*args, **kwargs)
    except RetryLaterError as error:
        raise _CoordinatorAwayError(str(error)) from error


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read(text: str | None) -> tuple[Click, float] | None:
    try:
        *fields, at_unix_s = json.loads(text or "")
        return Click(*fields), float(at_unix_s)
    except (ValueError, TypeError):
        return None
