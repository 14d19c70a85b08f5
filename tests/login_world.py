"""What a test of logins has in place of MUNGE and of an API server, and headers as a browser sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message

from tidegauge.http.munge import MungeRefusedError
from tidegauge.http.namespace_rights import AccessRight
from tidegauge.http.token_reviews import ReviewedUser, ReviewUnavailableError


@dataclass
class FakeTime:
    """A monotonic clock that the test sets."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeMunged:
    """Uids by credential; each counts once, as with a munged."""

    uids: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def credential(self, number: int, uid: int) -> str:
        made = f"MUNGE:AwQFAAC{number}aaaa==:"
        self.uids[made] = uid
        return made

    def uid_of(self, credential: str) -> int:
        if credential in self.used or credential not in self.uids:
            raise MungeRefusedError("used before, or of nobody")
        self.used.add(credential)
        return self.uids[credential]


@dataclass
class FakeReviewer:
    """``TokenReviewer`` that knows some tokens; while ``is_away`` it can say nothing."""

    users: dict[str, ReviewedUser] = field(default_factory=dict)
    is_away: bool = False
    asked: int = 0

    def review(self, token: str) -> ReviewedUser | None:
        self.asked += 1
        if self.is_away:
            raise ReviewUnavailableError("away")
        return self.users.get(token)


@dataclass
class FakeAccess:
    """``AccessReviewer`` with what each user may; while ``is_away`` it can say nothing."""

    rights: dict[str, set[AccessRight]] = field(default_factory=dict)
    is_away: bool = False
    asked: list[AccessRight] = field(default_factory=list)

    def may(self, user: ReviewedUser, wanted: AccessRight) -> bool:
        self.asked.append(wanted)
        if self.is_away:
            raise ReviewUnavailableError("away")
        return wanted in self.rights.get(user.username, set())


def headers(*lines: tuple[str, str]) -> Message[str, str]:
    """As the server parsed them; a name may be there twice."""
    made: Message[str, str] = Message()
    for name, value in lines:
        made[name] = value
    return made


def with_cookie(set_cookie: str, **more: str) -> Message[str, str]:
    """The headers of a browser that got this ``Set-Cookie``."""
    return headers(("Cookie", set_cookie.partition(";")[0]), *more.items())


NAMES: Mapping[int, str] = {1001: "ada", 1002: "bob"}
"""The user database of the fake head."""
