"""Patches and label selectors as an API server understands them, for the fake one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.ports import InvalidError, Patch

LIST_KEYS = ("type", "name", "mountPath", "uid")
"""What entries of a list are told apart by in a strategic merge, the first that all of them have: conditions,
containers, variables and volumes, mounts, owners."""

_SET_TERM = re.compile(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*")


def patched(before: Mapping[str, Any], patch: Any, how: Patch, *, applied: Any = None) -> Any:
    """What ``patch`` makes of an object, which stays as it is. ``applied``: what the one manager that applies said of
    it before; what it does not say any more is gone. Raises ``InvalidError``."""
    if how is Patch.JSON:
        if not isinstance(patch, Sequence):
            raise InvalidError("json patch must be a list of operations")
        return _operations(_copy(before), patch)
    if not isinstance(patch, Mapping):
        raise InvalidError("a merge patch must be an object")
    if how is Patch.APPLY:
        return _merged(_without(_copy(before), applied or {}, patch), patch, _by_key)
    return _merged(before, patch, _by_key if how is Patch.STRATEGIC else _replaced)


def selected(selector: str | None, labels: Mapping[str, str]) -> bool:
    """``a=b,c!=d,e,!f,g in (h,i),j notin (k)``."""
    return all(_holds(term, labels) for term in re.split(r",(?![^(]*\))", selector or "") if term.strip())


def field_selected(selector: str | None, item: Mapping[str, Any]) -> bool:
    """``metadata.name=a,status.phase!=Running``."""
    for term in filter(None, (selector or "").split(",")):
        path, unequal, wanted = re.split(r"(!=|==?)", term)
        value: Any = item
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if (str(value or "") == wanted) == (unequal == "!="):
            return False
    return True


def _holds(term: str, labels: Mapping[str, str]) -> bool:
    term = term.strip()
    if of_set := _SET_TERM.fullmatch(term):
        key, word, values = of_set.groups()
        return (labels.get(key) in {value.strip() for value in values.split(",")}) == (word == "in")
    if "!=" in term:
        key, value = term.split("!=")
        return labels.get(key.strip()) != value.strip()
    if "=" in term:
        key, value = re.split("==?", term)
        return labels.get(key.strip()) == value.strip()
    return term[1:] not in labels if term.startswith("!") else term in labels


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _merged(before: Any, patch: Any, lists: Callable[[list[Any], list[Any]], list[Any]]) -> Any:
    if isinstance(patch, list):
        return lists(before if isinstance(before, list) else [], _copy(patch))
    if not isinstance(patch, Mapping):
        return patch
    after = _copy(before) if isinstance(before, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _merged(after.get(key), value, lists)
    return after


def _without(before: Any, applied: Mapping[str, Any], patch: Mapping[str, Any]) -> Any:
    """Without what was applied before and is not now; entries of lists that are told apart count by their key."""
    for name, said in applied.items():
        if name in ("apiVersion", "kind"):
            continue
        if name == "metadata":
            kept = patch["metadata"].get("annotations") or {}
            for given_up in (said.get("annotations") or {}).keys() - kept.keys():
                before["metadata"].get("annotations", {}).pop(given_up, None)
        elif name not in patch:
            before.pop(name, None)
        elif isinstance(said, Mapping) and name in before:
            _without(before[name], said, patch[name])
        elif isinstance(said, list) and (key := _key_of(said)):
            kept = {one[key] for one in patch[name]}
            given_up = {one[key] for one in said} - kept
            before[name] = [one for one in before.get(name, []) if one[key] not in given_up]
    return before


def _key_of(entries: list[Any]) -> str | None:
    return next((key for key in LIST_KEYS if all(isinstance(one, Mapping) and key in one for one in entries)), None)


def _replaced(before: list[Any], patch: list[Any]) -> list[Any]:
    return patch


def _by_key(before: list[Any], patch: list[Any]) -> list[Any]:
    key = _key_of([*before, *patch])
    if key is None:
        return patch
    merged = {one[key]: one for one in _copy(before)}
    for one in patch:
        if one.get("$patch") == "delete":
            merged.pop(one[key], None)
        else:
            merged[one[key]] = _merged(merged.get(one[key]), one, _by_key)
    return list(merged.values())


def _operations(document: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    at = ""
    try:
        for operation in operations:
            at = f"{operation['op']} {operation['path']}"
            _operate(document, operation)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidError(f"the server rejected our request due to an error in our request: {at}") from error
    return document


def _operate(document: Any, operation: Mapping[str, Any]) -> None:
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    parent = document
    for part in way:
        parent = parent[int(part)] if isinstance(parent, list) else parent[part]
    word, place = operation["op"], _place(parent, last)
    if word == "add" and isinstance(parent, list):
        parent.insert(place, _copy(operation["value"]))
    elif word == "add":
        parent[place] = _copy(operation["value"])
    elif word == "remove":
        del parent[place]
    elif word == "replace":
        _ = parent[place]  # what is replaced must be there
        parent[place] = _copy(operation["value"])
    elif word != "test" or parent[place] != operation["value"]:
        raise ValueError(word)


def _place(parent: Any, name: str) -> Any:
    """Where in an object or a list; ``-`` is behind the last entry of a list."""
    if not isinstance(parent, list):
        return name
    return len(parent) if name == "-" else int(name)
