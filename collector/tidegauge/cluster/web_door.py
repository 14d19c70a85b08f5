"""What stands before the HTTP servers: TLS, names and headers, from files that are read again when they change.

exporter-toolkit reads its file at every request; here its signature is looked at, which is cheaper and means the same.
What cannot be used while the servers run is said once, and the last good state stays in force: nobody is let in, and
nobody is locked out, by half a file. Whether there is TLS, and whether names are asked for, is decided at the start.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegauge.agent.settings import Settings
from tidegauge.cluster.web_config import WebConfig, WebConfigError, parse_web_config
from tidegauge.cluster.web_passwords import Bucket, Password, Passwords
from tidegauge.cluster.web_tls import certificate_files, check_client, server_context
from tidegauge.cluster.web_tokens import ApiToken, name_of, read_tokens
from tidegauge.core.web_access import EVERYBODY, OPEN_DOOR, DoorProblem, Refusal, Viewer, WatchedDoor
from tidegauge_exporter.notify.secrets import SecretError

log = logging.getLogger(__name__)

CHALLENGE = (("WWW-Authenticate", 'Basic realm="tidegauge", charset="UTF-8"'), ("WWW-Authenticate", "Bearer"))
WHO = "say who you are: a token (Authorization: Bearer) or a name and password; see docs/web_access.md"
UNKNOWN = "this token, or this name and password, is not known here"
LATER = "too many passwords were tried: try again in some seconds, or use a token"
TOO_MANY = "too many requests, as the web configuration's rate_limit has it"
LONGEST_HEADER = 4096
BROKEN_AGAIN_S = 5.0
"""How often files that broke while the service runs are read again, unless they change: what they name may be there by
now. In between nobody who knocks, of whom nothing is known yet, makes the service read a file."""
TRY_AGAIN_S = 1.0
"""How often files that could not be used at the start are read again, while somebody knocks."""
MEND_CLOSED = "mend it: pages are served again as soon as it can be used, without a restart"
MEND_BROKEN = "mend it: it is read again by itself; a restart of the service before that would close its pages"
UNDO = "put it back as it was, or, if this is meant, restart the service (`tidegauge down`, `tidegauge up`)"


class DoorFileError(WebConfigError):
    """One of a door's files cannot be used."""

    def __init__(self, message: str, file: Path, *, advice: str = MEND_BROKEN) -> None:
        super().__init__(message)
        self.file = file
        """As the settings name it."""
        self.advice = advice
        """What to do next while the last good state is in force."""


@dataclass(frozen=True)
class DoorSettings:
    """What of the settings is about who may come in."""

    web_config_file: Path | None = None
    tokens_file: Path | None = None
    admins: frozenset[str] = frozenset()
    metrics_readers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> DoorSettings:
        return cls(
            settings.web_config_file, settings.api_tokens_file, _names(settings.api_admins),
            _names(settings.metrics_readers),
        )  # fmt: skip

    @property
    def is_open(self) -> bool:
        """Nothing is asked of anybody."""
        return self.web_config_file is None and self.tokens_file is None


@dataclass(frozen=True)
class _State:
    """All files as they were when they were last good."""

    config: WebConfig
    context: ssl.SSLContext | None
    tokens: tuple[ApiToken, ...]
    asks_names: bool


_NOTHING = _State(WebConfig(), None, (), asks_names=False)
"""Without files."""

_Signature = tuple[tuple[str | int, ...], ...]


