"""``Chat`` over Slack's Web API. No other module imports ``slack_sdk``.

The token is in no message, log line or exception: errors of ``slack_sdk`` carry the whole request, so none of them is
raised on, chained or kept.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import Any, Final, NamedTuple
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import BaseHandler, HTTPErrorProcessor, ProxyHandler, Request, build_opener

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.web import SlackResponse
from slack_sdk.web.file_upload_v2_result import FileUploadV2Result

from tidegauge.http.loopback import is_loopback
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.notify.ports import (
    Message,
    NotYetError,
    Posted,
    RefusedError,
    RetryLaterError,
    retry_after_s,
)
from tidegauge_exporter.slack.actions import Account
from tidegauge_exporter.slack.people import People

# Slack's errors: those worth another try, and those that a person has to resolve.

SOON_S: Final = 15.0
"""Wait after a failure of Slack."""
UNKNOWN_S: Final = 300.0
"""Wait after an unknown error, which may resolve itself."""

_RETRIED: Final = frozenset(
    {
        "accesslimited",
        "fatal_error",
        "internal_error",
        "rate_limited",
        "ratelimited",
        "request_timeout",
        "service_unavailable",
        "team_added_to_org",
    }
)
_TOKEN: Final = (
    "Slack rejects the token. Put the bot token of the installed app (xoxb-...) into slack_token_file, which is read "
    "again by itself, or into TIDEGAUGE_SLACK_TOKEN and restart (docs/slack.md)"
)
_APP_TOKEN: Final = (
    "Slack rejects the app-level token. Put the one of the app (xapp-..., with connections:write) into "
    "slack_app_token_file, and switch Socket Mode on (docs/slack.md)"
)
_DEFECT: Final = "Slack rejects the format of this message: a Tidegauge bug, please report it"
_CHANNEL: Final = (
    "the Slack app does not see this channel: check the setting slack_channel, and invite the app there (/invite)"
)
_MENDED_BY: Final[Mapping[str, str]] = {
    "account_inactive": _TOKEN,
    "invalid_auth": _TOKEN,
    "not_authed": _TOKEN,
    "token_expired": _TOKEN,
    "token_revoked": _TOKEN,
    "not_allowed_token_type": _TOKEN,
    "access_denied": "Slack denies the app access: ask the workspace administrators",
    "ekm_access_denied": "Slack's admins have suspended access to messages: ask the workspace administrators",
    "org_login_required": "the workspace is being moved: the app has to be installed again",
    "team_access_not_granted": "the app is not installed in this workspace: install it there",
    "two_factor_setup_required": "the account of the app needs a second factor: ask the workspace administrators",
    "no_permission": "the app may not do this: install it again with the scopes of docs/slack.md",
    "channel_not_found": _CHANNEL,
    "not_in_channel": "the app is not in the channel: invite it there (/invite)",
    "is_archived": "the channel is archived: bring it back, or set slack_channel to another one",
    "restricted_action": "the workspace does not let the app post there: ask its administrators",
    "restricted_action_read_only_channel": "posting in this channel is restricted: ask the workspace administrators",
    "restricted_action_thread_only_channel": "only replies are allowed in this channel: set slack_channel to another",
    "invalid_arguments": _DEFECT,
    "invalid_blocks": _DEFECT,
    "invalid_blocks_format": _DEFECT,
    "msg_blocks_too_long": _DEFECT,
    "msg_too_long": _DEFECT,
    "no_text": _DEFECT,
    "cannot_reply_to_message": "the thread takes no replies",
    "thread_not_found": "the thread no longer exists",
    "restricted_action_thread_locked": "somebody has locked the thread",
    "restricted_action_non_threadable_channel": "the channel takes no replies: set slack_channel to another one",
    "messages_tab_disabled": "the app takes no direct messages: switch its Messages tab on, under App Home",
    "message_limit_exceeded": "the workspace reached its message limit: ask its administrators",
    "storage_limit_reached": "the workspace is out of file storage: ask its administrators",
    "file_uploads_disabled": "file uploads are disabled in the workspace: ask its administrators",
}
UNCHANGEABLE: Final = frozenset({"message_not_found", "edit_window_closed", "cant_update_message", "is_inactive"})
"""Errors about a message that was deleted, or that the workspace's rules or its author protect."""
UNKNOWN_PERSON: Final = frozenset(
    {
        "users_not_found",
        "user_not_found",
        "user_disabled",
        "user_not_visible",
        "cannot_dm_bot",
        "invalid_user_combination",
    }
)
"""Errors about a user who cannot get messages."""


