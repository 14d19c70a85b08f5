"""What an API server refuses in a single object although its schema allows it: names, labels, quantities, words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from integration.chart.pods import name_of, pods_in
from integration.chart.rendering import Object

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
PORT_NAME = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
QUANTITY = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(m|k|[MGTPE]|[KMGTPE]i|[eE][0-9]+)?")

WORDS = {
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "failurePolicy": {"Ignore", "Fail"},
    "sideEffects": {"None", "NoneOnDryRun"},
    "reinvocationPolicy": {"Never", "IfNeeded"},
    "matchPolicy": {"Exact", "Equivalent"},
    "scope": {"Cluster", "Namespaced", "*"},
    "protocol": {"TCP", "UDP", "SCTP"},
    "operator": {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal"},
    "whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
    "unhealthyPodEvictionPolicy": {"IfHealthyBudget", "AlwaysAllow"},
    "fsGroupChangePolicy": {"OnRootMismatch", "Always"},
    "medium": {"", "Memory"},
    "policyTypes": {"Ingress", "Egress"},
    "operations": {"CREATE", "UPDATE", "DELETE", "CONNECT", "*"},
    "accessModes": {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"},
    "patchType": {"ApplyConfiguration", "JSONPatch"},
}
"""Fields whose values are words of a list, wherever they stand (Kubernetes API reference)."""


def names_are_allowed(objects: Sequence[Object]) -> Iterator[str]:
    for thing in objects:
        name, kind = thing["metadata"]["name"], thing["kind"]
        if not (SERVICE_NAME if kind == "Service" else DNS_SUBDOMAIN).fullmatch(name):
            yield f"{name_of(thing)}: no name that Kubernetes allows"
    for pod in pods_in(objects):
        for named in [*pod.containers, *pod.spec.get("volumes", ())]:
            if not DNS_LABEL.fullmatch(named["name"]):
                yield f"{pod.owner}: {named['name']!r} is no DNS label"
        for container in pod.containers:
            for port in container.get("ports", ()):
                if not PORT_NAME.fullmatch(port["name"]):
                    yield f"{pod.owner}: {port['name']!r} is no port's name"


def labels_are_allowed(objects: Sequence[Object]) -> Iterator[str]:
    for thing in _with_fields_of_kubernetes(objects):
        for path, labels in _values_of(thing, {"labels", "matchLabels", "nodeSelector"}):
            for key, value in labels.items():
                prefix, _, name = key.rpartition("/")
                good_key = LABEL_NAME.fullmatch(name) and (not prefix or DNS_SUBDOMAIN.fullmatch(prefix))
                if not good_key or not isinstance(value, str) or not LABEL_VALUE.fullmatch(value):
                    yield f"{name_of(thing)}: {path}: {key}={value!r} is no label"


def quantities_are_quantities(objects: Sequence[Object]) -> Iterator[str]:
    for thing in objects:
        for path, amounts in _values_of(thing, {"requests", "limits", "hard"}):
            for key, amount in amounts.items():
                if not QUANTITY.fullmatch(str(amount)):
                    yield f"{name_of(thing)}: {path}.{key}: {amount!r} is no quantity"
        for path, amount in _values_of(thing, {"sizeLimit"}):
            if not QUANTITY.fullmatch(str(amount)):
                yield f"{name_of(thing)}: {path}: {amount!r} is no quantity"


def words_are_of_their_list(objects: Sequence[Object]) -> Iterator[str]:
    for thing in _with_fields_of_kubernetes(objects):
        for path, value in _values_of(thing, set(WORDS)):
            allowed = WORDS[path.rpartition(".")[2]]
            for word in value if isinstance(value, list) else [value]:
                if word not in allowed:
                    yield f"{name_of(thing)}: {path}: {word!r} is none of {', '.join(sorted(allowed))}"


def _with_fields_of_kubernetes(objects: Sequence[Object]) -> Iterator[Object]:
    """Of a definition's schema, whose fields are named by whoever wrote it, only the rest."""
    for thing in objects:
        yield {**thing, "spec": {}} if thing["kind"] == "CustomResourceDefinition" else thing


def _values_of(thing: Any, keys: set[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of these keys, with the way there. In maps whose keys anybody may choose nothing is looked for."""
    if isinstance(thing, dict):
        for key, value in thing.items():
            here = f"{path}.{key}" if path else str(key)
            if key in keys:
                yield here, value
            if key not in ("data", "labels", "annotations"):
                yield from _values_of(value, keys, here)
    elif isinstance(thing, list):
        for index, item in enumerate(thing):
            yield from _values_of(item, keys, f"{path}[{index}]")


CHECKS = (names_are_allowed, labels_are_allowed, quantities_are_quantities, words_are_of_their_list)
