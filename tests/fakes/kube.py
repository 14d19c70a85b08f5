"""An API server in memory behind the ports ``KubeApi`` and ``Watches``: no network, no threads, no controllers.

Stores see every change at once, in the caller's thread, unless they are told to lag. What real servers do beyond that
(schemas, roles, admission, the Job controller) has ``tests/kube_emulator``.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from fakes.kube_patches import field_selected, patched, selected
from tidegauge_scheduler_hooks.kubernetes.ports import (
    ConflictError,
    InvalidError,
    Object,
    ObjectNotFoundError,
    Patch,
    Resource,
)

Answer = TypeVar("Answer")
OnChange = Callable[[Object, bool], None]
Key = tuple[str | None, str]
"""Namespace and name."""


class Call(NamedTuple):
    """One request."""

    verb: str
    """``get``, ``list``, ``create``, ``patch``, ``replace``."""
    kind: str
    namespace: str | None
    name: str
    body: Any = None
    subresource: str | None = None


class Fault(NamedTuple):
    error: BaseException
    verb: str | None
    kind: str | None
    answer_lost: bool


@dataclass
class FakeStore:
    """What ``FakeKube.store`` gives; ``problem`` may be set by a test."""

    resource: Resource
    label_selector: str | None
    on_change: OnChange | None
    problem: str | None = None
    kind_missing: bool = False
    _objects: dict[Key, Object] = field(default_factory=dict)

    def get(self, namespace: str | None, name: str) -> Object | None:
        return self._objects.get((namespace, name))

    def by_uid(self, uid: str) -> Object | None:
        return next((item for item in self._objects.values() if item["metadata"]["uid"] == uid), None)

    def all(self) -> Sequence[Object]:
        return list(self._objects.values())

    @property
    def synced(self) -> bool:
        return self.problem is None

    @property
    def current(self) -> bool:
        return self.problem is None

    def see(self, item: Object, *, deleted: bool) -> None:
        """An event of the watch: an object that does not match any more is a deleted one."""
        key = _key(item)
        gone = deleted or not selected(self.label_selector, item["metadata"].get("labels") or {})
        if gone and key not in self._objects:
            return
        if gone:
            del self._objects[key]
        else:
            self._objects[key] = item
        if self.on_change is not None:
            self.on_change(item, gone)

    def resync(self) -> None:
        """Everything once more."""
        for item in self.all():
            if self.on_change is not None:
                self.on_change(item, False)


class FakeKube:
    """``KubeApi`` and ``Watches``. ``now`` stamps objects that are made, in Unix seconds."""

    def __init__(self, *, now: Callable[[], float] = lambda: 1_700_000_000.0) -> None:
        self.calls: list[Call] = []
        """Every request, the failed ones too."""
        self.before_call: Callable[[Call], None] | None = None
        """Called before each request: may change objects behind the caller's back, or raise."""
        self.missing_kinds: set[str] = set()
        """Kinds whose CRD is not installed."""
        self._now = now
        self._objects: dict[Resource, dict[Key, Object]] = {}
        self._faults: list[Fault] = []
        self._stores: list[FakeStore] = []
        self._applied: dict[str, Any] = {}
        """The last server-side apply to an object, by its uid."""
        self._unseen: list[tuple[Resource, Object, bool]] | None = None
        self._version = 100
        self._uids = 0

    # For tests: what other people and controllers do. Not logged, never fails.

    def put(self, resource: Resource, body: Object) -> Object:
        """An object as it is, status included, made or overwritten; uid and times are added where it has none."""
        item: Any = copy.deepcopy(dict(body))
        metadata = item.setdefault("metadata", {})
        item = {"apiVersion": resource.api_version, "kind": resource.kind, **item}
        key = (metadata.get("namespace"), metadata["name"])
        before = self._of(resource).get(key)
        if "uid" not in metadata:
            self._uids += 1
            metadata["uid"] = before["metadata"]["uid"] if before else f"00000000-0000-4000-8000-{self._uids:012d}"
        if "creationTimestamp" not in metadata:
            metadata["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now()))
        return self._write(resource, item)

    def remove(self, resource: Resource, namespace: str | None, name: str) -> None:
        """The object goes away."""
        item = copy.deepcopy(dict(self._of(resource).pop((namespace, name))))
        item["metadata"]["resourceVersion"] = self._next_version()
        self._tell(resource, item, deleted=True)

    def peek(self, resource: Resource, namespace: str | None, name: str) -> Any:
        """A copy of the object as it is now. Raises ``KeyError``."""
        return copy.deepcopy(dict(self._of(resource)[namespace, name]))

    def fail_next(
        self, error: BaseException, *, verb: str | None = None, kind: str | None = None, answer_lost: bool = False
    ) -> None:
        """The next request (of this verb and kind) raises ``error``; with ``answer_lost`` after it has been done."""
        self._faults.append(Fault(error, verb, kind, answer_lost))

    def lag(self) -> None:
        """Stores see no changes until ``catch_up``."""
        self._unseen = []

    def catch_up(self) -> None:
        unseen, self._unseen = self._unseen or [], None
        for resource, item, deleted in unseen:
            self._show(resource, item, deleted)

    def called(self, verb: str, kind: str | None = None) -> list[Call]:
        """The requests with this verb, of this kind."""
        return [call for call in self.calls if call.verb == verb and kind in (None, call.kind)]

    # KubeApi

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        def do() -> Object:
            return copy.deepcopy(self._existing(resource, namespace, name))

        return self._answer(Call("get", resource.kind, namespace, name), do)

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Sequence[Object]:
        def do() -> Sequence[Object]:
            self._check_kind(resource)
            return [
                copy.deepcopy(item)
                for (of_namespace, _), item in self._of(resource).items()
                if namespace in (None, of_namespace)
                and selected(label_selector, item["metadata"].get("labels") or {})
                and field_selected(field_selector, item)
            ]

        selectors = [one for one in (label_selector, field_selector) if one is not None]
        return self._answer(Call("list", resource.kind, namespace, "", selectors), do)

    def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        item: Any = copy.deepcopy(dict(body))
        item.pop("status", None)
        metadata = item.setdefault("metadata", {})
        for made_by_server in ("uid", "creationTimestamp", "generation"):
            metadata.pop(made_by_server, None)
        name = metadata.get("name") or ""

        def do() -> Object:
            self._check_kind(resource)
            self._check_namespace(resource, namespace)
            if metadata.pop("resourceVersion", ""):
                raise InvalidError("resourceVersion should not be set on objects to be created")
            metadata["name"] = name or f"{metadata['generateName']}{self._version:05x}"
            if namespace is not None:
                metadata["namespace"] = namespace
            if (namespace, metadata["name"]) in self._of(resource):
                raise ConflictError(f'{resource.plural} "{name}" already exists')
            return copy.deepcopy(self.put(resource, item))

        return self._answer(Call("create", resource.kind, namespace, name, copy.deepcopy(dict(body))), do)

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
        def do() -> Object:
            if how is Patch.APPLY and subresource is None and (namespace, name) not in self._of(resource):
                # Without a uid a server would make the object.
                assert isinstance(patch, Mapping)
                raise ConflictError(f"uid mismatch: {patch['metadata']['uid']}, and no existing object was found")
            before = self._existing(resource, namespace, name)
            uid = before["metadata"]["uid"]
            after = patched(before, patch, how, applied=self._applied.get(uid))
            result = self._update(resource, before, after, subresource)
            if how is Patch.APPLY:
                self._applied[uid] = copy.deepcopy(patch)
            return result

        return self._answer(Call("patch", resource.kind, namespace, name, copy.deepcopy(patch), subresource), do)

    def replace(self, resource: Resource, namespace: str | None, name: str, body: Object) -> Object:
        def do() -> Object:
            return self._update(resource, self._existing(resource, namespace, name), copy.deepcopy(dict(body)), None)

        return self._answer(Call("replace", resource.kind, namespace, name, copy.deepcopy(dict(body))), do)

    # Watches

    def store(
        self, resource: Resource, *, label_selector: str | None = None, on_change: OnChange | None = None
    ) -> FakeStore:
        for store in self._stores:
            if (store.resource, store.label_selector, store.on_change) == (resource, label_selector, on_change):
                return store
        store = FakeStore(resource, label_selector, on_change)
        if resource.kind in self.missing_kinds:
            store.problem, store.kind_missing = f"{resource.kind} is not installed", True
        self._stores.append(store)
        for item in list(self._of(resource).values()):
            store.see(item, deleted=False)
        return store

    def resync(self) -> None:
        """As the watches do every few minutes."""
        for store in self._stores:
            store.resync()

    def close(self) -> None:
        self._stores.clear()

    def _answer(self, call: Call, do: Callable[[], Answer]) -> Answer:
        self.calls.append(call)
        if self.before_call is not None:
            self.before_call(call)
        fault = next(
            (one for one in self._faults if one.verb in (None, call.verb) and one.kind in (None, call.kind)), None
        )
        if fault is None:
            return do()
        self._faults.remove(fault)
        if fault.answer_lost:
            do()
        raise fault.error

    def _update(self, resource: Resource, before: Object, after: Any, subresource: str | None) -> Object:
        """Write what a patch or PUT made, as far as it may: status and the rest have different doors."""
        metadata = after["metadata"]
        version = metadata.get("resourceVersion", before["metadata"]["resourceVersion"])
        if version != before["metadata"]["resourceVersion"]:
            raise ConflictError(f'the {resource.kind} "{metadata["name"]}" has been modified')
        if metadata.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            raise ConflictError(f'the UID of {resource.kind} "{metadata["name"]}" is another')
        status = after.pop("status", None) if subresource == "status" else before.get("status")
        result: Any = copy.deepcopy(dict(before)) if subresource == "status" else after
        result.pop("status", None)
        if status is not None:
            result["status"] = status
        for kept in ("uid", "creationTimestamp", "resourceVersion"):
            result["metadata"][kept] = before["metadata"][kept]
        return copy.deepcopy(before if result == before else self._write(resource, result))

    def _write(self, resource: Resource, item: Any) -> Object:
        item["metadata"]["resourceVersion"] = self._next_version()
        self._of(resource)[_key(item)] = item
        self._tell(resource, item, deleted=False)
        written: Object = item
        return written

    def _tell(self, resource: Resource, item: Object, *, deleted: bool) -> None:
        if self._unseen is None:
            self._show(resource, item, deleted)
        else:
            self._unseen.append((resource, item, deleted))

    def _show(self, resource: Resource, item: Object, deleted: bool) -> None:
        for store in [store for store in self._stores if store.resource == resource]:
            store.see(copy.deepcopy(item), deleted=deleted)

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    def _of(self, resource: Resource) -> dict[Key, Object]:
        return self._objects.setdefault(resource, {})

    def _existing(self, resource: Resource, namespace: str | None, name: str) -> Object:
        self._check_kind(resource)
        self._check_namespace(resource, namespace)
        if (namespace, name) not in self._of(resource):
            raise ObjectNotFoundError(f'{resource.plural} "{name}" not found')
        return self._of(resource)[namespace, name]

    def _check_kind(self, resource: Resource) -> None:
        if resource.kind in self.missing_kinds:
            raise ObjectNotFoundError(f"{resource.kind} is not installed", kind_missing=True)

    @staticmethod
    def _check_namespace(resource: Resource, namespace: str | None) -> None:
        assert (namespace is not None) == resource.namespaced, f"{resource.kind}: namespace {namespace!r}"


def _key(item: Object) -> Key:
    return item["metadata"].get("namespace"), item["metadata"]["name"]
