"""The verbs on objects: from an authorised request to its reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kube_emulator import deletion, lists
from kube_emulator.accounts import Accounts
from kube_emulator.apply import ApplyConflictError, Manager, Ownership
from kube_emulator.custom import served_types
from kube_emulator.errors import (
    STALE,
    ApiError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    precondition_failed,
)
from kube_emulator.intake import Intake
from kube_emulator.objects import schema_of, shown
from kube_emulator.patches import PatchError, json_patch, merge_patch, strategic_patch
from kube_emulator.requests import Reply, Request, success
from kube_emulator.resources import BUILT_IN, CRDS, ResourceType
from kube_emulator.schemas import Schema
from kube_emulator.store import Key, Object, StaleError, Store, key_of

_MAX_TRIES = 10
"""Of a change without a resourceVersion: the server itself reads again and repeats it."""
_NEEDS_VERSION = frozenset({"Lease", "PodDisruptionBudget", "MutatingWebhookConfiguration", "CustomResourceDefinition"})
"""Kinds that a PUT must name the version of; so must it for all custom resources."""
_RETURNED_WHEN_DELETED = frozenset({"Pod", "Service", "ServiceAccount", "PersistentVolumeClaim"})

_APPLY, _JSON = "application/apply-patch+yaml", "application/json-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_PATCHES: Mapping[str, Callable[[Object, Any, Schema], Any]] = {
    "application/merge-patch+json": lambda old, patch, _schema: merge_patch(old, patch),
    _JSON: lambda old, patch, _schema: json_patch(old, patch),
    _STRATEGIC: strategic_patch,
}


class Api:
    """All state of the emulated server and what requests do to it. Thread-safe."""

    def __init__(self) -> None:
        self.store = Store()
        self.accounts = Accounts(self.store)
        self.intake = Intake(self.store)
        self._ownership = Ownership()

    def types(self) -> Iterable[ResourceType]:
        yield from BUILT_IN
        for definition in self.store.of_kind(CRDS.group, CRDS.plural):
            if "deletionTimestamp" not in definition["metadata"]:
                yield from served_types(definition)

    def find_type(self, group: str, version: str, plural: str) -> ResourceType | None:
        return next((each for each in self.types() if each[:3] == (group, version, plural)), None)

    def get(self, request: Request) -> Reply:
        return Reply(self._with_managers(request.resource, shown(request.resource, self._present(request))))

    def list_objects(self, request: Request) -> Reply:
        reply = lists.list_page(self.store, request)
        items = [self._with_managers(request.resource, item) for item in reply.body["items"]]
        return Reply({**reply.body, "items": items})

    def _with_managers(self, resource: ResourceType, value: Mapping[str, Any]) -> dict[str, Any]:
        metadata = value["metadata"]
        entries = self._ownership.entries(
            key_of(resource, metadata.get("namespace", ""), metadata["name"]), metadata["uid"]
        )
        return {**value, "metadata": {**metadata, **({"managedFields": entries} if entries else {})}}

    def create(self, request: Request) -> Reply:
        value = self.intake.new_object(request, request.object_body())
        if request.dry_run:
            if self.store.get(self._key(request, value["metadata"]["name"])) is not None:
                raise already_exists(request.resource, value["metadata"]["name"])
            return Reply(shown(request.resource, value), 201)
        return Reply(shown(request.resource, self._commit_new(request, value)), 201)

    def _commit_new(self, request: Request, value: Object) -> Object:
        name = value["metadata"]["name"]
        key = self._key(request, name)
        try:
            stored = self.store.create(key, value)
        except StaleError:
            raise already_exists(request.resource, name) from None
        self._ownership.written(key, _manager(request), None, stored, schema_of(request.resource))
        return stored

    def update(self, request: Request) -> Reply:
        body = request.object_body()
        resource = request.resource
        version = (body.get("metadata") or {}).get("resourceVersion")
        if not version and (resource.custom or resource.kind in _NEEDS_VERSION):
            raise invalid(
                resource, request.name, ["metadata.resourceVersion: Invalid value: 0: must be specified for an update"]
            )
        return self._change(request, lambda _old: body)

    def patch(self, request: Request) -> Reply:
        how = request.content_type
        if how == _APPLY:
            return self._apply(request)
        if how not in _PATCHES or (request.resource.custom and how == _STRATEGIC):
            accepted = ", ".join(sorted({*_PATCHES, _APPLY} - ({_STRATEGIC} if request.resource.custom else set())))
            words = "the body of the request was in an unknown format - accepted media types include"
            raise ApiError(415, "UnsupportedMediaType", f"{words}: {accepted}")
        if isinstance(request.body, list) != (how == _JSON):
            raise bad_request(f"error decoding patch: cannot unmarshal into {how}")

        def patched(old: Object) -> Any:
            try:
                return _PATCHES[how](shown(request.resource, old), request.body, schema_of(request.resource))
            except PatchError as error:
                words = "the server rejected our request due to an error in our request"
                raise ApiError(422, "Invalid", f"{words}: {error}") from None

        return self._change(request, patched)

    def _apply(self, request: Request) -> Reply:
        if not request.query.get("fieldManager"):
            raise ApiError(
                422,
                "Invalid",
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
            )
        body, resource = request.object_body(), request.resource
        schema, key = schema_of(resource), self._key(request, request.name)
        force = request.query.get("force") == "true"
        if self.store.get(key) is None and not request.subresource:
            if uid := (body.get("metadata") or {}).get("uid"):
                words = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise conflict(resource, request.name, words)
            named = {**body, "metadata": {**(body.get("metadata") or {}), "name": request.name}}
            reply = Reply(shown(resource, self._commit_new(request, self.intake.new_object(request, named))), 201)
        else:

            def applied(old: Object) -> Object:
                try:
                    return self._ownership.applied(
                        key, _manager(request), shown(resource, old), body, schema, force=force
                    )
                except ApplyConflictError as error:
                    raise ApiError(409, "Conflict", error.message) from None

            reply = self._change(request, applied)
        self._ownership.take(key, reply.body["metadata"]["uid"], _manager(request), body, schema)
        return reply

    def _change(self, request: Request, build: Callable[[Object], Any]) -> Reply:
        for _try in range(_MAX_TRIES):
            old = self._present(request)
            raw = build(old)
            wanted = (raw.get("metadata") or {}) if isinstance(raw, dict) else {}
            self._check_same(request, old, wanted)
            new = self.intake.changed_object(request, old, raw)
            if request.dry_run:
                return Reply(shown(request.resource, new))
            key = self._key(request, request.name)
            try:
                stored = self.store.update(key, old, new)
            except StaleError:
                continue
            if stored is not old:
                self._ownership.written(key, _manager(request), old, stored, schema_of(request.resource))
                self.remove_if_free(request.resource, key, stored)
            return Reply(shown(request.resource, stored))
        raise conflict(request.resource, request.name, STALE)

    def _check_same(self, request: Request, old: Object, wanted: Mapping[str, Any]) -> None:
        metadata = old["metadata"]
        another = wanted.get("uid") not in (None, "", metadata["uid"])
        if another and request.method == "PUT":
            raise precondition_failed(request.resource, request.name, "UID", wanted["uid"], metadata["uid"])
        if wanted.get("resourceVersion") not in (None, "", metadata["resourceVersion"]):
            raise conflict(request.resource, request.name, STALE)
        if another:
            cause = f'metadata.uid: Invalid value: "{wanted["uid"]}": field is immutable'
            raise invalid(request.resource, request.name, [cause])

    def remove_if_free(self, resource: ResourceType, key: Key, stored: Object) -> None:
        """An object that is being deleted goes with its last finalizer."""
        if deletion.may_go(resource, stored) and not stored["metadata"].get("finalizers"):
            with suppress(StaleError):  # changed again meanwhile: whoever did that looks again
                self.store.delete(key, stored)

    def delete(self, request: Request) -> Reply:
        key = self._key(request, request.name)
        value, gone = deletion.delete(
            self.store, request.resource, key, _delete_options(request), dry_run=request.dry_run
        )
        if gone and request.resource.kind not in _RETURNED_WHEN_DELETED:
            resource = request.resource
            details = {"name": request.name, "kind": resource.plural, "uid": value["metadata"]["uid"]}
            return success({**details, **({"group": resource.group} if resource.group else {})})
        return Reply(shown(request.resource, value))

    def delete_collection(self, request: Request) -> Reply:
        matches, options = lists.selection(request), _delete_options(request)
        where = key_of(request.resource, request.namespace, "")
        for value in self.store.of_kind(where.group, where.plural, request.namespace or None):
            if matches(value):
                metadata = value["metadata"]
                key = key_of(request.resource, metadata.get("namespace", ""), metadata["name"])
                try:
                    deletion.delete(self.store, request.resource, key, options, dry_run=request.dry_run)
                except ApiError as error:
                    if error.code != 404:
                        raise
        return self.list_objects(request)

    def _key(self, request: Request, name: str) -> Key:
        return key_of(request.resource, request.namespace, name)

    def _present(self, request: Request) -> Object:
        value = self.store.get(self._key(request, request.name))
        if value is None:
            raise not_found(request.resource, request.name)
        return value


def _delete_options(request: Request) -> dict[str, Any]:
    """Of the body, or of the query: a body, even an empty one with a kind, makes the server ignore the query."""
    if isinstance(request.body, dict) and request.body:
        return request.body
    options: dict[str, Any] = {}
    if request.query.get("gracePeriodSeconds"):
        options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    if request.query.get("propagationPolicy"):
        options["propagationPolicy"] = request.query["propagationPolicy"]
    return options


def _manager(request: Request) -> Manager:
    return Manager(request.manager, request.content_type == _APPLY, request.subresource)
