"""Why the API server refuses an object: its metadata, and what its kind demands."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kube_emulator.causes import (
    annotations_causes,
    is_qualified,
    is_subdomain,
    label_name_causes,
    labels_causes,
    missing,
    subdomain_causes,
    unsupported,
    wrong,
)
from kube_emulator.custom import definition_causes
from kube_emulator.job_validation import job_causes
from kube_emulator.pod_validation import pod_spec_causes
from kube_emulator.resources import ROLES, ResourceType

_Check = Callable[[Mapping[str, Any]], Iterable[str]]


def causes_of(resource: ResourceType, value: Mapping[str, Any]) -> list[str]:
    """All reasons against an object."""
    check = None if resource.custom else _CHECKS.get(resource.kind)
    return [*_metadata_causes(resource, value["metadata"]), *(check(value) if check else ())]


def _metadata_causes(resource: ResourceType, metadata: Mapping[str, Any]) -> Iterator[str]:
    name = metadata.get("name", "")
    if resource.group == ROLES.group:
        if "/" in name or "%" in name or name in (".", ".."):
            yield wrong("metadata.name", name, "may not contain '/' or '%'")
    elif resource.kind in ("Namespace", "Service"):
        yield from label_name_causes("metadata.name", name)
    else:
        yield from subdomain_causes("metadata.name", name)
    yield from labels_causes("metadata.labels", metadata.get("labels") or {})
    yield from annotations_causes("metadata.annotations", metadata.get("annotations") or {})
    for finalizer in metadata.get("finalizers") or []:
        if not is_qualified(finalizer):
            yield wrong("metadata.finalizers", finalizer, "name part must be a qualified name")
    owners = metadata.get("ownerReferences") or []
    for place, owner in enumerate(owners):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield missing(f"metadata.ownerReferences[{place}].{key}", "must not be empty")
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        yield wrong("metadata.ownerReferences", owners, "Only one reference can have Controller set to true")


def _pod_causes(pod: Mapping[str, Any]) -> Iterator[str]:
    yield from pod_spec_causes(pod["spec"], "spec")


def _webhook_causes(configuration: Mapping[str, Any]) -> Iterator[str]:
    for place, webhook in enumerate(configuration.get("webhooks") or []):
        at, name = f"webhooks[{place}]", webhook.get("name", "")
        if not is_subdomain(name) or name.count(".") < 2:
            words = "should be a domain with at least three segments separated by dots"
            yield wrong(f"{at}.name", name, words)
        if webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            yield unsupported(f"{at}.sideEffects", webhook.get("sideEffects"), "None", "NoneOnDryRun")
        if webhook["failurePolicy"] not in ("Ignore", "Fail"):
            yield unsupported(f"{at}.failurePolicy", webhook["failurePolicy"], "Fail", "Ignore")
        if not 1 <= webhook["timeoutSeconds"] <= 30:
            words = "the timeout value must be between 1 and 30 seconds"
            yield wrong(f"{at}.timeoutSeconds", webhook["timeoutSeconds"], words)
        yield from _client_causes(webhook.get("clientConfig") or {}, f"{at}.clientConfig")
        if webhook.get("matchConditions"):
            yield f"{at}.matchConditions: Forbidden: this emulator does not evaluate them"


def _client_causes(client: Mapping[str, Any], at: str) -> Iterator[str]:
    if ("url" in client) == ("service" in client):
        yield missing(at, "exactly one of url or service is required")
    if not str(client.get("url", "https://")).startswith("https://"):
        yield wrong(f"{at}.url", client["url"], "'https' is the only allowed URL scheme")
    if client.get("caBundle") and not _has_certificate(client["caBundle"]):
        yield wrong(f"{at}.caBundle", "<CA bundle>", "unable to load root certificates")


def _has_certificate(bundle: str) -> bool:
    try:
        return b"-----BEGIN CERTIFICATE-----" in base64.b64decode(bundle, validate=True)
    except binascii.Error:
        return False


def _lease_causes(lease: Mapping[str, Any]) -> Iterator[str]:
    duration_s = (lease.get("spec") or {}).get("leaseDurationSeconds")
    if duration_s is not None and duration_s <= 0:
        yield wrong("spec.leaseDurationSeconds", duration_s, "must be greater than 0")


def _binding_causes(binding: Mapping[str, Any]) -> Iterator[str]:
    kind = (binding.get("roleRef") or {}).get("kind")
    if kind not in ("Role", "ClusterRole"):
        yield unsupported("roleRef.kind", kind, "ClusterRole", "Role")


_CHECKS: Mapping[str, _Check] = {
    "Pod": _pod_causes,
    "Job": job_causes,
    "MutatingWebhookConfiguration": _webhook_causes,
    "CustomResourceDefinition": definition_causes,
    "Lease": _lease_causes,
    "RoleBinding": _binding_causes,
    "ClusterRoleBinding": _binding_causes,
}
