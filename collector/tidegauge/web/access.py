"""Who may come in to an HTTP server of Tidegauge, and what they may see: values, and the port that servers call.

``tidegauge.web.door`` implements the port; without settings for it everybody comes in, as ``OPEN_DOOR`` has it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import NamedTuple, Optional, Protocol, Union


@dataclass(frozen=True)
class Viewer:
    """Who asks, once they were let in."""

    name: Optional[str]
    """``None``: nobody was asked for a name."""
    sees_all: bool
    """Jobs, incidents, decisions and evidence of everybody."""
    reads_metrics: bool
    """``/metrics`` and ``/sd``, which tell of all jobs."""

    def sees(self, user_name: Optional[str]) -> bool:
        """Whether what belongs to ``user_name``, as the kernel or the scheduler calls the owner, is theirs to see."""
        return self.sees_all or (self.name is not None and self.name == user_name)

    @property
    def only(self) -> Optional[str]:
        """The one user of whom they may see anything; ``None``: of all."""
        return None if self.sees_all else self.name or ""


EVERYBODY = Viewer(None, sees_all=True, reads_metrics=True)
"""Where nobody is asked for a name: whoever reaches the port sees what it serves."""


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    """HTTP's, 400 or more."""
    text: str
    """A sentence for people. Quotes nothing of the request."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DoorProblem:
    """Why the files that say who may come in do not count as they are now. Quotes nothing of what they hold."""

    closed: bool
    """Nothing is served; false: the files' last good state stays in force."""
    file: Optional[str]
    """The one that a setting names; what it names in turn, a certificate say, is in ``text``. ``None``: untold."""
    text: str
    """What is wrong, and with which file."""
    advice: str
    """What to do next."""


class Door(Protocol):
    """What stands before a server. Every method is called from the connections' threads, and reads files at most."""

    def tls(self) -> Optional[ssl.SSLContext]:
        """What the next connection is to be served with; ``None``: no TLS. Raises ``OSError`` while nothing can be
        served: the connection is then closed without a word."""

    def check_client(self, connection: ssl.SSLSocket) -> None:
        """Look at the certificate of a client whose handshake is done. Raises ``ssl.SSLError`` if it will not do."""

    def admit(self, authorization: Optional[str], peer: str) -> Union[Viewer, Refusal]:
        """By the request's ``Authorization`` header and the client's address."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Beside those that an answer has of its own, and before these."""

    @property
    def scheme(self) -> str:
        """``http`` or ``https``, for as long as the server runs."""


class WatchedDoor(Door, Protocol):
    """A door that whoever tells how the service is can ask."""

    def problem(self) -> Optional[DoorProblem]:
        """Looks whether the files can be used as they are now, also if nobody has come by since they changed."""


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
    """``host:port`` or ``https://host:port``, as a node announces its ``/metrics``, in scheme and ``host:port``."""
    scheme, separator, rest = address.partition("://")
    return (scheme, rest) if separator else ("http", address)