def refusal(
    method: str, error: str, *, status: int = 200, retry_after: str | None = None, needed: str = ""
) -> RetryLaterError | RefusedError:
    """The exception for Slack's ``error`` to a call of ``method``. ``needed``: the scopes that Slack named."""
    name = error if re.fullmatch(r"[a-z0-9_]{1,60}", error) else "an answer that is not Slack's"
    if status == 429 or name in ("ratelimited", "rate_limited"):
        return RetryLaterError(f"Slack rate-limits {method}", after_s=retry_after_s(retry_after))
    if name == "missing_scope":
        return _lacking(re.findall(r"[a-z.:_-]{1,40}", needed)[:5] or ["a scope"], method)
    if _MENDED_BY.get(name) is _TOKEN and method == "apps.connections.open":
        return RefusedError(f"{_APP_TOKEN} ({method}: {name})")
    if name in _MENDED_BY:
        return RefusedError(f"{_MENDED_BY[name]} ({method}: {name})")
    if status >= 500:
        return RetryLaterError(f"Slack answers {method} with HTTP {status}", after_s=SOON_S)
    if name in _RETRIED:
        return RetryLaterError(f"Slack answers {method} with {name}", after_s=SOON_S)
    told = name if status == 200 else f"HTTP {status}, {name}"
    return RetryLaterError(f"Slack answers {method} with {told}", after_s=UNKNOWN_S)


def _lacking(scopes: Iterable[str], method: str) -> RefusedError:
    return RefusedError(
        f"the Slack app lacks {', '.join(scopes)} ({method}): add it under OAuth & Permissions and install the app "
        "again"
    )


# One HTTP request to Slack: through the site's proxy or directly, within a time, and to nobody else.
# ``slack_sdk`` has its own idea of proxies (it does not know ``NO_PROXY``, and takes ``HTTP_PROXY`` for https), follows
# redirections with the token in hand, and waits for as long as bytes arrive. Standard library only.

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Bound of Slack's answers, which have some kilobytes."""


class HttpReply(NamedTuple):
    """An answer, perhaps a refusal."""

    status: int
    headers: HTTPMessage
    body: str


