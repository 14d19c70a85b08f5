"""Opens the door at the start: for all, by files, or once its files can be used; warns of what it leaves open."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from email.message import Message
from pathlib import Path

from tidegauge.http.access import (
    NO_HEADERS,
    OPEN_DOOR,
    DoorProblem,
    LoggedIn,
    LoginDoor,
    LoginMethod,
    Refusal,
    Viewer,
)
from tidegauge.http.credentials import FILES_ALONE, BesideFiles
from tidegauge.http.door import WebDoor
from tidegauge.http.door_files import WITHOUT_FILES, DoorFileError, DoorState, read_door_files
from tidegauge.http.loopback import is_loopback
from tidegauge.settings import Settings

log = logging.getLogger(__name__)

TRY_AGAIN_S = 1.0
"""How often files that could not be used at the start are read again, while somebody knocks."""
MEND_CLOSED = "mend it: pages are served again as soon as it can be used, without a restart"


class ClosedDoor:
    """Implements ``LoginDoor`` for files that are unusable at the start: until they are usable, it closes connections
    silently.

    An exporter of Prometheus would not start at all; a coordinator has more to do than to serve pages.
    """

    def __init__(
        self, settings: Settings, problem: str, *, file: Path | None = None, beside: BesideFiles = FILES_ALONE,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``problem`` and ``file``: the error at the start."""
        self._settings = settings
        self._beside = beside
        self._refuse(problem, file)
        self._lock = threading.Lock()
        self._monotonic_s = monotonic_s
        self._tried_s = monotonic_s()
        self._door: WebDoor | None = None

    @property
    def scheme(self) -> str:
        """``https`` while it is unknown, so that nobody sends a password in the clear."""
        return "https" if self._door is None else self._door.scheme

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return () if self._door is None else self._door.headers

    def tls(self) -> ssl.SSLContext | None:
        return self._opened().tls()

    def check_client(self, connection: ssl.SSLSocket) -> None:
        self._opened().check_client(connection)

    def admit(self, authorization: str | None, peer: str, headers: Message[str, str] = NO_HEADERS) -> Viewer | Refusal:
        return self._opened().admit(authorization, peer, headers)

    def login_methods(self) -> frozenset[LoginMethod]:
        door = self._tried()
        return frozenset() if door is None else door.login_methods()

    def log_in(self, authorization: str, peer: str, headers: Message[str, str]) -> LoggedIn | Refusal:
        return self._opened().log_in(authorization, peer, headers)

    def log_out(self, headers: Message[str, str]) -> str:
        return self._opened().log_out(headers)

    def problem(self) -> DoorProblem | None:
        door = self._tried()
        return self._problem if door is None else door.problem()

    def _opened(self) -> WebDoor:
        """Raises ``ConnectionRefusedError`` while the files cannot be used."""
        door = self._tried()
        if door is None:
            raise ConnectionRefusedError(self._problem.text)
        return door

    def _tried(self) -> WebDoor | None:
        """The door by files, once they can be used."""
        with self._lock:
            if self._door is None:
                self._try()
            return self._door

    def _refuse(self, problem: str, file: Path | None) -> None:
        self._problem = DoorProblem(True, None if file is None else str(file), problem, MEND_CLOSED)

    def _try(self) -> None:
        now_s = self._monotonic_s()
        if now_s - self._tried_s < TRY_AGAIN_S:
            return
        self._tried_s = now_s
        try:
            self._door = WebDoor(self._settings, self._beside)
        except DoorFileError as error:
            if self._problem.text != str(error):
                log.error("nothing is served over HTTP: %s", error)
            self._refuse(str(error), error.file)
        else:
            log.info("HTTP is served again, over %s", self._door.scheme)


def open_door(
    settings: Settings, *, what: str, asks_names: bool = True, beside: BesideFiles = FILES_ALONE
) -> LoginDoor:
    """The door for these settings; logs what it leaves open. Never raises: see ``ClosedDoor``.

    ``what``: the server, for the log; ``asks_names``: whether it asks for names, if the settings have any; ``beside``:
    further ways in.
    """
    try:
        door = WebDoor(settings, beside)
    except DoorFileError as error:
        log.error("%s answers nobody: %s", what, error)
        return ClosedDoor(settings, str(error), file=error.file, beside=beside)
    opening = _opening(settings.listen_host, what, door.in_force, asks_anyway=beside != FILES_ALONE)
    if asks_names and opening is not None:
        log.warning("%s", opening)
    return OPEN_DOOR if door.in_force is WITHOUT_FILES and beside == FILES_ALONE else door


def what_is_open(settings: Settings, *, what: str) -> str | None:
    """A warning, with the remedy, if these settings leave the server ``what`` open. Raises ``DoorFileError``."""
    return _opening(settings.listen_host, what, read_door_files(settings)[0], asks_anyway=False)


def _opening(host: str, what: str, state: DoorState, *, asks_anyway: bool) -> str | None:
    if is_loopback(host):
        return None
    tls = state.config.tls
    if not state.asks_names and not asks_anyway:
        only_certificates = tls is not None and tls.client_certificate == "required"
        who = "has a client certificate" if only_certificates else "reaches it"
        remedy = (
            "Set web_config_file or api_tokens_file (docs/web_access.md), as by --set web_config_file=FILE"
            if state is WITHOUT_FILES
            else "Set basic_auth_users in web_config_file, or api_tokens_file (docs/web_access.md)"
        )
        return f"{what} listens on {host} and asks nobody for a name: whoever {who} sees everybody's jobs. {remedy}"
    if tls is None:
        return (
            f"{what} listens on {host} without TLS: tokens and passwords travel in the clear. Set tls_server_config in "
            "web_config_file (docs/web_access.md)"
        )
    return None
