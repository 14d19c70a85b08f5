"""The door of the HTTP servers: TLS, names and headers from files, which are read again when they change.

exporter-toolkit reads its file at every request; here a changed signature triggers that, which is cheaper and means the
same. Files that become unusable while the servers run are logged once, and the last good state stays in force: half a
file neither admits nor locks out anybody. The start decides whether there is TLS and whether clients need a name.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from email.message import Message

from tidegauge.http.access import (
    EVERYBODY,
    NO_HEADERS,
    NOBODY_ASKED,
    SHOWN_HEADER,
    DoorProblem,
    LoggedIn,
    LoginMethod,
    Refusal,
    Viewer,
)
from tidegauge.http.credentials import BASIC, FILES_ALONE, BesideFiles, Credentials
from tidegauge.http.credentials import LATER as LATER
from tidegauge.http.credentials import UNKNOWN as UNKNOWN
from tidegauge.http.door_files import (
    DoorFileError,
    DoorState,
    Signature,
    check_not_weaker,
    read_door_files,
    signature_of,
)
from tidegauge.http.passwords import Bucket
from tidegauge.http.sessions import Identity, Sessions
from tidegauge.http.tls import check_client
from tidegauge.settings import Settings, comma_separated

log = logging.getLogger(__name__)

WHO = "say who you are: a token (Authorization: Bearer) or a name and password; see docs/web_access.md"
ENDED = "your login does not count any more: log in again at /login"
TOO_MANY = "too many requests, as the web configuration's rate_limit has it"
BROKEN_AGAIN_S = 5.0
"""How often files that broke while the service runs are read again, unless they change: a file that they name may exist
by now. In between, no unknown client makes the service read a file."""


class WebDoor:
    """Implements ``LoginDoor`` by files, and what there is beside them. Thread-safe."""

    def __init__(
        self, settings: Settings, beside: BesideFiles = FILES_ALONE, *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Raises ``DoorFileError`` if a file cannot be used."""
        self._beside = beside
        self._settings = settings
        self._admins = frozenset(comma_separated(settings.api_admins))
        self._metrics_readers = self._admins.union(comma_separated(settings.metrics_readers))
        self._credentials = Credentials(beside, monotonic_s=monotonic_s)
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._problem: DoorProblem | None = None
        self._broken: tuple[Signature, float] | None = None
        """Files that could not be used, and when they were read."""
        self.in_force, self._signature = read_door_files(settings)
        """The last good state."""
        self.scheme = "http" if self.in_force.context is None else "https"
        self._sessions = Sessions(
            lifetime_s=settings.session_hours * 3600.0, monotonic_s=monotonic_s,
            secure=self.scheme == "https" or (settings.public_url or "").lower().startswith("https://"),
        )  # fmt: skip
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

    def admit(self, authorization: str | None, peer: str, headers: Message[str, str] = NO_HEADERS) -> Viewer | Refusal:
        state = self._latest()
        if self._is_too_many():
            return Refusal(429, TOO_MANY)
        if not self._asks_names(state):
            return EVERYBODY
        authorization = authorization or headers.get(SHOWN_HEADER)
        proxied = None if self._beside.proxy is None else self._beside.proxy.user(headers, peer)
        if isinstance(proxied, Refusal):
            return proxied
        if proxied is not None:
            return self._viewer(Identity(proxied, LoginMethod.PROXY, frozenset({proxied})))
        if authorization:
            identity = self._credentials.check(authorization, peer, config=state.config, tokens=state.tokens)
            if identity is None:
                return Refusal(401, WHO, self._credentials.challenges())
            return identity if isinstance(identity, Refusal) else self._viewer(identity)
        return self._by_session(state, peer, headers) or Refusal(401, WHO, self._challenges(headers))

    def login_methods(self) -> frozenset[LoginMethod]:
        state = self._latest()
        by_files = {
            LoginMethod.PASSWORD: bool(state.config.users),
            LoginMethod.TOKEN: self._settings.api_tokens_file is not None,
        }
        return self._beside.methods().union(method for method, is_on in by_files.items() if is_on)

    def log_in(self, authorization: str, peer: str, headers: Message[str, str]) -> LoggedIn | Refusal:
        state = self._latest()
        if self._is_too_many():
            return Refusal(429, TOO_MANY)
        if not self._asks_names(state):
            return Refusal(403, NOBODY_ASKED)
        identity = self._credentials.check(authorization, peer, config=state.config, tokens=state.tokens)
        if identity is None:
            return self._credentials.unknown()
        if isinstance(identity, Refusal):
            return identity
        self._sessions.end(headers)
        by_kubernetes = identity.method is LoginMethod.KUBERNETES
        # It is reviewed again, to notice that it was taken back.
        secret = authorization.partition(" ")[2].strip() if by_kubernetes else ""
        return LoggedIn(identity.name, self._sessions.begin(identity, secret=secret))

    def log_out(self, headers: Message[str, str]) -> str:
        return self._sessions.end(headers)

    def _by_session(self, state: DoorState, peer: str, headers: Message[str, str]) -> Viewer | Refusal | None:
        shown = self._sessions.find(headers)
        if shown is None:
            return None
        now = self._credentials.stands(shown, peer, config=state.config, tokens=state.tokens)
        if now is None:
            self._sessions.end(headers)
            return Refusal(401, ENDED, self._challenges(headers))
        return now if isinstance(now, Refusal) else self._viewer(now, by_session=True)

    def _challenges(self, headers: Message[str, str]) -> tuple[tuple[str, str], ...]:
        """The challenges to a client that shows nothing. A script of a page gets none that a browser answers with a box
        of its own, where there is a page to log in."""
        every = self._credentials.challenges()
        in_a_page = "X-Requested-With" in headers or headers.get("Sec-Fetch-Mode", "navigate") != "navigate"
        if in_a_page and offers_login_page(self.login_methods()):
            return tuple(one for one in every if one != BASIC)
        return every

    def _asks_names(self, state: DoorState) -> bool:
        return state.asks_names or self._beside != FILES_ALONE

    def _is_too_many(self) -> bool:
        if self._requests is None:
            return False
        with self._lock:
            return not self._requests.take(self._monotonic_s())

    def _viewer(self, identity: Identity, *, by_session: bool = False) -> Viewer:
        is_admin = not identity.roles.isdisjoint(self._admins)
        return Viewer(
            identity.name,
            sees_all=is_admin,
            reads_metrics=not identity.roles.isdisjoint(self._metrics_readers),
            by_session=by_session,
            rights=None if is_admin else identity.rights,
        )

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
                check_not_weaker(self.in_force, state, self._settings, asks_anyway=self._beside != FILES_ALONE)
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


def offers_login_page(methods: frozenset[LoginMethod]) -> bool:
    """Whether browsers are led to the page to log in: passwords alone they ask for themselves, a proxy asks before."""
    return not methods <= {LoginMethod.PASSWORD, LoginMethod.PROXY}
