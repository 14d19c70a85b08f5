"""The garbage collector: dependents follow their owners, as the deletion of the owner asked for.

Also removes the objects of a custom kind whose definition is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kube_emulator.api import Api
from kube_emulator.deletion import FOREGROUND, ORPHAN
from kube_emulator.namespaces import delete_quietly, resource_of
from kube_emulator.resources import CRDS
from kube_emulator.store import Key, Object


def sync_garbage(api: Api) -> None:
    """Raises ``StaleError``."""
    objects = api.store.everything()
    by_uid = {value["metadata"]["uid"]: (key, value) for key, value in objects.items()}
    dependents: dict[str, list[tuple[Key, Object]]] = {}
    for key, value in objects.items():
        for owner in value["metadata"].get("ownerReferences") or []:
            dependents.setdefault(owner["uid"], []).append((key, value))
    for key, value in objects.items():
        metadata = value["metadata"]
        if "deletionTimestamp" in metadata:
            _follow_policy(api, key, value, dependents.get(metadata["uid"], []))
        elif metadata.get("ownerReferences") and not _has_owner(value, by_uid, key.namespace):
            delete_quietly(api, key, value)
    _remove_unserved(api, objects)


def _has_owner(value: Object, by_uid: Mapping[str, tuple[Key, Object]], namespace: str) -> bool:
    """One owner that is there is enough; an owner in another namespace is none."""
    for owner in value["metadata"]["ownerReferences"]:
        key, _owner = by_uid.get(owner["uid"], (None, None))
        if key is not None and key.namespace in ("", namespace):
            return True
    return False


def _follow_policy(api: Api, key: Key, value: Object, dependents: list[tuple[Key, Object]]) -> None:
    finalizers = value["metadata"].get("finalizers") or []
    if ORPHAN in finalizers:
        for dependent_key, dependent in dependents:
            api.store.update(dependent_key, dependent, _without_owner(dependent, value["metadata"]["uid"]))
        _drop_finalizer(api, key, value, ORPHAN)
    elif FOREGROUND in finalizers:
        for dependent_key, dependent in dependents:
            if "deletionTimestamp" not in dependent["metadata"]:
                delete_quietly(api, dependent_key, dependent, "Foreground" if _owns(api, dependent) else "Background")
        uid = value["metadata"]["uid"]
        left = [found for each, _ in dependents if (found := api.store.get(each)) is not None]
        if not any(_blocks(each, uid) for each in left):
            _drop_finalizer(api, key, value, FOREGROUND)


def _owns(api: Api, value: Object) -> bool:
    uid = value["metadata"]["uid"]
    return any(
        owner["uid"] == uid
        for other in api.store.everything().values()
        for owner in other["metadata"].get("ownerReferences") or []
    )


def _blocks(dependent: Object, uid: str) -> bool:
    owners: list[dict[str, Any]] = dependent["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)


def _without_owner(value: Object, uid: str) -> Object:
    owners = [owner for owner in value["metadata"]["ownerReferences"] if owner["uid"] != uid]
    metadata = {name: part for name, part in value["metadata"].items() if name != "ownerReferences"}
    return {**value, "metadata": {**metadata, **({"ownerReferences": owners} if owners else {})}}


def _drop_finalizer(api: Api, key: Key, value: Object, finalizer: str) -> None:
    drop_finalizers(api, key, value, {finalizer})


def drop_finalizers(api: Api, key: Key, value: Object, gone: set[str]) -> None:
    """Without these finalizers; an object that only waited for them goes. Raises ``StaleError``."""
    kept = [each for each in value["metadata"].get("finalizers") or [] if each not in gone]
    metadata = {name: part for name, part in value["metadata"].items() if name != "finalizers"}
    freed = {**value, "metadata": {**metadata, **({"finalizers": kept} if kept else {})}}
    stored = api.store.update(key, value, freed)
    api.remove_if_free(resource_of(api, key, stored), key, stored)


def _remove_unserved(api: Api, objects: Mapping[Key, Object]) -> None:
    served = {(each.group, each.plural) for each in api.types()} | {(CRDS.group, CRDS.plural)}
    for key, value in objects.items():
        if (key.group, key.plural) not in served and api.store.get(key) is value:
            api.store.delete(key, value)
