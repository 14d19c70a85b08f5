"""Sessions of browsers that logged in: a random cookie there, its digest and what it rests on here.

In memory alone: all end when the process does. Whoever uses this checks at every request what a session rests on.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from email.message import Message
from typing import NamedTuple

from tidegauge.http.access import LoginMethod, NamespaceRights

MAX_SESSIONS = 4096
"""Of all users; the oldest ends. Reached by hundreds of users, as each has few."""
MAX_SESSIONS_OF_ONE = 16
"""Of one user; the oldest ends: browsers of a person. A script that logs in again and again ends its own alone."""
COOKIE, SECURE_COOKIE = "tidegauge_session", "__Host-tidegauge_session"
"""Over plain HTTP and over TLS. Browsers take the second only over TLS, for this very host, with ``Path=/``: no other
host of the domain can set it (RFC 6265bis, 4.1.3.2)."""
_KEY = re.compile(r"[A-Za-z0-9_-]{43}")
"""32 random bytes."""


class Identity(NamedTuple):
    """Who somebody is, and by what."""

    name: str
    """Compared with the owners of jobs."""
    method: LoginMethod
    roles: frozenset[str]
    """Compared with ``api_admins`` and ``metrics_readers``: names and groups."""
    proof: bytes = b""
    """What it rests on: of a token its digest, of a password its hash, of a MUNGE credential the uid."""
    rights: NamespaceRights | None = None
    """Of a user of Kubernetes."""


class Session(NamedTuple):
    """A session that is in force."""

    identity: Identity
    ends_s: float
    sealed: bytes
    """A secret that whoever logged in showed, readable only with the cookie."""


class Shown(NamedTuple):
    """A session with the cookie that a request shows for it."""

    session: Session
    key: str

    @property
    def secret(self) -> str:
        """What was given to ``Sessions.begin``."""
        return _sealed(self.session.sealed, self.key).decode()


class Sessions:
    """Thread-safe."""

    def __init__(self, *, lifetime_s: float, secure: bool, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """``secure``: whether browsers come over TLS."""
        self._lifetime_s = lifetime_s
        self._name = SECURE_COOKIE if secure else COOKIE
        self._attributes = f"Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        """By the digest of the cookie, oldest first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, identity: Identity, *, secret: str = "") -> str:
        """A new session, always with a new key; returns the ``Set-Cookie``. ``secret``: to be shown again later."""
        key = secrets.token_urlsafe(32)
        session = Session(identity, self._monotonic_s() + self._lifetime_s, _sealed(secret.encode(), key))
        with self._lock:
            self._end_superfluous(identity.name)
            self._sessions[_digest(key)] = session
        return f"{self._name}={key}; {self._attributes}; Max-Age={int(self._lifetime_s)}"

    def find(self, headers: Message[str, str]) -> Shown | None:
        """The session whose cookie these headers have; ``None`` also where they have two: one is somebody else's."""
        key = self._key(headers)
        if key is None:
            return None
        digest = _digest(key)
        with self._lock:
            session = self._sessions.get(digest)
            if session is not None and self._monotonic_s() >= session.ends_s:
                del self._sessions[digest]
                session = None
        return None if session is None else Shown(session, key)

    def end(self, headers: Message[str, str]) -> str:
        """End the session of these headers, if any; returns the ``Set-Cookie`` that removes the cookie."""
        key = self._key(headers)
        if key is not None:
            with self._lock:
                self._sessions.pop(_digest(key), None)
        return f"{self._name}=; {self._attributes}; Max-Age=0"

    def _key(self, headers: Message[str, str]) -> str | None:
        keys = [
            value.strip()
            for header in headers.get_all("Cookie", ())
            for name, equals, value in (part.partition("=") for part in header.split(";"))
            if equals and name.strip() == self._name
        ]
        return keys[0] if len(keys) == 1 and _KEY.fullmatch(keys[0]) else None

    def _end_superfluous(self, name: str) -> None:
        """Make room for one more of this user."""
        now_s = self._monotonic_s()
        for digest in [digest for digest, session in self._sessions.items() if now_s >= session.ends_s]:
            del self._sessions[digest]
        own = [digest for digest, session in self._sessions.items() if session.identity.name == name]
        for digest in own[: max(0, len(own) + 1 - MAX_SESSIONS_OF_ONE)]:
            del self._sessions[digest]
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _sealed(text: bytes, key: str) -> bytes:
    """``text`` under a stream made of the key, which is random and seals one text; twice: the text itself."""
    stream = hashlib.shake_256(b"tidegauge session secret:" + key.encode()).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, stream, strict=True))
