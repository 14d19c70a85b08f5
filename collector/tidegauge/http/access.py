"""Access to an HTTP server of Tidegauge: viewers, refusals, and the protocol of the door that guards the server.

``tidegauge.http.door`` implements it; without settings for it, ``OPEN_DOOR`` admits everybody.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from email.message import Message
from enum import Enum
from typing import NamedTuple, Optional, Protocol, Union


@dataclass(frozen=True)
class Viewer:
    """An admitted client, and what it may see."""

    name: Optional[str]
    """``None``: nobody was asked for a name."""
    sees_all: bool
    """Jobs, incidents, decisions and evidence of everybody."""
    reads_metrics: bool
    """``/metrics`` and ``/sd``, which tell of all jobs."""
    by_session: bool = False
    """Known by the cookie of a login, which a logout ends."""
    speaks_for_others: bool = False
    """It may say that another person asked for something, with that person's rights: the head's own socket alone."""

    def sees(self, user_name: Optional[str]) -> bool:
        """Whether the viewer may see a thing of ``user_name``, its owner as kernel or scheduler name it."""
        return self.sees_all or (self.name is not None and self.name == user_name)

    @property
    def only(self) -> Optional[str]:
        """The one user whose things the viewer may see; ``None``: those of all users."""
        return None if self.sees_all else self.name or ""


EVERYBODY = Viewer(None, sees_all=True, reads_metrics=True)
"""Where nobody is asked for a name: whoever reaches the port sees what it serves."""


class Refusal(NamedTuple):
    """The reason why a request is refused."""

    status: int
    """HTTP's, 400 or more."""
    text: str
    """A sentence for people. Quotes nothing of the request."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DoorProblem:
    """Why the authentication files are not in effect as they are now. Quotes none of their contents."""

    closed: bool
    """Nothing is served; false: the files' last good state stays in force."""
    file: Optional[str]
    """The one that a setting names; what it names in turn, a certificate say, is in ``text``. ``None``: untold."""
    text: str
    """What is wrong, and with which file."""
    advice: str
    """What to do next."""


class LoginMethod(str, Enum):
    """A way in which clients say who they are."""

    TOKEN = "token"
    """A line of ``api_tokens_file``."""
    PASSWORD = "password"
    """One of ``basic_auth_users``."""
    MUNGE = "munge"
    """A credential of this cluster's MUNGE."""
    KUBERNETES = "kubernetes"
    """A bearer token of the Kubernetes cluster."""
    PROXY = "proxy"
    """A header of a trusted proxy: nobody logs in here by it."""


class LoggedIn(NamedTuple):
    """A login that succeeded."""

    name: str
    cookie: str
    """The value of ``Set-Cookie``."""


NO_HEADERS: Message[str, str] = Message()
"""Of a client that shows nothing but ``Authorization``."""
NOBODY_ASKED = "this service asks nobody for a name: there is nothing to log in to"


class Door(Protocol):
    """Guards a server. Every method is called from threads of connections, and at most reads files."""

    def tls(self) -> Optional[ssl.SSLContext]:
        """The TLS context for the next connection, if any. Raises ``OSError`` to close the connection silently."""

    def check_client(self, connection: ssl.SSLSocket) -> None:
        """Check the client's certificate after the handshake. Raises ``ssl.SSLError`` if it is not accepted."""

    def admit(
        self, authorization: Optional[str], peer: str, headers: Message[str, str] = NO_HEADERS
    ) -> Union[Viewer, Refusal]:
        """Admit or refuse by the request's ``Authorization`` header, the client's address, and all headers: a proxy's
        word or the cookie of a login."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Default headers of all responses; a response may have stronger ones."""

    @property
    def scheme(self) -> str:
        """``http`` or ``https``, for as long as the server runs."""


class WatchedDoor(Door, Protocol):
    """A door that can report a problem with its files, for the status of the service."""

    def problem(self) -> Optional[DoorProblem]:
        """The present problem with the files, also if nobody has connected since they changed."""


class LoginDoor(WatchedDoor, Protocol):
    """A door that browsers can log in at."""

    def login_methods(self) -> frozenset[LoginMethod]:
        """The ways in that are on; none: nobody is asked for a name."""

    def log_in(self, authorization: str, peer: str, headers: Message[str, str]) -> Union[LoggedIn, Refusal]:
        """Begin a session for whoever shows this ``Authorization``; the session that ``headers`` show ends."""

    def log_out(self, headers: Message[str, str]) -> str:
        """End the session that ``headers`` show, if any; returns the ``Set-Cookie`` that removes its cookie."""


class OpenDoor:
    """``LoginDoor`` without TLS or names."""

    headers: tuple[tuple[str, str], ...] = ()
    scheme = "http"

    def tls(self) -> Optional[ssl.SSLContext]:
        return None

    def check_client(self, connection: ssl.SSLSocket) -> None:
        """Never called: there is no TLS."""

    def admit(
        self,
        authorization: Optional[str],  # noqa: ARG002 - the port's
        peer: str,  # noqa: ARG002 - the port's
        headers: Message[str, str] = NO_HEADERS,  # noqa: ARG002 - the port's
    ) -> Union[Viewer, Refusal]:
        return EVERYBODY

    def login_methods(self) -> frozenset[LoginMethod]:
        return frozenset()

    def log_in(self, authorization: str, peer: str, headers: Message[str, str]) -> Union[LoggedIn, Refusal]:  # noqa: ARG002
        return Refusal(403, NOBODY_ASKED)

    def log_out(self, headers: Message[str, str]) -> str:  # noqa: ARG002 - the port's
        return ""

    def problem(self) -> Optional[DoorProblem]:
        return None


OPEN_DOOR = OpenDoor()


def split_scheme(address: str) -> tuple[str, str]:
    """Scheme and ``host:port`` of an announced ``/metrics`` address, ``host:port`` or ``https://host:port``."""
    scheme, separator, rest = address.partition("://")
    return (scheme, rest) if separator else ("http", address)
