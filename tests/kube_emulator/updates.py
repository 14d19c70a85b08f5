"""What may be changed of an object that is there, and what comes of a change by itself (generation, status kept)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kube_emulator.causes import wrong
from kube_emulator.resources import ResourceType

Object = dict[str, Any]

_POD_WORDS = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_SYSTEM_FIELDS = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "namespace",
)


def merged_update(resource: ResourceType, old: Object, new: Object, *, subresource: str | None) -> Object:
    """``new`` with everything that this request cannot change taken from ``old``."""
    metadata = {key: value for key, value in new["metadata"].items() if key not in _SYSTEM_FIELDS}
    metadata.update({key: old["metadata"][key] for key in _SYSTEM_FIELDS if key in old["metadata"]})
    metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
    if "generation" in old["metadata"]:
        metadata["generation"] = old["metadata"]["generation"]
    if subresource == "status":
        kept = {key: value for key, value in old.items() if key != "status"}
        if not resource.custom:  # a status update of built-in kinds writes labels and annotations, too
            owners = old["metadata"].get("ownerReferences")
            kept["metadata"] = {**metadata, **({"ownerReferences": owners} if owners else {})}
        return {**kept, **({"status": new["status"]} if "status" in new else {})}
    result = {**new, "metadata": metadata}
    if "status" in resource.subresources:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    if "generation" in metadata and _content(result, resource) != _content(old, resource):
        metadata["generation"] += 1
    return result


def has_generation(resource: ResourceType) -> bool:
    return (
        resource.custom
        or resource.kind in ("Pod", "Job", "Deployment", "StatefulSet", "DaemonSet")
        or (resource.kind in ("PodDisruptionBudget", "MutatingWebhookConfiguration", "CustomResourceDefinition"))
    )


def _content(value: Mapping[str, Any], resource: ResourceType) -> dict[str, Any]:
    left_out = ("metadata", "status") if "status" in resource.subresources else ("metadata",)
    return {key: part for key, part in value.items() if key not in left_out}


def update_causes(resource: ResourceType, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Reasons of a 422 against changing ``old`` into ``new``."""
    if resource.kind == "Pod":
        before, after = old["spec"], new["spec"]
        if _frozen_pod(before) != _frozen_pod(after) or _tolerations_lost(before, after):
            yield _POD_WORDS
    elif resource.kind == "Job":
        yield from _job_update_causes(old, new)
    elif resource.kind in ("RoleBinding", "ClusterRoleBinding"):
        yield from _unchanged("roleRef", old, new, "cannot change roleRef")
    elif resource.kind in ("ConfigMap", "Secret") and old.get("immutable"):
        for field in ("data", "binaryData", "immutable"):
            yield from _unchanged(field, old, new, "field is immutable when `immutable` is set")
    if old["metadata"].get("deletionTimestamp"):
        added = set(new["metadata"].get("finalizers") or []) - set(old["metadata"].get("finalizers") or [])
        if added:
            words = "no new finalizers can be added if the object is being deleted, found new finalizers"
            yield f"metadata.finalizers: Forbidden: {words} {json.dumps(sorted(added))}"


def _unchanged(
    field: str, before: Mapping[str, Any], after: Mapping[str, Any], why: str, at: str = ""
) -> Iterator[str]:
    if before.get(field) != after.get(field):
        yield wrong(f"{at}{field}", after.get(field), why)


def _frozen_pod(spec: Mapping[str, Any]) -> dict[str, Any]:
    frozen = {key: value for key, value in spec.items() if key not in ("activeDeadlineSeconds", "tolerations")}
    for field in ("containers", "initContainers"):
        if field in frozen:
            frozen[field] = [{**container, "image": ""} for container in frozen[field]]
    return frozen


def _tolerations_lost(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return any(each not in (new.get("tolerations") or []) for each in old.get("tolerations") or [])


_IMMUTABLE_IN_JOB = (
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
)


def _job_update_causes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old["spec"], new["spec"]
    for field in _IMMUTABLE_IN_JOB:
        yield from _unchanged(field, before, after, "field is immutable", "spec.")
    if before.get("completions") != after.get("completions"):
        elastic = after["completionMode"] == "Indexed" and after.get("completions") == after.get("parallelism")
        if not elastic:
            yield wrong("spec.completions", after.get("completions"), "field is immutable")
    # The Job controller clears startTime when it has carried out a suspension: only then nothing runs any more.
    loose = bool(before.get("suspend")) and not (old.get("status") or {}).get("startTime")
    if _frozen_template(before["template"], loose=loose) != _frozen_template(after["template"], loose=loose):
        yield wrong("spec.template", after["template"], "field is immutable")


def _frozen_template(template: Mapping[str, Any], *, loose: bool) -> dict[str, Any]:
    if not loose:
        return {
            **template,
            "metadata": {key: value for key, value in (template.get("metadata") or {}).items() if value},
        }
    scheduling = ("nodeSelector", "tolerations", "affinity", "schedulingGates")
    spec = {key: value for key, value in template["spec"].items() if key not in scheduling}
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [{**container, "resources": {}} for container in spec[field]]
    return {"spec": spec}