class WebDoor:
    """``WatchedDoor`` by files. Thread-safe."""

    def __init__(self, settings: DoorSettings, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Raises ``DoorFileError`` if a file cannot be used."""
        self._settings = settings
        self._passwords = Passwords(monotonic_s=monotonic_s)
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._problem: DoorProblem | None = None
        self._broken: tuple[_Signature, float] | None = None
        """Files that could not be used, and when they were read."""
        self._state, self._signature = _read(settings)
        self._scheme = "http" if self._state.context is None else "https"
        rate = self._state.config.rate_limit
        self._requests = None if rate is None else Bucket(rate.burst, rate.interval_s, monotonic_s())

    @property
    def scheme(self) -> str:
        return self._scheme

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return self._state.config.headers

    def tls(self) -> ssl.SSLContext | None:
        return self._latest().context

    def problem(self) -> DoorProblem | None:
        self._latest()
        return self._problem

    def opening(self, host: str, what: str) -> str | None:
        """What others can do at a server ``what`` on ``host``, and what closes it; ``None``: nothing to warn of."""
        return _opening(host, what, self._state)

    def check_client(self, connection: ssl.SSLSocket) -> None:
        tls = self._state.config.tls
        check_client(connection, None if tls is None else tls.client_allowed_sans)

    def admit(self, authorization: str | None, peer: str) -> Viewer | Refusal:
        state = self._latest()
        if self._requests is not None:
            with self._lock:
                if not self._requests.take(self._monotonic_s()):
                    return Refusal(429, TOO_MANY)
        if not state.asks_names:
            return EVERYBODY
        scheme, _, shown = (authorization or "")[:LONGEST_HEADER].partition(" ")
        if scheme.lower() == "bearer":
            name = name_of(shown.strip(), state.tokens)
            return Refusal(401, UNKNOWN, CHALLENGE) if name is None else self._viewer(name)
        if scheme.lower() == "basic":
            return self._by_password(state, shown, peer)
        return Refusal(401, WHO, CHALLENGE)

    def _by_password(self, state: _State, shown: str, peer: str) -> Viewer | Refusal:
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
        is_admin = name in self._settings.admins
        return Viewer(name, sees_all=is_admin, reads_metrics=is_admin or name in self._settings.metrics_readers)

    def _latest(self) -> _State:
        """Read again what has changed, by one thread at a time."""
        with self._lock:
            signature = _signature(self._settings, self._state.config)
            if signature == self._signature:
                self._broken = self._problem = None
                return self._state
            if self._is_known_broken(signature):
                return self._state
            self._broken = signature, self._monotonic_s()
            try:
                state, signature = _read(self._settings)
                _check_not_weaker(self._state, state, self._settings)
            except DoorFileError as error:
                if self._problem is None or str(error) != self._problem.text:
                    log.error("%s; what was in force before stays so", error)
                self._problem = DoorProblem(False, str(error.file), str(error), error.advice)
                return self._state
            self._state, self._signature, self._problem, self._broken = state, signature, None, None
            log.info("who may come in to the HTTP servers was read again")
            return state

    def _is_known_broken(self, signature: _Signature) -> bool:
        if self._broken is None or self._broken[0] != signature:
            return False
        return self._monotonic_s() - self._broken[1] < BROKEN_AGAIN_S


class ClosedDoor:
    """``WatchedDoor`` for files that cannot be used at the start: until they can, it closes connections without a word.

    An exporter of Prometheus would not start at all; a coordinator has more to do than to serve pages.
    """

    def __init__(
        self, settings: DoorSettings, problem: str, *, file: Path | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``problem``: of which ``file``, as it was when the door was made."""
        self._settings = settings
        self._problem, self._file = problem, file
        self._lock = threading.Lock()
        self._monotonic_s = monotonic_s
        self._tried_s = monotonic_s()
        self._door: WebDoor | None = None

    @property
    def scheme(self) -> str:
        """``https`` while it is not known: nobody is to send a password in the clear meanwhile."""
        return "https" if self._door is None else self._door.scheme

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return () if self._door is None else self._door.headers

    def tls(self) -> ssl.SSLContext | None:
        return self._opened().tls()

    def check_client(self, connection: ssl.SSLSocket) -> None:
        self._opened().check_client(connection)

    def admit(self, authorization: str | None, peer: str) -> Viewer | Refusal:
        return self._opened().admit(authorization, peer)

    def problem(self) -> DoorProblem | None:
        with self._lock:
            if self._door is None:
                self._try()
            if self._door is None:
                file = None if self._file is None else str(self._file)
                return DoorProblem(True, file, self._problem, MEND_CLOSED)
            door = self._door
        return door.problem()

    def _opened(self) -> WebDoor:
        """Raises ``ConnectionRefusedError`` as long as the files cannot be used."""
        with self._lock:
            if self._door is None:
                self._try()
            if self._door is None:
                raise ConnectionRefusedError(self._problem)
            return self._door

    def _try(self) -> None:
        now_s = self._monotonic_s()
        if now_s - self._tried_s < TRY_AGAIN_S:
            return
        self._tried_s = now_s
        try:
            self._door = WebDoor(self._settings)
        except DoorFileError as error:
            if self._problem != str(error):
                log.error("nothing is served over HTTP: %s", error)
            self._problem, self._file = str(error), error.file
        else:
            log.info("HTTP is served again, over %s", self._door.scheme)


def open_door(settings: Settings, *, what: str, asks_names: bool = True) -> WatchedDoor:
    """As the settings have it; what it leaves open is said in the log. Never raises: see ``ClosedDoor``.

    ``what``: the server, for the log; ``asks_names``: whether it does, where the settings have names.
    """
    wanted = DoorSettings.of(settings)
    if wanted.is_open:
        if asks_names:
            _warn(_opening(settings.listen_host, what, _NOTHING))
        return OPEN_DOOR
    try:
        door = WebDoor(wanted)
    except DoorFileError as error:
        log.error("%s answers nobody: %s", what, error)
        return ClosedDoor(wanted, str(error), file=error.file)
    if asks_names:
        _warn(door.opening(settings.listen_host, what))
    return door


def check_door(settings: Settings) -> None:
    """Raises ``DoorFileError`` for files that cannot be used, before anything is started."""
    wanted = DoorSettings.of(settings)
    if not wanted.is_open:
        _read(wanted)


def what_is_open(settings: Settings, *, what: str) -> str | None:
    """What others can do at a server with these settings, and what closes it; ``None``: nothing to warn of.

    ``what``: the server. Raises ``DoorFileError`` for files that cannot be used.
    """
    wanted = DoorSettings.of(settings)
    return _opening(settings.listen_host, what, _NOTHING if wanted.is_open else _read(wanted)[0])


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _warn(opening: str | None) -> None:
    if opening is not None:
        log.warning("%s", opening)


def _opening(host: str, what: str, state: _State) -> str | None:
    if is_loopback(host):
        return None
    tls = state.config.tls
    if not state.asks_names:
        only_certificates = tls is not None and tls.client_certificate == "required"
        who = "has a client certificate" if only_certificates else "reaches it"
        remedy = (
            "Set web_config_file or api_tokens_file (docs/web_access.md), as by --set web_config_file=FILE"
            if state is _NOTHING
            else "Set basic_auth_users in web_config_file, or api_tokens_file (docs/web_access.md)"
        )
        return f"{what} listens on {host} and asks nobody for a name: whoever {who} sees everybody's jobs. {remedy}"
    if tls is None:
        return (
            f"{what} listens on {host} without TLS: tokens and passwords travel in the clear. Set tls_server_config in "
            "web_config_file (docs/web_access.md)"
        )
    return None


def _names(text: str | None) -> frozenset[str]:
    return frozenset(name for name in (part.strip() for part in (text or "").split(",")) if name)


def _read(settings: DoorSettings) -> tuple[_State, _Signature]:
    """Raises ``DoorFileError``."""
    config, context = WebConfig(), None
    tokens: tuple[ApiToken, ...] = ()
    file, before = settings.web_config_file, _signature(settings, config)
    if file is not None:
        try:
            config = parse_web_config(_text(file))
            before += _signature(settings, config)[len(before) :]
            context = None if config.tls is None else server_context(config.tls, file.parent)
        except WebConfigError as error:
            raise DoorFileError(f"web_config_file {file}: {error}", file) from None
    if settings.tokens_file is not None:
        try:
            tokens = read_tokens(settings.tokens_file)
        except SecretError as error:
            raise DoorFileError(f"api_tokens_file: {error}", settings.tokens_file) from None
    # Taken before the files were read: what changed meanwhile is read again.
    return _State(config, context, tokens, bool(config.users) or settings.tokens_file is not None), before


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise WebConfigError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WebConfigError("it is no text") from None


def _check_not_weaker(old: _State, new: _State, settings: DoorSettings) -> None:
    """A file that was emptied by mistake must not open the door. Raises ``DoorFileError``."""
    file = settings.web_config_file
    if file is None:
        return  # tokens alone switch neither
    if (old.context is None) is not (new.context is None):
        changed = "TLS was switched on or off"
    elif old.asks_names and not new.asks_names:
        changed = "it has no basic_auth_users any more"
    else:
        return
    raise DoorFileError(f"web_config_file {file}: {changed}, which takes a restart of the service", file, advice=UNDO)


def _signature(settings: DoorSettings, config: WebConfig) -> _Signature:
    """Changes when one of the files does. Follows links: that is how Kubernetes replaces mounted secrets."""
    files = [file for file in (settings.web_config_file, settings.tokens_file) if file is not None]
    if config.tls is not None and settings.web_config_file is not None:
        files += certificate_files(config.tls, settings.web_config_file.parent)
    return tuple(_file_signature(file) for file in files)


def _file_signature(file: Path) -> tuple[str | int, ...]:
    """With mode and owner: a file of tokens that others may read from now on is to be noticed."""
    try:
        status = os.stat(file)
    except OSError:
        return (str(file),)
    return (
        str(file), status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode, status.st_uid, status.st_gid,
    )  # fmt: skip
