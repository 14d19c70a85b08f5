"""Mutating admission webhooks: who is asked about an object, and what their answers do to it.

Left out: ``matchConditions`` (a configuration with them is refused), services instead of URLs (the emulator has no
network of services: the call fails and ``failurePolicy`` decides), reinvocation.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kube_emulator.accounts import User
from kube_emulator.errors import ApiError
from kube_emulator.patches import PatchError, json_patch
from kube_emulator.resources import WEBHOOKS, ResourceType
from kube_emulator.selectors import matches_labels
from kube_emulator.store import Object, Store

_MAX_ANSWER_BYTES = 4 << 20


@dataclass(frozen=True)
class Admission:
    """One change that is to be admitted."""

    resource: ResourceType
    operation: str
    """``CREATE`` or ``UPDATE``."""
    subresource: str
    namespace: str
    name: str
    user: User
    value: Object
    old: Object | None
    dry_run: bool


def mutated(store: Store, admission: Admission, warn: Callable[[str], None]) -> Object:
    """The object after all webhooks that it concerns. Raises a webhook's refusal, and its failure unless ignored."""
    value = admission.value
    if admission.resource.group == WEBHOOKS.group:
        return value
    for webhook in _concerned(store, admission):
        value = _asked(webhook, admission, value, warn)
    return value


def _concerned(store: Store, admission: Admission) -> Iterator[Mapping[str, Any]]:
    for configuration in store.of_kind(WEBHOOKS.group, WEBHOOKS.plural):
        for webhook in configuration.get("webhooks") or []:
            if any(covers(rule, admission) for rule in webhook.get("rules") or []) and _selects(
                store, webhook, admission
            ):
                yield webhook


def covers(rule: Mapping[str, Any], admission: Admission) -> bool:
    """Whether a rule of a webhook, or of an admission policy, is about this change."""
    resource = admission.resource
    wanted = f"{resource.plural}/{admission.subresource}" if admission.subresource else resource.plural
    star = f"*/{admission.subresource}" if admission.subresource else "*"
    return (
        bool({admission.operation, "*"} & set(rule.get("operations") or ()))
        and bool({resource.group, "*"} & set(rule.get("apiGroups") or ()))
        and bool({resource.version, "*"} & set(rule.get("apiVersions") or ()))
        and bool({wanted, star, "*/*", f"{resource.plural}/*"} & set(rule.get("resources") or ()))
        and rule.get("scope", "*") in ("*", "Namespaced" if resource.namespaced else "Cluster")
    )


def _selects(store: Store, webhook: Mapping[str, Any], admission: Admission) -> bool:
    if admission.namespace:
        found = [each for each in store.of_kind("", "namespaces") if each["metadata"]["name"] == admission.namespace]
        labels = (found[0]["metadata"].get("labels") or {}) if found else {}
        if not matches_labels(webhook["namespaceSelector"], labels):
            return False
    seen = [each for each in (admission.value, admission.old) if each is not None]
    return any(matches_labels(webhook["objectSelector"], each["metadata"].get("labels") or {}) for each in seen)


def _asked(webhook: Mapping[str, Any], admission: Admission, value: Object, warn: Callable[[str], None]) -> Object:
    try:
        response = _call(webhook, admission, value)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if webhook["failurePolicy"] == "Ignore":
            return value
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        message = f'failed calling webhook "{webhook["name"]}": failed to call webhook: {reason}'
        raise ApiError(500, "InternalError", f"Internal error occurred: {message}") from error
    for warning in response.get("warnings") or []:
        warn(warning)
    if not response.get("allowed"):
        status = response.get("status") or {}
        told = status.get("message") or status.get("reason") or "without explanation"
        message = f'admission webhook "{webhook["name"]}" denied the request: {told}'
        raise ApiError(max(400, status.get("code", 400)), status.get("reason", ""), message)
    if not response.get("patch"):
        return value
    try:
        result: Object = json_patch(value, json.loads(base64.b64decode(response["patch"])))
    except (PatchError, ValueError) as error:
        raise ApiError(500, "InternalError", f"Internal error occurred: {error}") from error
    return result


def _call(webhook: Mapping[str, Any], admission: Admission, value: Object) -> dict[str, Any]:
    """The ``response`` of the webhook's ``AdmissionReview``; its certificate must be good for ``caBundle``."""
    client = webhook["clientConfig"]
    if "url" not in client:
        service = client["service"]
        raise OSError(f'service "{service["name"]}" in namespace "{service["namespace"]}" not found')
    bundle = base64.b64decode(client.get("caBundle") or "").decode()
    context = ssl.create_default_context(cadata=bundle or None)
    timeout_s = webhook["timeoutSeconds"]
    request = urllib.request.Request(
        f"{client['url']}?timeout={timeout_s}s",
        data=json.dumps(_review(admission, value)).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/json"},
        method="POST",
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(request, timeout=timeout_s) as answer:
        review = json.loads(answer.read(_MAX_ANSWER_BYTES))
    response: dict[str, Any] = review["response"]
    if review["kind"] != "AdmissionReview" or review["apiVersion"] != "admission.k8s.io/v1":
        raise ValueError("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview")
    if response.get("patch") and response.get("patchType") != "JSONPatch":
        raise ValueError(f"unsupported patchType {response.get('patchType')}")
    return response


def _review(admission: Admission, value: Object) -> dict[str, Any]:
    resource = admission.resource
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    plural = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    options = "CreateOptions" if admission.operation == "CREATE" else "UpdateOptions"
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": kind,
            "resource": plural,
            "requestKind": kind,
            "requestResource": plural,
            **({"subResource": admission.subresource} if admission.subresource else {}),
            "name": admission.name,
            **({"namespace": admission.namespace} if admission.namespace else {}),
            "operation": admission.operation,
            "userInfo": {"username": admission.user.name, "groups": sorted(admission.user.groups)},
            "object": value,
            "oldObject": admission.old,
            "dryRun": admission.dry_run,
            "options": {"kind": options, "apiVersion": "meta.k8s.io/v1"},
        },
    }
