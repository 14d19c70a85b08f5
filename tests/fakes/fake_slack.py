"""A Slack on a loopback port: its Web API as far as Tidegauge uses it, with state and with faults on demand.

Shapes, error names and limits are those of Slack's documentation; no real Slack was at hand. It refuses blocks beyond
Slack's limits, as the real one does.

    with FakeSlack() as slack:
        chat = SlackChat(slack.token, api_url=slack.api_url, people=...)
        slack.add_user("ada@example.org")
        slack.fail("chat.postMessage", "internal_error")
        slack.threads("#gpu-memory")[0].replies
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

from fakes.block_kit import block_problems, words
from fakes.slack_server import Fault as Fault  # part of this module
from fakes.slack_server import SlackServer
from serving import Serving

ALL_SCOPES = frozenset({"chat:write", "files:write", "im:write", "users:read", "users:read.email"})
SCOPE_OF = {
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
    "conversations.open": "im:write",
    "users.lookupByEmail": "users:read.email",
    "users.info": "users:read",
    "chat.postEphemeral": "chat:write",
}
MAX_TEXT_CHARS = 40_000


@dataclass
class FakeFile:
    """A file in a thread."""

    name: str
    title: str
    alt_text: str
    content: bytes = b""


@dataclass
class FakeMessage:
    """A message as it stands now."""

    channel: str
    ts: str
    text: str
    blocks: list[dict[str, Any]]
    thread_ts: str | None = None
    edits: int = 0
    file: FakeFile | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """All else that was asked for: ``unfurl_links`` and so on."""

    @property
    def words(self) -> str:
        """All that can be read in it, line by line."""
        return "\n".join([self.text, *words(self.blocks)])


class Thread(NamedTuple):
    """A message and its replies, oldest first."""

    parent: FakeMessage
    replies: list[FakeMessage]


class FakeSlack:
    """The workspace. Everything is public for tests to look at; ``calls`` are method and arguments, in order."""

    def __init__(self) -> None:
        self.token = "xoxb-of-the-tests"
        self.app_token = "xapp-of-the-tests"
        self.socket_url: str | None = None
        """Of Socket Mode; ``None``: it is switched off."""
        self.team = "T0ROSE"
        self.profiles: dict[str, dict[str, Any]] = {}
        """What ``users.info`` says of an id besides the usual: ``is_restricted`` and so on."""
        self.whispers: list[FakeMessage] = []
        """Messages that one user saw: ``options["user"]``."""
        self.scopes = set(ALL_SCOPES)
        self.channels = {"#gpu-memory": "C0GPUMEMORY"}
        self.archived: set[str] = set()
        self.not_joined: set[str] = set()
        """Ids of channels in which the app is not."""
        self.users: dict[str, str] = {}
        """E-mail address to id."""
        self.conversations: dict[str, str] = {}
        """Id of a user to the direct conversation with them."""
        self.messages: list[FakeMessage] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._uploads: dict[str, FakeFile] = {}
        self.down: dict[str, Fault] = {}
        """What every call of a method gets, for as long as it is here."""
        self.failed: Counter[str] = Counter()
        """Calls that got it, by method."""
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._server = SlackServer(self)
        self._serving = Serving(self._server)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def api_url(self) -> str:
        """For the setting ``slack_api_url``."""
        return f"{self.url}/api/"

    def __enter__(self) -> FakeSlack:
        self._serving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._serving.stop()

    # What a test arranges

    def add_channel(self, name: str) -> str:
        """A channel that the app is in; its id."""
        return self.channels.setdefault(name, f"C{next(self._numbers):08}")

    def add_user(self, email: str) -> str:
        """Somebody in the workspace; their id."""
        return self.users.setdefault(email, f"U{next(self._numbers):08}")

    def delete(self, ts: str) -> None:
        """Somebody deletes a message."""
        self.messages = [message for message in self.messages if message.ts != ts]

    def fail(self, method: str, error: str, *, times: int = 1, status: int = 200, **more: Any) -> None:
        """The next calls of ``method`` are answered with this error."""
        self._faults[method].extend([Fault(status, {"ok": False, "error": error, **more})] * times)

    def limit(self, method: str, retry_after: int | str, *, times: int = 1) -> None:
        """The next calls of ``method`` are one too many."""
        limited = Fault(429, {"ok": False, "error": "ratelimited"}, {"Retry-After": str(retry_after)})
        self._faults[method].extend([limited] * times)

    def fault(self, method: str, fault: Fault, *, times: int = 1) -> None:
        """Anything else: an HTTP status, a page that is not JSON, silence. Method ``upload``: the file itself."""
        self._faults[method].extend([fault] * times)

    # What a test looks at

    def called(self, method: str) -> list[dict[str, Any]]:
        """The arguments of each call of ``method``."""
        return [arguments for name, arguments in self.calls if name == method]

    def threads(self, channel: str) -> list[Thread]:
        """Of a channel (name or id), oldest first."""
        where = self.channels.get(channel, channel)
        here = [message for message in self.messages if message.channel == where]
        return [
            Thread(parent, [reply for reply in here if reply.thread_ts == parent.ts])
            for parent in here
            if parent.thread_ts is None
        ]

    def direct_threads(self, user: str) -> list[Thread]:
        """Of the conversation with a user (e-mail address or id)."""
        conversation = self.conversations.get(self.users.get(user, user))
        return [] if conversation is None else self.threads(conversation)

    # What Slack does

    def next_fault(self, method: str) -> Fault | None:
        with self._lock:
            waiting = self._faults[method]
            if waiting or method not in self.down:
                return waiting.popleft() if waiting else None
            self.failed[method] += 1
            return self.down[method]

    def wait_for_the_end(self) -> None:
        self._closing.wait()

    def answer(self, method: str, token: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What Slack says to a call."""
        with self._lock:
            self.calls.append((method, arguments))
            if method == "apps.connections.open":
                if token != self.app_token:
                    return _error("invalid_auth")
                return _error("forbidden") if self.socket_url is None else {"ok": True, "url": self.socket_url}
            if token != self.token:
                return _error("invalid_auth" if token else "not_authed")
            if method == "auth.test":
                return {"ok": True, "url": f"{self.url}/", "team": "Rose", "team_id": self.team,
                        "user": "tidegauge", "bot_id": "B0TIDEGAUGE"}  # fmt: skip
            if method not in SCOPE_OF:
                return _error("unknown_method")
            if SCOPE_OF[method] not in self.scopes:
                return _error("missing_scope", needed=SCOPE_OF[method], provided=",".join(sorted(self.scopes)))
            return getattr(self, "_" + method.replace(".", "_"))(arguments)  # type: ignore[no-any-return]

    def headers(self, token: str) -> dict[str, str]:
        """The scopes of the token, as in each of Slack's answers."""
        return {"X-OAuth-Scopes": ",".join(sorted(self.scopes))} if token == self.token else {}

    def keep_file(self, file_id: str, content: bytes) -> bool:
        """The bytes of a file that was announced."""
        with self._lock:
            announced = self._uploads.get(file_id)
            if announced is not None:
                announced.content = content
            return announced is not None

    def _chat_postMessage(self, arguments: dict[str, Any]) -> dict[str, Any]:
        channel = self._channel(arguments.get("channel", ""))
        refusal = self._refusal(channel, arguments)
        if refusal is not None or channel is None:
            return _error(refusal or "channel_not_found")
        thread_ts = arguments.get("thread_ts")
        if thread_ts is not None and not self._find(channel, thread_ts):
            return _error("cannot_reply_to_message")
        message = self._add(channel, arguments.get("text", ""), list(arguments.get("blocks") or []), thread_ts)
        taken = ("channel", "text", "blocks", "thread_ts")
        message.options = {key: value for key, value in arguments.items() if key not in taken}
        return {"ok": True, "channel": channel, "ts": message.ts, "message": {"ts": message.ts, "text": message.text}}

    def _chat_update(self, arguments: dict[str, Any]) -> dict[str, Any]:
        channel = arguments.get("channel", "")
        if channel not in {*self.channels.values(), *self.conversations.values()}:
            return _error("channel_not_found")  # a name is not enough here
        message = self._find(channel, arguments.get("ts", ""))
        refusal = self._refusal(channel, arguments)
        if message is None or refusal is not None:
            return _error(refusal or "message_not_found")
        message.text, message.blocks = arguments.get("text", ""), list(arguments.get("blocks") or [])
        message.edits += 1
        return {"ok": True, "channel": channel, "ts": message.ts, "text": message.text}

    def _files_getUploadURLExternal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if int(arguments.get("length", 0)) <= 0 or not arguments.get("filename"):
            return _error("invalid_arguments")
        file_id = f"F{next(self._numbers):08}"
        self._uploads[file_id] = FakeFile(arguments["filename"], "", arguments.get("alt_txt", ""))
        return {"ok": True, "file_id": file_id, "upload_url": f"{self.url}/upload/v1/{file_id}"}

    def _files_completeUploadExternal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        files = arguments.get("files", [])
        done = []
        for one in json.loads(files) if isinstance(files, str) else files:
            file = self._uploads.get(one["id"])
            if file is None or not file.content:
                return _error("file_not_found")
            channel, thread_ts = arguments.get("channel_id", ""), arguments.get("thread_ts")
            if channel not in {*self.channels.values(), *self.conversations.values()}:
                return _error("channel_not_found")
            file.title = one.get("title", "")
            self._add(channel, "", [], thread_ts).file = self._uploads.pop(one["id"])
            done.append({"id": one["id"], "title": file.title})
        return {"ok": True, "files": done}

    def _conversations_open(self, arguments: dict[str, Any]) -> dict[str, Any]:
        user = arguments.get("users", "")
        if user not in self.users.values():
            return _error("user_not_found")
        channel = self.conversations.setdefault(user, f"D{next(self._numbers):08}")
        return {"ok": True, "channel": {"id": channel}}

    def _users_lookupByEmail(self, arguments: dict[str, Any]) -> dict[str, Any]:
        user = self.users.get(arguments.get("email", ""))
        return _error("users_not_found") if user is None else {"ok": True, "user": {"id": user}}

    def _users_info(self, arguments: dict[str, Any]) -> dict[str, Any]:
        user = arguments.get("user", "")
        email = next((email for email, known in self.users.items() if known == user), None)
        if email is None:
            return _error("user_not_found")
        usual = {"id": user, "team_id": self.team, "deleted": False, "is_bot": False, "is_restricted": False,
                 "is_ultra_restricted": False, "is_email_confirmed": True}  # fmt: skip
        return {"ok": True, "user": {**usual, "profile": {"email": email}, **self.profiles.get(user, {})}}

    def _chat_postEphemeral(self, arguments: dict[str, Any]) -> dict[str, Any]:
        channel = self._channel(arguments.get("channel", ""))
        refusal = self._refusal(channel, arguments)
        if refusal is not None or channel is None:
            return _error(refusal or "channel_not_found")
        number = next(self._numbers)
        whisper = FakeMessage(
            channel, f"{1_800_000_000 + number}.{number:06}", arguments.get("text", ""),
            list(arguments.get("blocks") or []), arguments.get("thread_ts"), options=dict(arguments),
        )  # fmt: skip
        self.whispers.append(whisper)
        return {"ok": True, "message_ts": whisper.ts}

    def _channel(self, asked: str) -> str | None:
        known = {*self.channels.values(), *self.conversations.values()}
        by_name = self.channels.get(asked) or self.channels.get(f"#{asked}")
        return by_name or (asked if asked in known else None)

    def _refusal(self, channel: str | None, arguments: Mapping[str, Any]) -> str | None:
        if channel is None:
            return "channel_not_found"
        if channel in self.archived:
            return "is_archived"
        if channel in self.not_joined:
            return "not_in_channel"
        if not arguments.get("text") and not arguments.get("blocks"):
            return "no_text"
        if len(arguments.get("text", "")) > MAX_TEXT_CHARS:
            return "msg_too_long"
        return "invalid_blocks" if block_problems(arguments.get("blocks") or []) else None

    def _find(self, channel: str, ts: str) -> FakeMessage | None:
        return next((one for one in self.messages if (one.channel, one.ts) == (channel, ts)), None)

    def _add(self, channel: str, text: str, blocks: list[dict[str, Any]], thread_ts: str | None) -> FakeMessage:
        number = next(self._numbers)
        message = FakeMessage(channel, f"{1_800_000_000 + number}.{number:06}", text, blocks, thread_ts)
        self.messages.append(message)
        return message


def _error(name: str, **more: Any) -> dict[str, Any]:
    return {"ok": False, "error": name, **more}
