"""Grafana as this package needs it: a port, the values that cross it, and how it refuses.

``RetryLaterError`` and ``RefusedError`` are the notifier's: away for now, and not without a person. Their
messages say what Grafana said, at which address, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tidegauge_exporter.notify.ports import RefusedError

DashboardModel = Mapping[str, Any]
"""A dashboard in Grafana's classic JSON, with its ``uid``."""


class GrafanaRefusedError(RefusedError):
    """Grafana answered, and will not do it. ``status`` is HTTP's."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_about_the_token(self) -> bool:
        """Whether the next request will be refused just the same."""
        return self.status in (401, 403)


class TakenError(GrafanaRefusedError):
    """Something else has this name already, or was changed meanwhile (409, 412)."""


@dataclass(frozen=True)
class Folder:
    uid: str
    title: str


@dataclass(frozen=True)
class DataSource:
    uid: str
    name: str
    url: str
    """Where Grafana's server reaches it."""
    type: str = "prometheus"
    read_only: bool = False
    """Provisioned from a file: the API cannot change it."""


@dataclass(frozen=True)
class StoredDashboard:
    model: DashboardModel
    folder_uid: str
    """Empty for the folder General."""
    provisioned: bool = False
    """Comes from a file or a ConfigMap: the API cannot change it."""


@dataclass(frozen=True)
class Annotation:
    """A mark, or a region where there is an end, on every dashboard that asks for its tags."""

    at_unix_ms: int
    end_unix_ms: int | None
    tags: tuple[str, ...]
    text: str
    """HTML, which Grafana sanitises before it shows it."""


class StoredAnnotation(NamedTuple):
    annotation_id: int
    at_unix_ms: int
    tags: frozenset[str]


class GrafanaPort(Protocol):
    """One organisation of one Grafana. Every method raises ``RetryLaterError`` and ``GrafanaRefusedError``."""

    @property
    def url(self) -> str:
        """Where people reach it, without a slash at the end."""

    def version(self) -> str:
        """Of Grafana, ``unknown`` where it does not say; needs no token."""

    def folder(self, uid: str) -> Folder | None: ...

    def create_folder(self, folder: Folder) -> None: ...

    def data_source(self, uid: str) -> DataSource | None: ...

    def data_source_named(self, name: str) -> DataSource | None: ...

    def create_data_source(self, source: DataSource) -> None: ...

    def move_data_source(self, uid: str, *, url: str) -> None:
        """Give it another address and leave all else of it as it is."""

    def dashboard(self, uid: str) -> StoredDashboard | None: ...

    def save_dashboard(self, model: DashboardModel, *, folder_uid: str, overwrite: bool, message: str) -> None:
        """``message`` is for the list of versions. Without ``overwrite`` raises ``TakenError`` where there is one."""

    def annotations(self, *, tags: Sequence[str], at_unix_ms: int) -> Sequence[StoredAnnotation]:
        """Those that have all of these tags and go on at that moment."""

    def annotate(self, annotation: Annotation) -> int:
        """Returns its id."""

    def change_annotation(self, annotation_id: int, annotation: Annotation) -> bool:
        """Replace it by this one; ``False``: it is not there any more."""
