"""From a request's body to an object that may be stored, and from a stored object to what a client is shown."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from kube_emulator.custom import read_custom
from kube_emulator.errors import ApiError, bad_request, invalid
from kube_emulator.events import to_core, to_new
from kube_emulator.requests import Request
from kube_emulator.resources import ResourceType
from kube_emulator.schemas import Reading, Schema, built_in_schema, read_built_in

Object = dict[str, Any]

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels, so that no words come of it (``k8s.io/apimachinery/pkg/util/rand``)."""

_LEFT_OUT_IF_EMPTY = ("annotations", "labels", "finalizers", "ownerReferences")
"""Of metadata."""


def schema_of(resource: ResourceType) -> Schema:
    if resource.schema is not None:
        return resource.schema
    return built_in_schema(resource.group, resource.version, resource.kind)


def decoded(request: Request, body: Any, old: Object | None, skipped_rules: set[str]) -> Object:
    """The object of a body: of this kind, in this place, without unknown fields (or refused, or warned of, as
    ``fieldValidation`` says)."""
    resource = request.resource
    if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
        raise bad_request(_cannot_handle(resource, "json: cannot unmarshal into Go value"))
    _check_type(resource, body)
    body = {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": body.get("metadata") or {}}
    reading = _read(resource, body, old, skipped_rules)
    if reading.malformed:
        raise bad_request(_cannot_handle(resource, reading.malformed[0]))
    if reading.unknown:
        _unknown_fields(request, reading.unknown)
    value: Object = reading.value
    _check_place(request, value["metadata"])
    if resource.namespaced:
        value["metadata"]["namespace"] = request.namespace
    if reading.causes:
        raise invalid(resource, value["metadata"].get("name", ""), reading.causes)
    metadata = value["metadata"]
    metadata.pop("managedFields", None)
    for name in _LEFT_OUT_IF_EMPTY:
        if not metadata.get(name):
            metadata.pop(name, None)
    return value


def _read(resource: ResourceType, body: Object, old: Object | None, skipped_rules: set[str]) -> Reading:
    if resource.schema is not None:
        return read_custom(body, resource.schema, old, skipped_rules)
    reading = read_built_in(body, resource.group, resource.version, resource.kind)
    if resource.plural == "events" and resource.group:
        reading.value = to_core(reading.value)
        reading.causes = []  # checked in their core form
    return reading


def _check_type(resource: ResourceType, body: Mapping[str, Any]) -> None:
    version, kind = body.get("apiVersion", resource.api_version), body.get("kind", resource.kind)
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if kind != resource.kind:
        raise bad_request(f"{kind} in version {version!r} cannot be handled as a {resource.kind}")


def _check_place(request: Request, metadata: Mapping[str, Any]) -> None:
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if request.resource.namespaced and namespace and namespace != request.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if request.name and name and name != request.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({request.name})")


def _cannot_handle(resource: ResourceType, why: str) -> str:
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'


def _unknown_fields(request: Request, unknown: list[str]) -> None:
    told = ", ".join(f'unknown field "{path}"' for path in unknown)
    handling = request.query.get("fieldValidation", "Warn")
    if handling == "Strict" and request.method == "PATCH":
        raise ApiError(422, "Invalid", f' "" is invalid: patch: Invalid value: strict decoding error: {told}')
    if handling == "Strict":
        raise bad_request(_cannot_handle(request.resource, f"strict decoding error: {told}"))
    if handling == "Warn":
        request.warnings.extend(f'unknown field "{path}"' for path in unknown)


def generated_name(prefix: str) -> str:
    return prefix[:58] + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


def shown(resource: ResourceType, value: Mapping[str, Any]) -> dict[str, Any]:
    """A stored object as this group and version shows it."""
    if resource.plural == "events":
        return to_new(value) if resource.group else dict(value)
    return {**value, "apiVersion": resource.api_version, "kind": resource.kind}


def list_item(resource: ResourceType, value: Mapping[str, Any]) -> dict[str, Any]:
    """As an entry of a list: built-in kinds leave out what the list's own kind says."""
    entry = shown(resource, value)
    if not resource.custom:
        del entry["apiVersion"], entry["kind"]
    return entry
