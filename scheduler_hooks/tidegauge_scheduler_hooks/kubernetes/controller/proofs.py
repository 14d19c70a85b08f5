"""What a workload was started again with, by one of its new pods. Pure.

Between the workload and its pods are others' controllers and webhooks, so what was asked for is no proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge.core.alloc_conf import ALLOCATOR_VARIABLES, is_one_setting
from tidegauge.core.jobs.kubernetes import INJECTED, PROFILE_LABEL, UNREAD
from tidegauge.core.jobs.settings import JobSettings, changes, may_set
from tidegauge.core.jobs.variables import FRACTION_VARIABLE, parse_fraction
from tidegauge_scheduler_hooks.kubernetes.injection.names import CONTAINER_VARIABLE
from tidegauge_scheduler_hooks.kubernetes.intents import Changes, RequeueOrder, merged
from tidegauge_scheduler_hooks.kubernetes.owners import at
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.workloads import (
    BY_POLICY,
    Workload,
    annotations_of,
    labels_of,
    told_attempt,
)


class RestartProof(NamedTuple):
    """What the owner is told."""

    complete: bool
    """Whether the pod has the attempt and all changes."""
    text: str


def proof_of(workload: Workload, order: RequeueOrder, pod: Object | None) -> RestartProof:
    """``pod``: a new one; ``None``: the workload ended before one was seen."""
    if pod is None:
        said = f"Restarted as attempt {order.attempt}, and ended before a pod of it was seen"
        return RestartProof(False, f"{said}, so nothing is known of its settings. {order.reason}")
    wanted = merged(workload.changes, order.changes)
    unusable = _unusable(wanted)
    alloc_conf = {name: text for name, text in wanted.alloc_conf.items() if name not in unusable}
    settings = JobSettings("", 0, 0, wanted.environ, alloc_conf, wanted.torch_version)
    watched = [
        values for values in map(_literals, at(pod, ("spec", "containers")) or ()) if CONTAINER_VARIABLE in values
    ]
    has, lacks = dict[str, str](), dict[str, str]()
    for values in watched or [{}]:
        # What is in force changes nothing when it is set again.
        missing = unusable | {
            name: text for name, text in changes(settings, values).items() if values.get(name) != text
        }
        lacks |= missing
        names = {*wanted.environ, *(ALLOCATOR_VARIABLES if wanted.alloc_conf else ())} - missing.keys()
        has |= {name: values[name] for name in sorted(names) if name in values}
    told = told_attempt(pod) == order.attempt
    name = pod["metadata"]["name"]
    carries = f" with {_listed(has)}" if has else ""
    if told and not lacks:
        return RestartProof(True, f"Restarted as attempt {order.attempt}{carries} (pod {name}): {order.reason}")
    without = ([] if told else [f"the attempt number {order.attempt}"]) + ([_listed(lacks)] if lacks else [])
    lacking = f"Restarted{carries}, but without {', '.join(without)}"
    return RestartProof(False, f"{lacking}: pod {name} {_why(workload, pod, lacks, unusable)}. {order.reason}")


def _unusable(wanted: Changes) -> dict[str, str]:
    """Changes that can never be in force, by name: only a forged order has them."""
    odd = {name: text for name, text in wanted.environ.items() if not _is_usable(name, text)}
    return odd | {name: text for name, text in wanted.alloc_conf.items() if not is_one_setting(name, text)}


def _is_usable(name: str, text: str) -> bool:
    return may_set(name) and (name != FRACTION_VARIABLE or parse_fraction(text) is not None)


def _why(workload: Workload, pod: Object, lacks: Mapping[str, str], unusable: Mapping[str, str]) -> str:
    """Why it has not what it should have."""
    annotations = annotations_of(pod)
    mark, told, unread = annotations.get(INJECTED), told_attempt(pod), annotations.get(UNREAD)
    if mark is None:
        label = "" if PROFILE_LABEL in labels_of(pod) else f" (it has no label {PROFILE_LABEL})"
        return f"was made without Tidegauge's webhook, which was away, or is not asked about such pods{label}"
    if mark.startswith(BY_POLICY):
        return "was prepared by a MutatingAdmissionPolicy, which cannot read its workload (injection.mode)"
    if unread is not None:
        return f"was made while its workload could not be read: {unread}"
    if told != workload.attempt:
        return f"was told attempt {told or 0}: the webhook saw an earlier state of its workload"
    if unusable:
        return f"was told, and Tidegauge sets no such values: {_listed(unusable)}"
    names = {*lacks, *(ALLOCATOR_VARIABLES if lacks.keys() & set(ALLOCATOR_VARIABLES) else ())}
    referred = sorted(names & {name for one in at(pod, ("spec", "containers")) or () for name in _references(one)})
    if referred:
        return f"was told, and its template sets {', '.join(referred)} by valueFrom"
    return "was told, and somebody has changed it after Tidegauge's webhook"


def _literals(container: Mapping[str, Any]) -> Mapping[str, str]:
    """The variables with a text."""
    return {one["name"]: one.get("value") or "" for one in container.get("env") or () if not one.get("valueFrom")}


def _references(container: Mapping[str, Any]) -> set[str]:
    """The variables whose text is elsewhere."""
    return {one["name"] for one in container.get("env") or () if one.get("valueFrom")}


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in sorted(values.items()))
