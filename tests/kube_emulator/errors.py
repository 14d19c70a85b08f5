"""Refusals as the API server words them: a ``Status`` object with code, reason and message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kube_emulator.resources import ResourceType


class ApiError(Exception):
    """Ends a request with a ``Status``."""

    def __init__(
        self,
        code: int,
        reason: str | None,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = dict(headers or {})
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({"details": dict(details)} if details else {}),
            "code": code,
        }


def _details(resource: ResourceType, name: str) -> dict[str, Any]:
    return {"name": name, **({"group": resource.group} if resource.group else {}), "kind": resource.plural}


def not_found(resource: ResourceType, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', details=_details(resource, name))


def already_exists(resource: ResourceType, name: str) -> ApiError:
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_details(resource, name))


def conflict(resource: ResourceType, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_details(resource, name))


def precondition_failed(resource: ResourceType, name: str, field: str, wanted: str, found: str) -> ApiError:
    why = f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
    return conflict(resource, name, why)


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def invalid(resource: ResourceType, name: str, causes: Sequence[str]) -> ApiError:
    """422. ``causes`` are texts such as ``spec.x: Invalid value: "y": why``."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    told = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    details = {
        "name": name,
        **({"group": resource.group} if resource.group else {}),
        "kind": resource.kind,
        "causes": [_cause(cause) for cause in causes],
    }
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {told}', details=details)


_CAUSES = {
    "Required value": "FieldValueRequired",
    "Unsupported value": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
    "Duplicate value": "FieldValueDuplicate",
    "Not found": "FieldValueNotFound",
}


def _cause(text: str) -> dict[str, str]:
    field, _, message = text.partition(": ")
    return {"reason": _CAUSES.get(message.partition(":")[0], "FieldValueInvalid"), "message": message, "field": field}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def no_version(text: str, *, watch: bool) -> ApiError:
    """A ``resourceVersion`` that is no number. Of a watch the real server calls that a fault of its own."""
    why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    return ApiError(500, None, why) if watch else bad_request(f"invalid resource version: {why}")


def forbidden(resource: ResourceType, name: str, why: str) -> ApiError:
    what = f'{resource.qualified} "{name}"' if name else resource.qualified
    return ApiError(403, "Forbidden", f"{what} is forbidden: {why}", details=_details(resource, name))


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})
