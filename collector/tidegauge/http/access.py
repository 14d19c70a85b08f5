"""Access to an HTTP server of Tidegauge: viewers, refusals, and the protocol of the door that guards the server.

``tidegauge.http.door`` implements it; without settings for it, ``OPEN_DOOR`` admits everybody.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
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


class Door(Protocol):
    """Guards a server. Every method is called from threads of connections, and at most reads files."""

    def tls(self) -> Optional[ssl.SSLContext]:
        """The TLS context for the next connection, if any. Raises ``OSError`` to close the connection silently."""

    def check_client(self, connection: ssl.SSLSocket) -> None:
        """Check the client's certificate after the handshake. Raises ``ssl.SSLError`` if it is not accepted."""

    def admit(self, authorization: Optional[str], peer: str) -> Union[Viewer, Refusal]:
        """Admit or refuse by the request's ``Authorization`` header and the client's address."""

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


class OpenDoor:
    """``WatchedDoor`` without TLS or names."""

    headers: tuple[tuple[str, str], ...] = ()
    scheme = "http"

    def tls(self) -> Optional[ssl.SSLContext]:
        return None

    def check_client(self, connection: ssl.SSLSocket) -> None:
        """Never called: there is no TLS."""

    def admit(self, authorization: Optional[str], peer: str) -> Union[Viewer, Refusal]:  # noqa: ARG002 - the port's
        return EVERYBODY

    def problem(self) -> Optional[DoorProblem]:
        return None


OPEN_DOOR = OpenDoor()


def split_scheme(address: str) -> tuple[str, str]:
    """Scheme and ``host:port`` of an announced ``/metrics`` address, ``host:port`` or ``https://host:port``."""
    scheme, separator, rest = address.partition("://")
    return (scheme, rest) if separator else ("http", address)
