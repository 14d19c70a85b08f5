"""Requests that are no plain object's: evictions, bindings, tokens, reviews of rights."""

from __future__ import annotations

from typing import Any

from kube_emulator import deletion, rbac
from kube_emulator.accounts import API_AUDIENCE, User
from kube_emulator.api import Api
from kube_emulator.clock import now
from kube_emulator.errors import STALE, bad_request, conflict, not_found
from kube_emulator.requests import Reply, Request, success
from kube_emulator.store import StaleError, key_of

_TOKEN_LIFETIME_S = 3600


def _check_name(request: Request, kind: str) -> None:
    """These bodies must repeat the name of the path."""
    if (request.object_body().get("metadata") or {}).get("name") != request.name:
        raise bad_request(f"name in URL does not match name in {kind} object")


def evict(api: Api, request: Request) -> Reply:
    key = key_of(request.resource, request.namespace, request.name)
    body = request.object_body()
    _check_name(request, "Eviction")
    if body.get("apiVersion", "policy/v1") != "policy/v1":
        raise bad_request(f'no kind "Eviction" is registered for version "{body["apiVersion"]}"')
    deletion.evict(api.store, key, body, dry_run=request.dry_run)
    return success(code=201)


def bind(api: Api, request: Request) -> Reply:
    """What a scheduler does: a pod belongs to a node from now on."""
    _check_name(request, "Binding")
    key = key_of(request.resource, request.namespace, request.name)
    node = (request.object_body().get("target") or {}).get("name")
    pod = api.store.get(key)
    if pod is None:
        raise not_found(request.resource, request.name)
    if "deletionTimestamp" in pod["metadata"]:
        raise conflict(
            request.resource, request.name, f"pod {request.name} is being deleted, cannot be assigned to a host"
        )
    if pod["spec"].get("nodeName"):
        why = f'pod {request.name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        raise conflict(request.resource, request.name, why)
    status = pod.get("status") or {}
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
    conditions = [each for each in status.get("conditions") or [] if each["type"] != scheduled["type"]]
    bound = {
        **pod,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": [*conditions, scheduled]},
    }
    try:
        api.store.update(key, pod, bound)
    except StaleError:
        raise conflict(request.resource, request.name, STALE) from None
    return success(code=201)


def token(api: Api, request: Request) -> Reply:
    """``TokenRequest``: a bearer token for a service account."""
    account = api.store.get(key_of(request.resource, request.namespace, request.name))
    if account is None:
        raise not_found(request.resource, request.name)
    body = request.object_body()
    lifetime_s = int((body.get("spec") or {}).get("expirationSeconds") or _TOKEN_LIFETIME_S)
    answer = {
        **body,
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "spec": {"audiences": [], "boundObjectRef": None, **(body.get("spec") or {}), "expirationSeconds": lifetime_s},
        "status": {
            "token": api.accounts.bind_token(account, lifetime_s, (body.get("spec") or {}).get("audiences") or ()),
            "expirationTimestamp": now(lifetime_s),
        },
    }
    return Reply(answer, 201)


def review(api: Api, request: Request) -> Reply:
    """``SubjectAccessReview`` and the one about oneself; ``TokenReview``."""
    body: dict[str, Any] = request.object_body()
    spec = body.get("spec") or {}
    if request.resource.kind == "TokenReview":
        return _token_review(api, request, body, spec)
    user = request.user
    if request.resource.kind == "SubjectAccessReview":
        user = User(spec.get("user", ""), frozenset(spec.get("groups") or ()))
    kind = {"kind": request.resource.kind, "apiVersion": request.resource.api_version}
    return Reply({**body, **kind, "status": rbac.review(api.store, user, body)}, 201)


def _token_review(api: Api, request: Request, body: dict[str, Any], spec: dict[str, Any]) -> Reply:
    if not spec.get("token"):
        raise bad_request("token is required for TokenReview in authentication")
    known = api.accounts.owner_of(spec["token"])
    wanted = frozenset(spec.get("audiences") or (API_AUDIENCE,))
    status: dict[str, Any]
    if known is None:
        status = {"user": {}, "error": "[invalid bearer token, token lookup failed]"}
    elif not wanted & known[1]:
        why = f"token audiences {sorted(known[1])} is invalid for the target audiences {sorted(wanted)}"
        status = {"user": {}, "error": f"[invalid bearer token, {why}]"}
    else:
        user = {"username": known[0].name, "groups": sorted(known[0].groups)}
        status = {"authenticated": True, "user": user, "audiences": sorted(wanted & known[1])}
    kind = {"kind": request.resource.kind, "apiVersion": request.resource.api_version}
    return Reply({**body, **kind, "metadata": {"creationTimestamp": None}, "status": status}, 201)


SUBRESOURCES = {"eviction": evict, "binding": bind, "token": token}
