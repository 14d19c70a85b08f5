"""Protocols of an API server for the adapter, the controller and the webhook. Objects are raw JSON.

Raw, because users' objects must come back as they were: generated models of the client drop or refuse fields that are
newer than they are. ``client`` implements them with the official client, as the only package that knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

Object = Mapping[str, Any]
"""One object as the API server writes it."""
FIELD_MANAGER = "tidegauge"
"""As ``managedFields`` calls head and controller."""


class Resource(NamedTuple):
    """A kind of objects. ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
WEBHOOKS = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False
)
JOBS = Resource("batch", "v1", "jobs", "Job")
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)


class Patch(str, Enum):
    """The type of a patch, by its content type."""

    MERGE = "application/merge-patch+json"
    """RFC 7386: ``None`` removes a key, lists are replaced."""
    JSON = "application/json-patch+json"
    """RFC 6902: operations; ``test`` makes the whole fail (422) where something else is there."""
    STRATEGIC = "application/strategic-merge-patch+json"
    """Kubernetes' own, for built-in kinds: lists are merged by their key."""
    APPLY = "application/apply-patch+yaml"
    """Server-side apply: all that Tidegauge has to say of the object; these fields are its own from then on."""


class ObjectNotFoundError(PermanentError):
    """404: no such object, or no such kind of objects (``kind_missing``: its CRD is not installed)."""

    def __init__(self, message: str, *, kind_missing: bool = False) -> None:
        super().__init__(message)
        self.kind_missing = kind_missing


class ConflictError(TemporaryError):
    """409: the object has changed (a stale resourceVersion), or is there already; 422: it is another one (a patch with
    a uid). Read again and decide."""


class ForbiddenError(PermanentError):
    """401 or 403: the role does not allow it."""


class InvalidError(PermanentError):
    """400 or 422: the API server refuses the object."""


class KubeApi(Protocol):
    """One API server. Every call ends within seconds, is limited in rate over all threads, and is repeated only where
    it cannot have had an effect (429, no connection).

    Raises the errors above; ``TemporaryError`` for 429, 5xx, no connection, no answer in time."""

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object: ...

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Sequence[Object]:
        """All pages. ``namespace=None``: of all namespaces."""

    def create(self, resource: Resource, namespace: str | None, body: Object) -> Object: ...

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        how: Patch = Patch.MERGE,
        subresource: str | None = None,
    ) -> Object:
        """The object afterwards. With ``metadata.resourceVersion`` in a merge patch it is changed only if it is still
        that version (``ConflictError``)."""

    def replace(self, resource: Resource, namespace: str | None, name: str, body: Object) -> Object:
        """PUT; ``ConflictError`` if ``body``'s resourceVersion is not the latest."""


class ObjectStore(Protocol):
    """The objects of one kind, kept up to date by a watch (``SharedInformer``). Thread-safe, never blocks."""

    def get(self, namespace: str | None, name: str) -> Object | None: ...

    def by_uid(self, uid: str) -> Object | None: ...

    def all(self) -> Sequence[Object]: ...

    @property
    def synced(self) -> bool:
        """Whether everything has been listed once, and the watch is not known to be broken for longer than a minute.
        Otherwise absence proves nothing."""

    @property
    def current(self) -> bool:
        """Whether its watch is open at this moment, so that what it shows is moments old."""

    @property
    def problem(self) -> str | None:
        """Why it is not synced, for people (no right to watch, no such kind, no connection)."""

    @property
    def kind_missing(self) -> bool:
        """Whether it is not synced because the API server does not know the kind (its CRD is not installed). A normal
        state, in which absence is certain; asked again every minute."""


class Watches(Protocol):
    """Stores, one per kind: made at the first call for it, running until ``close``."""

    def store(
        self,
        resource: Resource,
        *,
        label_selector: str | None = None,
        on_change: Callable[[Object, bool], None] | None = None,
    ) -> ObjectStore:
        """The same for the same arguments. ``on_change(object, deleted)`` is called for every object that is there, was
        changed, or went away; in the watch's thread, so it must be quick. Once more for all at each resync."""

    def close(self) -> None:
        """End all watches; returns within seconds."""
