"""One request as the verbs see it, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kube_emulator.accounts import User
from kube_emulator.errors import bad_request
from kube_emulator.resources import ResourceType


@dataclass
class Request:
    """What is asked of which object. ``warnings`` are gathered while it is answered."""

    user: User
    method: str
    resource: ResourceType
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    body: Any
    content_type: str
    agent: str
    warnings: list[str] = field(default_factory=list)

    @property
    def verb(self) -> str:
        """As RBAC calls it."""
        if self.method == "GET":
            if self.name:
                return "get"
            return "watch" if self.query.get("watch") in ("1", "true") else "list"
        if self.method == "DELETE":
            return "delete" if self.name else "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch"}[self.method]

    @property
    def dry_run(self) -> bool:
        """Raises a 400 for anything but ``All``."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise bad_request(f'dryRun: Unsupported value: "{value}": supported values: "All"')
        return bool(value)

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager") or self.agent.partition("/")[0]

    def object_body(self) -> dict[str, Any]:
        """The body as an object. Raises a 400."""
        if not isinstance(self.body, dict):
            raise bad_request("the body of the request was in an unknown format - accepted is a JSON object")
        return self.body


@dataclass(frozen=True)
class Reply:
    """An answer that is one JSON document."""

    body: Mapping[str, Any]
    code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def success(details: Mapping[str, Any] | None = None, code: int = 200) -> Reply:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return Reply(
        {**status, **({"details": dict(details)} if details else {}), **({"code": code} if code > 200 else {})}, code
    )
