"""Writes to an object by server-side apply: the fields that we say, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Patch, Resource


def apply_status(
    api: KubeApi, resource: Resource, metadata: Mapping[str, Any], status: Mapping[str, Any], *, as_read: bool = False
) -> None:
    """``metadata``: the object's; what an earlier call applied and ``status`` leaves out is given up. ``as_read``: only
    if it is still that version (``ConflictError``). Raises ``SchedulerError``."""
    named = ("resourceVersion",) if as_read else ()
    _apply(api, resource, _named(metadata, *named), {"status": status}, subresource="status")


def apply_annotations(
    api: KubeApi, resource: Resource, metadata: Mapping[str, Any], annotations: Mapping[str, str]
) -> None:
    """All annotations that are applied to the object; one that an earlier call applied and this leaves out is gone.
    Only to that very object (``ConflictError``), which is not made where it is gone. Raises ``SchedulerError``."""
    _apply(api, resource, {**_named(metadata, "uid"), "annotations": annotations}, {})


def _named(metadata: Mapping[str, Any], *more: str) -> Mapping[str, Any]:
    return {key: metadata[key] for key in ("name", "namespace", *more) if key in metadata}


def _apply(
    api: KubeApi,
    resource: Resource,
    metadata: Mapping[str, Any],
    said: Mapping[str, Any],
    *,
    subresource: str | None = None,
) -> None:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **said}
    api.patch(resource, metadata.get("namespace"), metadata["name"], body, how=Patch.APPLY, subresource=subresource)
