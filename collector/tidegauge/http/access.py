"""Access to an HTTP server of Tidegauge: viewers, refusals, and the protocol of the door that guards the server.

``tidegauge.http.door`` implements it; without settings for it, ``OPEN_DOOR`` admits everybody.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from email.message import Message
from enum import Enum
from typing import NamedTuple, Optional, Protocol, Union

from tidegauge.core.jobs.kubernetes import NamespaceScope


class RightsUnknownError(Exception):
    """What somebody may is not known now; the message says why, in words for them."""


class NotAllowedError(Exception):
    """Somebody sees a thing, but may not act on it; the message says what they lack."""


class NamespaceRights(Protocol):
    """What a user of a Kubernetes cluster may there, as its API server says. Every call ends within seconds."""

    def reads_all(self) -> bool:
        """Jobs of all namespaces. Raises ``RightsUnknownError``."""

    def reads_metrics(self) -> bool:
        """``/metrics``, which tells of all jobs. Raises ``RightsUnknownError``."""

    def readable(self, namespaces: Collection[str], /) -> tuple[frozenset[str], int]:
        """Those of ``namespaces`` whose jobs the user may read, and of how many this is not known yet. Raises
        ``RightsUnknownError`` where nothing is known of any."""

    def may_change(self, namespace: str, /) -> bool:
        """Jobs of this namespace; of all namespaces: an empty name. Raises ``RightsUnknownError``."""


Owned = Union[str, NamespaceScope]
"""Whose things: those of one owner, or of an owner and of namespaces."""


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
    rights: Optional[NamespaceRights] = field(default=None, compare=False, repr=False)
    """Of a user of Kubernetes who is no admin by name; ``None``: the name alone decides."""
    namespaces: frozenset[str] = frozenset()
    """Whose jobs the viewer may read by ``rights``."""
    unchecked: int = 0
    """Namespaces left out, because ``rights`` did not tell in time."""
    sees_own: bool = True
    """What the viewer owns, too; false: the jobs of ``namespaces`` alone."""

    def sees(self, user_name: Optional[str], job_id: str) -> bool:
        """Whether the viewer may see a thing of this job and ``user_name``, its owner as kernel or scheduler name
        it."""
        if self.sees_all:
            return True
        if self._is_by_name:
            return self.name is not None and self.name == user_name
        return self._scope.covers(user_name, job_id)

    def check_may_act(self, user_name: Optional[str], job_id: str) -> None:
        """For a viewer who sees the job. Raises ``NotAllowedError`` where they may not say what is done about it, and
        ``RightsUnknownError``."""
        if self.rights is None or self.as_owner.sees(user_name, job_id):
            return
        namespace = job_id.rpartition("/")[0]
        if not self.rights.may_change(namespace):
            where = f"in namespace {namespace}" if namespace else "in all namespaces"
            raise NotAllowedError(f"{NO_ACTS} {where}")

    @property
    def as_owner(self) -> Viewer:
        """The same viewer as one who may see what is theirs by name alone."""
        return replace(self, sees_all=False, namespaces=frozenset(), sees_own=True) if self.rights is not None else self

    def with_rights(self, namespaces: Collection[str]) -> Viewer:
        """The same viewer with what ``rights`` tell, about these namespaces too. Raises ``RightsUnknownError``."""
        if self.rights is None:
            return self
        reads_metrics = self.reads_metrics or self.rights.reads_metrics()
        if self.rights.reads_all():
            return replace(self, sees_all=True, reads_metrics=reads_metrics)
        readable, unchecked = self.rights.readable(namespaces)
        return replace(self, reads_metrics=reads_metrics, namespaces=readable, unchecked=unchecked)

    def narrowed(self, namespace: str) -> Viewer:
        """The same viewer, who wants to see the jobs of this namespace alone."""
        seen = frozenset({namespace}) if self.sees_all or namespace in self.namespaces else frozenset()
        return replace(self, sees_all=False, namespaces=seen, sees_own=False)

    @property
    def is_admin(self) -> bool:
        """An admin of this service, whose word counts more than an owner's: whoever may read all jobs of a Kubernetes
        cluster is none by that."""
        return self.sees_all and self.rights is None

    @property
    def only(self) -> Optional[Owned]:
        """Whose things alone the viewer may see; ``None``: those of all users."""
        if self.sees_all:
            return None
        return (self.name or "") if self._is_by_name else self._scope

    @property
    def seen_as(self) -> Optional[str]:
        """The same in words, for people who miss something in a list."""
        if self.sees_all or self._is_by_name:
            return None if self.sees_all else self.name or ""
        left_out = f"; {self.unchecked} {LEFT_OUT}" if self.unchecked else ""
        where = f"{len(self.namespaces)} namespaces" if self.sees_own else ", ".join(self.namespaces) or "no namespace"
        return f"{self.name} (here with the jobs of {where}{left_out})"

    @property
    def _is_by_name(self) -> bool:
        return self.rights is None and self.sees_own

    @property
    def _scope(self) -> NamespaceScope:
        return NamespaceScope((self.name or "") if self.sees_own else "", self.namespaces)


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


LEFT_OUT = (
    "namespaces are left out: the Kubernetes API server has not said yet whether you may read their jobs; ask again in "
    "some seconds"
)
NO_ACTS = (
    "you may see this job, but not act on it: that takes its owner (annotation tidegauge.dev/owner), or the right to "
    "`patch` on jobs.batch"
)
SHOWN_HEADER = "Tidegauge-Authorization"
"""What ``Authorization`` says, where there is none: the proxy of a Kubernetes API server takes that one for itself."""
NAMESPACE_HEADER = "Tidegauge-Namespace"
"""Of a request to read, that wants to see the jobs of this namespace of Kubernetes alone."""
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
