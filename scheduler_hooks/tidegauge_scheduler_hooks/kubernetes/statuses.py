"""Writes the status of an object by server-side apply: of the fields that we say, and of no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Patch, Resource


def apply_status(
    api: KubeApi, resource: Resource, metadata: Mapping[str, Any], status: Mapping[str, Any], *, as_read: bool = False
) -> None:
    """``metadata``: the object's; what an earlier call applied and ``status`` leaves out is given up. ``as_read``: only
    if it is still that version (``ConflictError``). Raises ``SchedulerError``."""
    named = ("name", "namespace", "resourceVersion") if as_read else ("name", "namespace")
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {key: metadata[key] for key in named if key in metadata},
        "status": status,
    }
    api.patch(resource, metadata.get("namespace"), metadata["name"], body, how=Patch.APPLY, subresource="status")
