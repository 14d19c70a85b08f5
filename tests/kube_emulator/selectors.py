"""Label and field selectors, as texts of a request and as objects inside specifications."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kube_emulator.errors import bad_request
from kube_emulator.resources import ResourceType

Matches = Callable[[Mapping[str, Any]], bool]

_REQUIREMENT = re.compile(
    r"\s*(?:(?P<absent>!\s*)?(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)"
    r"(?:\s*(?P<operator>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)|\s+(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?)\s*(?:,|$)"
)


def label_selector(text: str) -> Matches:
    """``a=b,c in (d,e),!f``. Raises a 400."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    position = 0
    while position < len(text):
        found = _REQUIREMENT.match(text, position)
        if found is None:
            raise bad_request(f"unable to parse requirement: found '{text[position:]}', expected: identifier")
        position = found.end()
        tests.append(_requirement(found))
    return lambda value: all(test(value["metadata"].get("labels") or {}) for test in tests)


def _requirement(found: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    key, operator = found["key"], found["operator"]
    if found["absent"]:
        return lambda labels: key not in labels
    if operator in ("=", "=="):
        return lambda labels: labels.get(key) == found["value"]
    if operator == "!=":
        return lambda labels: labels.get(key) != found["value"]
    if found["set"]:
        values = {value.strip() for value in found["values"].split(",")}
        inside = found["set"] == "in"
        return lambda labels: (key in labels and labels[key] in values) if inside else labels.get(key) not in values
    return lambda labels: key in labels


def matches_labels(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A ``LabelSelector`` object; an empty one matches everything, none matches nothing."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_expression(each, labels) for each in selector.get("matchExpressions") or [])


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    return {
        "In": key in labels and labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[expression["operator"]]


_FIELDS: Mapping[str, frozenset[str]] = {
    "pods": frozenset(
        f"spec.{name}" for name in ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork")
    )
    | {"status.phase", "status.podIP", "status.nominatedNodeName"},
    "events": frozenset(
        f"involvedObject.{name}"
        for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    )
    | {"reason", "reportingComponent", "source", "type"},
    "jobs": frozenset({"status.successful"}),
    "namespaces": frozenset({"status.phase"}),
    "nodes": frozenset({"spec.unschedulable"}),
    "secrets": frozenset({"type"}),
}
_EVENT_NAMES = {"regarding": "involvedObject", "reportingController": "reportingComponent"}


def field_selector(text: str, resource: ResourceType) -> Matches:
    """``metadata.name=a,status.phase!=Running``. Raises a 400 for a field that the kind cannot be selected by."""
    tests: list[tuple[str, bool, str]] = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", part)
        if found is None:
            raise bad_request(f"invalid field selector: invalid selector: '{text}'; can't understand '{part}'")
        path, operator, value = found.groups()
        if resource.plural == "events":
            head, dot, rest = path.partition(".")
            path = _EVENT_NAMES.get(head, head) + dot + rest
        known = path in ("metadata.name", "metadata.namespace") or path in _FIELDS.get(resource.plural, ())
        if not known:
            raise bad_request(f"field label not supported: {path}")
        tests.append((path, operator == "!=", value))
    return lambda value: all((_field(value, path) == wanted) != negated for path, negated, wanted in tests)


def named(text: str) -> str | None:
    """The name that a field selector asks for: rules of RBAC that name objects allow lists and watches of it alone."""
    found = re.fullmatch(r"metadata\.name==?([^,!=]+)", text)
    return found[1] if found else None


def _field(value: Mapping[str, Any], path: str) -> str:
    if path == "source":
        return str((value.get("source") or {}).get("component") or value.get("reportingComponent") or "")
    if path == "status.successful":
        path = "status.succeeded"
        found: Any = (value.get("status") or {}).get("succeeded", 0)
        return str(found)
    found = value
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    if isinstance(found, bool):
        return "true" if found else "false"
    return "" if found is None else str(found)
