"""The pods that manifests would make, whatever makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from integration.chart.rendering import Object


class Pod(NamedTuple):
    """A pod, or the template of some."""

    owner: str
    """``Kind/name``, for messages."""
    namespace: str | None
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def containers(self) -> Sequence[Mapping[str, Any]]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]


def name_of(thing: Object) -> str:
    return f"{thing['kind']}/{thing['metadata']['name']}"


def pods_in(objects: Sequence[Object]) -> Iterator[Pod]:
    for thing in objects:
        namespace = thing["metadata"].get("namespace")
        if thing["kind"] == "Pod":
            yield Pod(name_of(thing), namespace, thing["metadata"].get("labels", {}), thing["spec"])
        template = thing.get("spec", {}).get("template") if isinstance(thing.get("spec"), dict) else None
        if template:
            yield Pod(name_of(thing), namespace, template["metadata"].get("labels", {}), template["spec"])


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A LabelSelector, with ``matchLabels`` and the operators that the chart uses."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        value = labels.get(rule["key"])
        holds = {
            "In": value in rule.get("values", ()),
            "NotIn": value not in rule.get("values", ()),
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[rule["operator"]]:
            return False
    return True
