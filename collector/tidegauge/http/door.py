"""The door of the HTTP servers: TLS, names and headers from files, which are read again when they change.

exporter-toolkit reads its file at every request; here a changed signature triggers that, which is cheaper and means the
same. Files that become unusable while the servers run are logged once, and the last good state stays in force: half a
file neither admits nor locks out anybody. The start decides whether there is TLS and whether clients need a name.
"""

from __future__ import annotations

import base64
import binascii
import logging
import ssl
import threading
import time
from collections.abc import Callable

from tidegauge.http.access import EVERYBODY, DoorProblem, Refusal, Viewer
from tidegauge.http.door_files import (
    DoorFileError,
    DoorState,
    Signature,
    check_not_weaker,
    read_door_files,
    signature_of,
)
from tidegauge.http.passwords import Bucket, Password, Passwords
from tidegauge.http.tls import check_client
from tidegauge.http.tokens import name_of
from tidegauge.settings import Settings, comma_separated

log = logging.getLogger(__name__)

CHALLENGE = (("WWW-Authenticate", 'Basic realm="tidegauge", charset="UTF-8"'), ("WWW-Authenticate", "Bearer"))
WHO = "say who you are: a token (Authorization: Bearer) or a name and password; see docs/web_access.md"
UNKNOWN = "this token, or this name and password, is not known here"
LATER = "too many passwords were tried: try again in some seconds, or use a token"
TOO_MANY = "too many requests, as the web configuration's rate_limit has it"
MAX_HEADER_CHARS = 4096
BROKEN_AGAIN_S = 5.0
"""How often files that broke while the service runs are read again, unless they change: a file that they name may exist
by now. In between, no unknown client makes the service read a file."""


class WebDoor:
    """Implements ``WatchedDoor`` by files. Thread-safe."""

    def __init__(self, settings: Settings, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Raises ``DoorFileError`` if a file cannot be used."""
        self._settings = settings
        self._admins = frozenset(comma_separated(settings.api_admins))
        self._metrics_readers = self._admins.union(comma_separated(settings.metrics_readers))
        self._passwords = Passwords(monotonic_s=monotonic_s)
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._problem: DoorProblem | None = None
        self._broken: tuple[Signature, float] | None = None
        """Files that could not be used, and when they were read."""
        self.in_force, self._signature = read_door_files(settings)
        """The last good state."""
        self.scheme = "http" if self.in_force.context is None else "https"
        rate = self.in_force.config.rate_limit
        self._requests = None if rate is None else Bucket(rate.burst, rate.interval_s, monotonic_s())

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return self.in_force.config.headers

    def tls(self) -> ssl.SSLContext | None:
        return self._latest().context

    def problem(self) -> DoorProblem | None:
        self._latest()
        return self._problem

    def check_client(self, connection: ssl.SSLSocket) -> None:
        tls = self.in_force.config.tls
        check_client(connection, None if tls is None else tls.client_allowed_sans)

    def admit(self, authorization: str | None, peer: str) -> Viewer | Refusal:
        state = self._latest()
        if self._requests is not None:
            with self._lock:
                if not self._requests.take(self._monotonic_s()):
                    return Refusal(429, TOO_MANY)
        if not state.asks_names:
            return EVERYBODY
        scheme, _, shown = (authorization or "")[:MAX_HEADER_CHARS].partition(" ")
        if scheme.lower() == "bearer":
            name = name_of(shown.strip(), state.tokens)
            return Refusal(401, UNKNOWN, CHALLENGE) if name is None else self._viewer(name)
        if scheme.lower() == "basic":
            return self._by_password(state, shown, peer)
        return Refusal(401, WHO, CHALLENGE)

    def _by_password(self, state: DoorState, shown: str, peer: str) -> Viewer | Refusal:
        try:
            name, colon, password = base64.b64decode(shown.strip(), validate=True).partition(b":")
            user = name.decode()
        except (binascii.Error, ValueError):
            return Refusal(401, UNKNOWN, CHALLENGE)
        if not colon or not state.config.users:
            return Refusal(401, UNKNOWN, CHALLENGE)
        answer = self._passwords.check(state.config.users, user, password, peer=peer)
        if answer is Password.NOT_NOW:
            return Refusal(429, LATER, (("Retry-After", "5"),))
        return self._viewer(user) if answer is Password.RIGHT else Refusal(401, UNKNOWN, CHALLENGE)

    def _viewer(self, name: str) -> Viewer:
        return Viewer(name, sees_all=name in self._admins, reads_metrics=name in self._metrics_readers)

    def _latest(self) -> DoorState:
        """The state after reading changed files, by one thread at a time."""
        with self._lock:
            signature = signature_of(self._settings, self.in_force.config)
            if signature == self._signature:
                self._broken = self._problem = None
                return self.in_force
            if self._is_known_broken(signature):
                return self.in_force
            self._broken = signature, self._monotonic_s()
            try:
                state, signature = read_door_files(self._settings)
                check_not_weaker(self.in_force, state, self._settings)
            except DoorFileError as error:
                if self._problem is None or str(error) != self._problem.text:
                    log.error("%s; what was in force before stays so", error)
                self._problem = DoorProblem(False, str(error.file), str(error), error.advice)
                return self.in_force
            self.in_force, self._signature, self._problem, self._broken = state, signature, None, None
            log.info("who may come in to the HTTP servers was read again")
            return state

    def _is_known_broken(self, signature: Signature) -> bool:
        if self._broken is None or self._broken[0] != signature:
            return False
        return self._monotonic_s() - self._broken[1] < BROKEN_AGAIN_S
