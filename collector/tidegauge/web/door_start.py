"""How the door begins: open, by files, or closed until its files can be used; and what it leaves open to others."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tidegauge.settings import Settings
from tidegauge.web.access import OPEN_DOOR, DoorProblem, Refusal, Viewer, WatchedDoor
from tidegauge.web.door import WebDoor
from tidegauge.web.door_files import WITHOUT_FILES, DoorFileError, DoorSettings, DoorState, read_door_files

log = logging.getLogger(__name__)

TRY_AGAIN_S = 1.0
"""How often files that could not be used at the start are read again, while somebody knocks."""
MEND_CLOSED = "mend it: pages are served again as soon as it can be used, without a restart"


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
        self._refuse(problem, file)
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
        door = self._tried()
        return self._problem if door is None else door.problem()

    def _opened(self) -> WebDoor:
        """Raises ``ConnectionRefusedError`` as long as the files cannot be used."""
        door = self._tried()
        if door is None:
            raise ConnectionRefusedError(self._problem.text)
        return door

    def _tried(self) -> WebDoor | None:
        """The door by files, as soon as they can be used."""
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
            self._door = WebDoor(self._settings)
        except DoorFileError as error:
            if self._problem.text != str(error):
                log.error("nothing is served over HTTP: %s", error)
            self._refuse(str(error), error.file)
        else:
            log.info("HTTP is served again, over %s", self._door.scheme)


def open_door(settings: Settings, *, what: str, asks_names: bool = True) -> WatchedDoor:
    """As the settings have it; what it leaves open is said in the log. Never raises: see ``ClosedDoor``.

    ``what``: the server, for the log; ``asks_names``: whether it does, where the settings have names.
    """
    wanted = DoorSettings.of(settings)
    if wanted.is_open:
        if asks_names:
            _warn(_opening(settings.listen_host, what, WITHOUT_FILES))
        return OPEN_DOOR
    try:
        door = WebDoor(wanted)
    except DoorFileError as error:
        log.error("%s answers nobody: %s", what, error)
        return ClosedDoor(wanted, str(error), file=error.file)
    if asks_names:
        _warn(_opening(settings.listen_host, what, door.in_force))
    return door


def check_door(settings: Settings) -> None:
    """Raises ``DoorFileError`` for files that cannot be used, before anything is started."""
    wanted = DoorSettings.of(settings)
    if not wanted.is_open:
        read_door_files(wanted)


def what_is_open(settings: Settings, *, what: str) -> str | None:
    """What others can do at a server with these settings, and what closes it; ``None``: nothing to warn of.

    ``what``: the server. Raises ``DoorFileError`` for files that cannot be used.
    """
    wanted = DoorSettings.of(settings)
    return _opening(settings.listen_host, what, WITHOUT_FILES if wanted.is_open else read_door_files(wanted)[0])


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _warn(opening: str | None) -> None:
    if opening is not None:
        log.warning("%s", opening)


def _opening(host: str, what: str, state: DoorState) -> str | None:
    if is_loopback(host):
        return None
    tls = state.config.tls
    if not state.asks_names:
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
