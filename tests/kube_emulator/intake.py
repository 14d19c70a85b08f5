"""What a body passes before it is stored: reading, defaults, admission, validation."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kube_emulator.clock import now
from kube_emulator.custom import complete_definition
from kube_emulator.defaults import admit_pod, generate_selector, with_defaults
from kube_emulator.errors import ApiError, forbidden, invalid, not_found
from kube_emulator.events import event_causes, event_update_causes
from kube_emulator.objects import decoded, generated_name, shown
from kube_emulator.pod_security import ENFORCE, violation
from kube_emulator.requests import Request
from kube_emulator.resources import CRDS, JOBS, NAMESPACES, PODS, SERVICE_ACCOUNTS
from kube_emulator.store import Object, Store, key_of
from kube_emulator.updates import has_generation, merged_update, update_causes
from kube_emulator.validation import causes_of
from kube_emulator.webhooks import Admission, mutated


class Intake:
    """Thread-safe; stores nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.skipped_rules: set[str] = set()
        """CEL rules of custom resources that were not evaluated."""
        self.validators: list[Callable[[Admission], str | None]] = []
        """Whom a test asks about every change before it is stored: what it says against it is the refusal."""

    def new_object(self, request: Request, body: Mapping[str, Any]) -> Object:
        """As it is to be created. Its name is generated after the webhooks have seen it, as on a real server."""
        resource = request.resource
        self._check_namespace(request)
        value = with_defaults(resource, decoded(request, body, None, self.skipped_rules))
        metadata = value["metadata"]
        if metadata.get("resourceVersion"):
            raise ApiError(500, "InternalError", "resourceVersion should not be set on objects to be created")
        if "status" in resource.subresources and resource.kind != "Node":
            value.pop("status", None)
            value = with_defaults(resource, value)
        if resource == PODS:
            self._check_account(request, value)
            admit_pod(value)
        value = self._admitted(request, "CREATE", value, None)
        metadata = value["metadata"]
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise invalid(resource, "", ["metadata.name: Required value: name or generateName is required"])
            metadata["name"] = generated_name(metadata["generateName"])
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(key, None)
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now())
        if has_generation(resource):
            metadata["generation"] = 1
        if resource == JOBS:
            generate_selector(value)
        causes = self._causes(request, value)
        if causes:
            raise invalid(resource, metadata["name"], causes)
        self._check_pod_security(request, value)
        return complete_definition(value, now()) if resource == CRDS else value

    def changed_object(self, request: Request, old: Object, raw: Any) -> Object:
        """What ``old`` is to become, of a body or a patched object."""
        resource = request.resource
        value = decoded(request, raw, old, self.skipped_rules)
        value["metadata"]["name"] = request.name
        value = with_defaults(resource, merged_update(resource, old, value, subresource=request.subresource or None))
        value = self._admitted(request, "UPDATE", value, old)
        causes = self._causes(request, value) if not request.subresource else []
        if not resource.custom:
            causes = [*update_causes(resource, old, value), *causes]
            if resource.plural == "events":
                causes.extend(event_update_causes(old, value))
        if causes:
            raise invalid(resource, request.name, causes)
        return value

    def _causes(self, request: Request, value: Object) -> list[str]:
        causes = causes_of(request.resource, value)
        if request.resource.plural == "events" and request.method == "POST":
            causes.extend(event_causes(value, new=bool(request.resource.group)))
        return causes

    def _admitted(self, request: Request, operation: str, value: Object, old: Object | None) -> Object:
        resource = request.resource
        name = request.name or value["metadata"].get("name", "")
        admission = Admission(
            resource,
            operation,
            request.subresource,
            request.namespace,
            name,
            request.user,
            shown(resource, value),
            None if old is None else shown(resource, old),
            request.dry_run,
        )
        result = mutated(self._store, admission, request.warnings.append)
        for validator in self.validators:
            if (why := validator(replace(admission, value=result))) is not None:
                raise forbidden(resource, name, why)
        if result is admission.value:
            return value
        again = with_defaults(resource, decoded(request, result, old, self.skipped_rules))
        return merged_update(resource, old, again, subresource=request.subresource or None) if old else again

    def _check_namespace(self, request: Request) -> None:
        if not request.resource.namespaced:
            return
        namespace = self._store.get(key_of(NAMESPACES, "", request.namespace))
        if namespace is None:
            raise not_found(NAMESPACES, request.namespace)
        if "deletionTimestamp" in namespace["metadata"]:
            why = f"unable to create new content in namespace {request.namespace} because it is being terminated"
            raise forbidden(request.resource, (request.body.get("metadata") or {}).get("name", ""), why)

    def _check_account(self, request: Request, pod: Object) -> None:
        name = pod["spec"].get("serviceAccountName") or "default"
        if self._store.get(key_of(SERVICE_ACCOUNTS, request.namespace, name)) is None:
            why = f'error looking up service account {request.namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden(request.resource, pod["metadata"].get("name", ""), why)

    def _check_pod_security(self, request: Request, value: Object) -> None:
        if request.resource != PODS:
            return
        namespace = self._store.get(key_of(NAMESPACES, "", request.namespace)) or {"metadata": {}}
        told = violation((namespace["metadata"].get("labels") or {}).get(ENFORCE), value["spec"])
        if told is not None:
            raise forbidden(request.resource, value["metadata"]["name"], told)