def send(request: Request, *, timeout_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> HttpReply:
    """Send a request. Raises ``OSError`` (``TimeoutError`` after ``timeout_s`` in all) and ``HTTPException``."""
    if not request.full_url.startswith(("http://", "https://")):
        raise OSError("an address that is no web address")
    ends_s = monotonic_s() + timeout_s
    opener = build_opener(*_handlers(request.full_url))
    with opener.open(request, timeout=timeout_s) as response:
        assert isinstance(response, HTTPResponse)
        body = bytearray()
        while piece := response.read1(65536):
            body += piece
            if monotonic_s() > ends_s:
                raise TimeoutError("the answer does not end")
            if len(body) > MAX_ANSWER_BYTES:
                raise OSError("the answer is too long to be one of Slack's")
        return HttpReply(response.status, response.headers, body.decode(errors="replace"))


class _Untouched(HTTPErrorProcessor):
    """The handler that returns every answer: it follows no redirection, and raises for no status."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:  # noqa: ARG002 - as inherited
        return response

    https_response = http_response


def _handlers(url: str) -> tuple[BaseHandler, ...]:
    """Handlers without a proxy for this machine, as a gateway or a test is; else the environment decides, with
    ``NO_PROXY``."""
    is_here = is_loopback(urlsplit(url).hostname or "")
    return (_Untouched(), ProxyHandler({})) if is_here else (_Untouched(),)


log = logging.getLogger(__name__)

POST_EVERY_S: Final = 1.0
"""Pause between messages in a channel: Slack takes about one a second, and answers more with a longer wait."""
MAX_WAIT_S: Final = 2.0
"""Longest wait of a caller for the channel's turn, so that a parent and its first replies go out in one round."""
UPLOAD: Final = "files.completeUploadExternal"
"""The method that stands for three calls: an address for the file, the file, and its place in a thread."""
SCOPES_HEADER: Final = "x-oauth-scopes"
"""The header of Slack's answers that lists the token's scopes."""
MAX_CHANNELS: Final = 2_000
"""Bound of channels whose last message is remembered."""
STRANGER_FOR_S: Final = 300.0
"""Time for which an unknown user is not looked up again: every round asks for every owner."""
ACCOUNT_FOR_S: Final = 60.0
"""Time for which Slack is not asked about an account again: who leaves the workspace acts no more a minute later."""
OPEN_SOCKET: Final = "apps.connections.open"
MAX_TITLE_CHARS: Final = 200
MAX_ALT_TEXT_CHARS: Final = 1_000


class _Silence(NamedTuple):
    """A time before which a method is not called."""

    until_s: float
    why: str


class _Failure(NamedTuple):
    """An exception to raise."""

    error: RetryLaterError | RefusedError
    of_all: bool = False
    """True if it holds for every call of this method."""


class _Profile(NamedTuple):
    """What Slack says of an account."""

    problem: str | None
    """Why it can be nobody's."""
    email: str | None
    """Its confirmed address."""


class SlackChat:
    """The chat of one Slack workspace. Thread-safe. ``wait`` sleeps; ``people`` maps users of the cluster to Slack."""

    def __init__(
        self,
        token: str,
        *,
        api_url: str,
        people: People,
        timeout_s: float = 10.0,
        monotonic_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ValueError("the Slack token is empty, or has spaces or characters in it that no token has")
        if not api_url.startswith(("http://", "https://")):
            raise ValueError(f"slack_api_url is {api_url!r}; it looks like https://slack.com/api/")
        self._client = _Client(token, api_url, timeout_s)
        self._people = people
        self._monotonic_s = monotonic_s
        self._wait = wait
        self._lock = threading.Lock()
        self._next_post_s: dict[str, float] = {}
        self._silences: dict[str, _Silence] = {}
        """Silences by method: Slack asked for them, or does not answer."""
        self._ids: dict[str, str] = {}
        """Ids of channels by the name under which they were posted to."""
        self._conversations: dict[str, str] = {}
        """Direct conversations by Slack's id of the user or e-mail address."""
        self._team: str | None = None
        self._profiles: dict[str, tuple[float, _Profile]] = {}
        """Accounts of users, and until when they are not looked up again."""
        self._strangers: dict[str, float] = {}
        """Times until which a user counts as unknown, by the same."""

    def post(
        self, channel: str, message: Message, *, thread: Posted | None = None, beside_thread: bool = False
    ) -> Posted:
        self._pace("chat.postMessage", channel)
        answer = self._ask(
            "chat.postMessage",
            lambda: self._client.chat_postMessage(
                channel=channel,
                thread_ts=None if thread is None else thread.ts,
                reply_broadcast=True if beside_thread and thread is not None else None,
                unfurl_links=False,
                unfurl_media=False,
                mrkdwn=False,
                **_content(message),
            ),
        )
        where, ts = answer.get("channel"), answer.get("ts")
        if not isinstance(where, str) or not isinstance(ts, str):
            raise refusal("chat.postMessage", "")
        self._learn(channel, where)
        return Posted(where, ts)

    def update(self, posted: Posted, message: Message) -> None:
        """Replace a message. One that can no longer be changed (it was deleted) is left alone."""
        self._pace("chat.update", posted.channel)
        self._ask(
            "chat.update",
            lambda: self._client.chat_update(channel=posted.channel, ts=posted.ts, **_content(message)),
            harmless=UNCHANGEABLE,
        )

    def upload(self, png: bytes, *, title: str, alt_text: str, thread: Posted) -> None:
        self._pace(UPLOAD, thread.channel)
        self._ask(
            UPLOAD,
            lambda: self._client.files_upload_v2(
                channel=thread.channel,
                thread_ts=thread.ts,
                content=png,
                filename="memory.png",
                title=tidy(title, MAX_TITLE_CHARS),
                alt_txt=tidy(alt_text, MAX_ALT_TEXT_CHARS),
            ),
        )

    def direct(self, user_name: str) -> str | None:
        who = self._people.find(user_name)
        if who is None:
            return None
        known = self._conversations.get(who)
        if known is not None:
            return known
        if self._monotonic_s() < self._strangers.get(who, 0.0):
            return None
        user = self._user_of_email(who) if "@" in who else who
        answer = {} if user is None else self._ask(
            "conversations.open", lambda: self._client.conversations_open(users=user), harmless=UNKNOWN_PERSON
        )  # fmt: skip
        channel = answer.get("channel")
        if not isinstance(channel, dict) or not isinstance(channel.get("id"), str):
            self._strangers[who] = self._monotonic_s() + STRANGER_FOR_S
            log.warning(
                "nobody on Slack is %s, who is %s here: no messages to them", who, tidy(user_name, MAX_TITLE_CHARS)
            )
            return None
        self._conversations[who] = channel["id"]
        return self._conversations[who]

    def check(self, *, owners: bool, plots: bool) -> None:
        """``auth.test``, and the scopes that Slack names in its answer; a gateway may leave them out. Whether the app
        is in a channel no method tells without a further scope."""
        granted: list[str] = []

        def test() -> SlackResponse:
            answer = self._client.auth_test()
            named = {name.lower(): str(value) for name, value in answer.headers.items()}.get(SCOPES_HEADER, "")
            granted.extend(re.findall(r"[a-z.:_-]+", named))
            return answer

        self._ask("auth.test", test)
        needed = ["chat:write", *["files:write"] * plots, *["im:write"] * owners]
        needed += ["users:read.email"] * (owners and self._people.have_emails())
        missing = [scope for scope in needed if scope not in granted]
        if granted and missing:
            raise _lacking(missing, "auth.test")

    # What clicks need (``actions.ClickChat``).

    def team(self) -> str:
        if self._team is None:
            found = self._ask("auth.test", self._client.auth_test).get("team_id")
            if not isinstance(found, str):
                raise refusal("auth.test", "")
            self._team = found
        return self._team

    def account(self, user: str) -> Account:
        profile = self._profile(user)
        if profile.problem is not None:
            return Account(None, profile.problem)
        names = self._people.names_of(user, profile.email)
        if len(names) > 1:
            return Account(None, "several users of this cluster have your Slack account; an admin can mend that")
        return Account(names[0] if names else None)

    def whisper(self, channel: str, user: str, message: Message, *, thread_ts: str | None) -> None:
        self._ask(
            "chat.postEphemeral",
            lambda: self._client.chat_postEphemeral(
                channel=channel, user=user, thread_ts=thread_ts, **_content(message)
            ),
            harmless=frozenset({"user_not_in_channel", "channel_not_found"}),
        )

    def socket_url(self, app_token: str) -> str:
        url = self._ask(OPEN_SOCKET, lambda: self._client.apps_connections_open(app_token=app_token)).get("url")
        if not isinstance(url, str):
            raise refusal(OPEN_SOCKET, "")
        return url

    def _profile(self, user: str) -> _Profile:
        until_s, known = self._profiles.get(user, (0.0, None))
        if known is not None and self._monotonic_s() < until_s:
            return known
        found = self._ask("users.info", lambda: self._client.users_info(user=user), harmless=UNKNOWN_PERSON).get("user")
        profile = self._profile_in(user, found if isinstance(found, dict) else {})
        if len(self._profiles) >= MAX_CHANNELS:
            self._profiles.clear()
        self._profiles[user] = (self._monotonic_s() + ACCOUNT_FOR_S, profile)
        return profile

    def _profile_in(self, user: str, found: Mapping[str, Any]) -> _Profile:
        """A guest, a bot, or who has left, acts for nobody."""
        odd = ("deleted", "is_bot", "is_restricted", "is_ultra_restricted", "is_stranger")
        if not found or found.get("id") != user or any(found.get(one) for one in odd):
            return _Profile("guests, bots and former members of the workspace can do nothing here", None)
        if found.get("team_id") != self.team():
            return _Profile("you belong to another workspace than Tidegauge's Slack app", None)
        profile = found.get("profile")
        email = profile.get("email") if isinstance(profile, dict) else None
        confirmed = found.get("is_email_confirmed") is not False and isinstance(email, str)
        return _Profile(None, email if confirmed else None)

    def _user_of_email(self, email: str) -> str | None:
        answer = self._ask(
            "users.lookupByEmail", lambda: self._client.users_lookupByEmail(email=email), harmless=UNKNOWN_PERSON
        )
        user = answer.get("user")
        return user["id"] if isinstance(user, dict) and isinstance(user.get("id"), str) else None

    def _ask(
        self, method: str, call: Callable[[], SlackResponse], *, harmless: frozenset[str] = frozenset()
    ) -> Mapping[str, Any]:
        """Slack's answer; an empty one for a ``harmless`` error."""
        self._spare(method)
        answer = _answer(method, call, harmless)
        if isinstance(answer, _Failure):
            if answer.of_all and isinstance(answer.error, RetryLaterError):
                self._silences[method] = _Silence(self._monotonic_s() + answer.error.after_s, str(answer.error))
            raise answer.error
        return answer

    def _spare(self, method: str) -> None:
        """Raise ``RetryLaterError`` during a silence of the method."""
        silence = self._silences.get(method)
        if silence is not None and (left_s := silence.until_s - self._monotonic_s()) > 0:
            raise NotYetError(silence.why, after_s=left_s)

    def _learn(self, channel: str, where: str) -> None:
        """Remember the id of a channel, by which its turns count from now on."""
        with self._lock:
            self._ids[channel] = where
            if channel != where and channel in self._next_post_s:
                self._next_post_s[where] = max(self._next_post_s.pop(channel), self._next_post_s.get(where, 0.0))

    def _pace(self, method: str, channel: str) -> None:
        """Wait for the channel's turn, or raise ``RetryLaterError`` if that takes too long."""
        self._spare(method)
        with self._lock:
            now_s = self._monotonic_s()
            key = self._ids.get(channel, channel)
            turn_s = max(self._next_post_s.get(key, now_s), now_s)
            if turn_s - now_s > MAX_WAIT_S:
                raise NotYetError(f"{method}: one message a second in a channel", after_s=turn_s - now_s)
            if len(self._next_post_s) >= MAX_CHANNELS:
                self._next_post_s = {one: at_s for one, at_s in self._next_post_s.items() if at_s > now_s}
            self._next_post_s[key] = turn_s + POST_EVERY_S
        if turn_s > now_s:
            self._wait(turn_s - now_s)


class _Client(WebClient):
    """Slack's own client over the transport of this module."""

    def __init__(self, token: str, api_url: str, timeout_s: float) -> None:
        silent = logging.getLogger(f"{__name__}.slack_sdk")
        silent.setLevel(logging.CRITICAL + 1)  # its lines have addresses and bodies in them; we say what went wrong
        super().__init__(token=token, base_url=api_url, logger=silent, retry_handlers=[])
        self._timeout_s = timeout_s

    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> dict[str, Any]:  # noqa: ARG002 - theirs
        reply = send(req, timeout_s=self._timeout_s)
        return {"status": reply.status, "headers": reply.headers, "body": reply.body}

    def _upload_file(self, *, url: str, data: bytes, **_: Any) -> FileUploadV2Result:
        reply = send(Request(url, data=data, method="POST"), timeout_s=self._timeout_s)
        if reply.status != 200:
            raise OSError(f"HTTP {reply.status} to the file")
        return FileUploadV2Result(status=reply.status, body=reply.body)


def _content(message: Message) -> dict[str, Any]:
    """Arguments of a message. By ``parse`` and ``link_names`` nothing in a text becomes a link or a mention."""
    return {
        "text": message.text,
        "blocks": [dict(block) for block in message.blocks],
        "parse": "none",
        "link_names": False,
    }


def _answer(method: str, call: Callable[[], SlackResponse], harmless: frozenset[str]) -> Mapping[str, Any] | _Failure:
    """The answer, or the exception to raise: raised in here, it would carry Slack's own error with the token."""
    try:
        data = call().data
        return data if isinstance(data, dict) else _Failure(refusal(method, ""))
    except SlackApiError as error:
        response = error.response
        data = response.data if isinstance(response.data, dict) else {}
        name = str(data.get("error", ""))
        if name in harmless:
            log.info("Slack answers %s with %s: left as it is", method, name)
            return {}
        headers = {key.lower(): str(value) for key, value in response.headers.items()}
        ours = refusal(
            method,
            name,
            status=response.status_code,
            retry_after=headers.get("retry-after"),
            needed=str(data.get("needed", "")),
        )
        return _Failure(ours, of_all=response.status_code == 429)
    except (OSError, HTTPException) as error:
        away = RetryLaterError(f"Slack cannot be reached ({method}: {_why(error)})", after_s=SOON_S)
        return _Failure(away, of_all=True)
    except Exception as error:  # whatever a gateway answers in Slack's place, slack_sdk may stumble over it
        odd = RetryLaterError(f"{method}: not an answer of Slack's ({type(error).__name__})", after_s=UNKNOWN_S)
        return _Failure(odd)


def _why(error: OSError | HTTPException) -> str:
    """The reason in words without an address: "Connection refused"."""
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, OSError) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return (cause.strerror if isinstance(cause, OSError) else None) or type(cause).__name__
