"""The namespace and service account controllers: a default account in each namespace; contents go with a namespace."""

from __future__ import annotations

import uuid

from kube_emulator.api import Api
from kube_emulator.clock import now
from kube_emulator.deletion import delete
from kube_emulator.errors import ApiError
from kube_emulator.resources import NAMESPACES, SERVICE_ACCOUNTS, ResourceType
from kube_emulator.store import Key, Object, key_of


def sync_namespaces(api: Api) -> None:
    """Raises ``StaleError``."""
    for namespace in api.store.of_kind("", "namespaces"):
        if "deletionTimestamp" in namespace["metadata"]:
            _empty(api, namespace)
        else:
            _give_account(api, namespace["metadata"]["name"])


def _give_account(api: Api, namespace: str) -> None:
    key = key_of(SERVICE_ACCOUNTS, namespace, "default")
    if api.store.get(key) is None:
        metadata = {"name": "default", "namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
        api.store.create(key, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def _empty(api: Api, namespace: Object) -> None:
    """All that is in it is deleted; it goes when nothing is left (pods may take their grace)."""
    name = namespace["metadata"]["name"]
    inside = {key: value for key, value in api.store.everything().items() if key.namespace == name}
    for key, value in inside.items():
        if "deletionTimestamp" not in value["metadata"]:
            delete_quietly(api, key, value)
    if not any(key.namespace == name for key in api.store.everything()):
        api.store.delete(key_of(NAMESPACES, "", name), namespace)


def resource_of(api: Api, key: Key, value: Object) -> ResourceType:
    """The kind that an object was stored as."""
    group, _, version = value["apiVersion"].rpartition("/")
    found = api.find_type(key.group, version, key.plural)
    if found is None:  # of a custom kind whose definition is gone or on its way out
        return ResourceType(group, version, key.plural, value["kind"], bool(key.namespace), schema={})
    return found


def delete_quietly(api: Api, key: Key, value: Object, policy: str = "Background") -> None:
    """As controllers delete: what is gone already is well gone."""
    options = {"propagationPolicy": policy, "preconditions": {"uid": value["metadata"]["uid"]}}
    try:
        delete(api.store, resource_of(api, key, value), key, options)
    except ApiError as error:
        if error.code not in (404, 409):
            raise
