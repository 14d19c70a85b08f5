"""Folders, data sources, dashboards and annotations of Grafana as values, and its refusals.

The messages of errors say what Grafana answered, at which address, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegauge_exporter.notify.ports import RefusedError

DashboardModel = Mapping[str, Any]
"""A dashboard in Grafana's classic JSON, with its ``uid``."""


class GrafanaRefusedError(RefusedError):
    """Grafana refused a request with the HTTP status ``status``."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_about_the_token(self) -> bool:
        """True if Grafana will refuse every other request as well."""
        return self.status in (401, 403)


class TakenError(GrafanaRefusedError):
    """The name is taken, or the thing was changed meanwhile (409, 412)."""


@dataclass(frozen=True)
class Folder:
    uid: str
    title: str


@dataclass(frozen=True)
class DataSource:
    uid: str
    name: str
    url: str
    """The address at which Grafana's server reaches it."""
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
    """A mark on every dashboard that asks for its tags; with an end, a region."""

    at_unix_ms: int
    end_unix_ms: int | None
    tags: tuple[str, ...]
    text: str
    """HTML, which Grafana sanitises before it shows it."""


class StoredAnnotation(NamedTuple):
    annotation_id: int
    at_unix_ms: int
    tags: frozenset[str]
