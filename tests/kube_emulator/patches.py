"""The three kinds of patches: RFC 7386, RFC 6902 and Kubernetes' own. A patched object is a new one."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kube_emulator.schemas import Schema, items_of, property_of


class PatchError(Exception):
    """The patch cannot be applied to that object; the text says why."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """RFC 6902. Raises ``PatchError``; nothing is changed then."""
    document = copy.deepcopy(target)
    for operation in operations:
        name, path = operation.get("op"), operation.get("path")
        if not isinstance(path, str) or (path and not path.startswith("/")):
            raise PatchError(f"invalid path {path!r}")
        if name == "add":
            document = _add(document, path, copy.deepcopy(operation.get("value")))
        elif name == "remove":
            _remove(document, path)
        elif name == "replace":
            if path:
                _get(document, path)
                _remove(document, path)
            document = _add(document, path, copy.deepcopy(operation.get("value")))
        elif name == "test":
            if _get(document, path) != operation.get("value"):
                raise PatchError(f"testing path {path} failed")
        elif name in ("copy", "move"):
            value = copy.deepcopy(_get(document, operation["from"]))
            if name == "move":
                _remove(document, operation["from"])
            document = _add(document, path, value)
        else:
            raise PatchError(f"Unexpected kind: {name}")
    return document


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _index(step: str, length: int, path: str) -> int:
    if not step.isdigit() or int(step) >= length:
        raise PatchError(f"doc is missing path: {path}: missing value")
    return int(step)


def _get(document: Any, path: str) -> Any:
    for step in _steps(path):
        if isinstance(document, list):
            document = document[_index(step, len(document), path)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise PatchError(f"doc is missing key: {path}: missing value")
    return document


def _parent(document: Any, path: str) -> tuple[Any, str]:
    above, _, last = path.rpartition("/")
    parent = _get(document, above)
    if not isinstance(parent, (dict, list)):
        raise PatchError(f"doc is missing path: {path}: missing value")
    return parent, last.replace("~1", "/").replace("~0", "~")


def _add(document: Any, path: str, value: Any) -> Any:
    if not path:
        return value
    parent, last = _parent(document, path)
    if isinstance(parent, list):
        place = len(parent) if last == "-" else _index(last, len(parent) + 1, path)
        parent.insert(place, value)
    else:
        parent[last] = value
    return document


def _remove(document: Any, path: str) -> None:
    _get(document, path)
    parent, last = _parent(document, path)
    del parent[int(last) if isinstance(parent, list) else last]


_DIRECTIVES = ("$patch", "$retainKeys")


def strategic_patch(target: Any, patch: Mapping[str, Any], schema: Schema | None) -> Any:
    """Lists whose schema names a merge key are merged by it; the others, and all else, as in RFC 7386.

    Directives: ``$patch: delete`` and ``replace`` in maps and list entries, ``$retainKeys``,
    ``$deleteFromPrimitiveList/…``, and ``$setElementOrder/…`` (which kubectl sends; only its order is ignored).
    """
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key not in _DIRECTIVES}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    retained = patch.get("$retainKeys")
    if retained is not None:
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key in _DIRECTIVES or key.startswith("$setElementOrder/"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [entry for entry in result.get(name) or [] if entry not in value]
            continue
        part = property_of(schema, key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = strategic_patch(result.get(key), value, part)
        elif isinstance(value, list):
            result[key] = _strategic_list(result.get(key), value, part)
        else:
            result[key] = value
    return result


def _strategic_list(target: Any, patch: list[Any], schema: Schema | None) -> Any:
    if schema is None or "merge" not in schema.get("x-kubernetes-patch-strategy", ""):
        return copy.deepcopy(patch)
    entries: list[Any] = list(target or [])
    merge_key = schema.get("x-kubernetes-patch-merge-key")
    if merge_key is None:
        return entries + [value for value in patch if value not in entries]
    if any(isinstance(value, dict) and value.get("$patch") == "replace" for value in patch):
        return [value for value in patch if value.get("$patch") != "replace"]
    for value in patch:
        if merge_key not in value:
            raise PatchError(f"map: {json.dumps(value)} does not contain declared merge key: {merge_key}")
        place = next((i for i, entry in enumerate(entries) if entry.get(merge_key) == value[merge_key]), None)
        if value.get("$patch") == "delete":
            entries = [entry for entry in entries if entry.get(merge_key) != value[merge_key]]
        elif place is None:
            entries.append(strategic_patch({}, value, items_of(schema)))
        else:
            entries[place] = strategic_patch(entries[place], value, items_of(schema))
    return entries
