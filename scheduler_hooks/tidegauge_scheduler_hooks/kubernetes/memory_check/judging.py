"""Compares needs with rooms, and words the answer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegauge.core.units import format_bytes
from tidegauge.estimator.largest_batch import ERROR_SHARE, fitting_bytes
from tidegauge.estimator.results import FitVerdict
from tidegauge_scheduler_hooks.kubernetes.injection.shares import GPU_PREFIXES
from tidegauge_scheduler_hooks.kubernetes.memory_check.needs import KnownNeed, stated_need, unreadable_need
from tidegauge_scheduler_hooks.kubernetes.memory_check.rooms import GpuRoom, room_of
from tidegauge_scheduler_hooks.kubernetes.owners import at
from tidegauge_scheduler_hooks.kubernetes.ports import Object

_ORDER = (FitVerdict.FITS, FitVerdict.TOO_CLOSE, FitVerdict.DOES_NOT_FIT)


class GpuPodSet(NamedTuple):
    """Pods of one template that have GPUs."""

    name: str
    stated: KnownNeed | None
    """By the template's annotation."""
    room: GpuRoom | None
    """The largest of those assigned; ``None``: not known."""
    unreadable: str | None = None
    """Why the template's annotation does not count, for people."""


@dataclass(frozen=True)
class FitAnswer:
    """What is said of a job. ``verdict`` is ``None`` where nothing could be compared."""

    text: str
    verdict: FitVerdict | None = None
    unreadable: bool = False
    """Whether its owner stated a need that could not be read."""


_NOTHING_KNOWN = FitAnswer("Not compared: nothing is known of what it needs")


def gpu_pod_sets(workload: Object, flavor: Callable[[str], Object | None]) -> Sequence[GpuPodSet]:
    """Of Kueue's Workload, by its ``status.admission``."""
    assignments = {one.get("name"): one for one in at(workload, ("status", "admission", "podSetAssignments")) or ()}
    found = []
    for pod_set in at(workload, ("spec", "podSets")) or ():
        flavors = (assignments.get(pod_set.get("name")) or {}).get("flavors") or {}
        gpus = {resource: name for resource, name in flavors.items() if resource.startswith(GPU_PREFIXES)}
        if gpus:
            selector = at(pod_set, ("template", "spec", "nodeSelector")) or {}
            rooms = [_room(resource, name, flavor(name), selector) for resource, name in gpus.items()]
            room = None if None in rooms else max((one for one in rooms if one is not None), default=None)
            said = at(pod_set, ("template", "metadata", "annotations")) or {}
            found.append(GpuPodSet(str(pod_set.get("name")), stated_need(said), room, unreadable_need(said)))
    return found


def judge(pod_sets: Sequence[GpuPodSet], of_job: KnownNeed | None, unreadable: str | None = None) -> FitAnswer:
    """The worst of what is to be said. ``of_job``: of the fullest rank of the whole job, so only what no GPU of it has
    room for is told not to fit. ``unreadable``: why the job's annotation does not count."""
    answer = _judged(pod_sets, of_job)
    unread = next((why for why in (unreadable, *(one.unreadable for one in pod_sets)) if why is not None), None)
    if unread is None or not pod_sets:
        return answer
    text = f"Not compared: {unread}" if answer is _NOTHING_KNOWN else f"{answer.text}; {unread}"
    return FitAnswer(text, answer.verdict, unreadable=True)


def _judged(pod_sets: Sequence[GpuPodSet], of_job: KnownNeed | None) -> FitAnswer:
    answers = [_compared(one.stated, one.room, f"pods {one.name}: ") for one in pod_sets if one.stated is not None]
    rest = [one.room for one in pod_sets if one.stated is None]
    if rest and of_job is not None:
        room = None if None in rest else max(one for one in rest if one is not None)
        answers.append(_compared(of_job, room, ""))
    if not pod_sets:
        return FitAnswer("It asks for no GPU")
    if not answers:
        return _NOTHING_KNOWN
    judged = [one for one in answers if one.verdict is not None]
    return max(judged, key=lambda one: _ORDER.index(one.verdict or FitVerdict.FITS)) if judged else answers[0]


def _compared(need: KnownNeed | None, room: GpuRoom | None, of: str) -> FitAnswer:
    assert need is not None
    needs = f"{of}needs {format_bytes(need.needed_bytes)} by {need.source}"
    if room is None:
        return FitAnswer(f"Not compared: {needs}, and nobody says how much memory its GPUs have")
    verdict, words = FitVerdict.TOO_CLOSE, "too close to say whether it fits"
    if need.needed_bytes <= fitting_bytes(room.at_most_bytes):
        verdict, words = FitVerdict.FITS, "fits"
    elif need.needed_bytes * (1 - ERROR_SHARE) > room.at_most_bytes:
        verdict, words = FitVerdict.DOES_NOT_FIT, "will not fit"
    said = f"{needs}: {words} {room.name} ({format_bytes(room.at_most_bytes)} at most)"
    return FitAnswer(said[0].upper() + said[1:], verdict)


def _room(resource: str, name: str, flavor: Object | None, selector: Mapping[str, Any]) -> GpuRoom | None:
    labels = {**(at(flavor, ("spec", "nodeLabels")) or {}), **selector}
    return room_of(resource, name, labels, at(flavor, ("metadata", "annotations")) or {})
