"""Takes the next steps (``steps``) on one workload, one patch at a time, until nothing is left to do.

Each patch carries the version of the object that the step was found for, so a step that is late, or comes twice, is
refused (``ConflictError``) and found anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegauge.core.jobs.kubernetes import INCIDENT, LEAK_CONDITION, REQUEUE, RESTARTING
from tidegauge.core.text import one_line
from tidegauge_scheduler_hooks.kubernetes.controller.cluster_state import ClusterState
from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import StepCounts, outcome_of
from tidegauge_scheduler_hooks.kubernetes.controller.proofs import proof_of
from tidegauge_scheduler_hooks.kubernetes.controller.steps import Act, WorkloadStep, next_step
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.events import RESTARTED_EVENT, UNPROVEN_EVENT, record_event
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder
from tidegauge_scheduler_hooks.kubernetes.kueue import QUEUE_WORKLOADS, active_patch, find_queue_workload
from tidegauge_scheduler_hooks.kubernetes.owners import State, timestamp
from tidegauge_scheduler_hooks.kubernetes.patches import annotate_patch, resume_patch
from tidegauge_scheduler_hooks.kubernetes.ports import (
    PODS,
    ConflictError,
    KubeApi,
    Object,
    ObjectNotFoundError,
    Patch,
)
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError

log = logging.getLogger(__name__)

# ``LEAK_CONDITION`` on pods: what a ``podFailurePolicy`` with ``onPodConditions`` matches. The kubelet leaves those
# conditions alone that are not its own.

REASON_ON, REASON_OFF = "GpuMemoryLeaks", "IncidentOver"


def mark_pods(
    api: KubeApi,
    pods: Iterable[Object],
    *,
    message: str | None,
    may_act: Callable[[], bool],
    now_s: Callable[[], float],
) -> int:
    """Put the condition on ``pods``, or mark it as over (``message=None``); returns the number of pods. Pods that went
    meanwhile are left out. Raises ``TemporaryError``, ``PermanentError``; then some may have it."""
    changed = 0
    for pod in pods:
        if not may_act():
            break
        metadata = pod["metadata"]
        try:
            api.patch(
                PODS, metadata["namespace"], metadata["name"], condition_patch(pod, message, now_s=now_s()),
                how=Patch.STRATEGIC, subresource="status",
            )  # fmt: skip
        except (ObjectNotFoundError, ConflictError):
            continue
        changed += 1
    return changed


def condition_patch(pod: Object, message: str | None, *, now_s: float) -> dict[str, Any]:
    """A strategic merge patch of the status: conditions are merged by their type, so those of others stay. It has the
    pod's uid, as another pod may have its name by now (``ConflictError``)."""
    condition = {
        "type": LEAK_CONDITION,
        "status": "False" if message is None else "True",
        "reason": REASON_OFF if message is None else REASON_ON,
        "message": "" if message is None else message,
        "lastTransitionTime": timestamp(now_s),
    }
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": [condition]}}


MAX_STEPS = 8
"""In a row on one workload; the longest sequence, with Kueue's Workload, has three."""
AGAIN_S, SELDOM_S = 2.0, 30.0
"""Bounds of the wait for something: at first short, then a tenth of the time that it has taken."""
MARKED_AT_ONCE = 20
"""Pods, which are about a second's requests. No pod must get the condition long after the annotation was removed
(``stops.SETTLES_S``)."""
SLOW_S = 600.0
"""After this time pods that have not ended need a person (a node that does not answer)."""
WAITING_EVENT, DROPPED_EVENT = "GpuMemoryRequeueWaits", "GpuMemoryRequeueDropped"


class Reconciler:
    """Thread-safe, as long as no two threads work on one key at once. ``may_act`` says whether this process leads, and
    is asked before every step. ``marks``: put ``LEAK_CONDITION`` on pods."""

    def __init__(
        self,
        api: KubeApi,
        look: ClusterState,
        *,
        may_act: Callable[[], bool],
        counts: StepCounts,
        marks: bool = True,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._marks = marks
        self._look = look
        self._may_act = may_act
        self._counts = counts
        self._now_s = now_s
        self._told: dict[WorkKey, str] = {}
        """The orders whose wait the owner was notified of."""

    def reconcile(self, key: WorkKey) -> float | None:
        """Seconds after which to look again; ``None``: once something changes. Raises ``TemporaryError``,
        ``PermanentError``: look again later, too."""
        for _ in range(MAX_STEPS):
            workload = self._look.workload(key)
            step = None if workload is None else self._next(workload)
            if workload is None or step is None:
                self._told.pop(key, None)
                return None
            if step.act is Act.WAIT:
                return self._wait(key, workload, step)
            if not self._may_act():
                return None
            try:
                self._do(workload, step)
            except PermanentError as error:
                if step.order is not None:
                    self._tell_once(key, workload, step.order, str(error))
                raise
        return AGAIN_S

    def _next(self, workload: Workload) -> WorkloadStep | None:
        around = self._look.surroundings(workload)
        return next_step(workload, around, now_s=self._now_s(), marks=self._marks)

    def _wait(self, key: WorkKey, workload: Workload, step: WorkloadStep) -> float:
        assert step.order is not None
        waited_s = self._now_s() - step.order.at
        log.debug("%s is waiting: %s", key, step.reason)
        if waited_s > SLOW_S and workload.order is not None and self._may_act():
            self._tell_once(key, workload, step.order, step.reason)
        return min(SELDOM_S, max(AGAIN_S, waited_s / 10))

    def _tell_once(self, key: WorkKey, workload: Workload, order: RequeueOrder, why: str) -> None:
        """Tell the owner that a workload which was suspended for a moment still is."""
        if self._told.get(key) != order.decision:
            self._told[key] = order.decision
            log.warning("%s should have restarted %.0f s ago: %s", key, self._now_s() - order.at, why)
            self._tell(workload, WAITING_EVENT, f"Not restarted yet: {why}", order.decision)

    def _do(self, workload: Workload, step: WorkloadStep) -> None:
        with self._counts.counting(step.act.value):
            self._act(workload, step)

    def _act(self, workload: Workload, step: WorkloadStep) -> None:
        if step.act in (Act.MARK, Act.UNMARK):
            self._mark(workload, step)
            return
        if step.act is Act.DROP:
            self._drop(workload, step)
            return
        if step.act is Act.FORGET:
            self._patch(workload, annotate_patch(workload.obj, {RESTARTING: None}))
            return
        order = step.order
        assert order is not None
        if step.act is Act.ACTIVATE:
            self._activate(workload)
        elif step.act is Act.PROVE:
            self._prove(workload, order, next(iter(step.pods), None))
        elif step.act is Act.SETTLE:
            self._patch(workload, annotate_patch(workload.obj, {REQUEUE: None}))
        else:
            self._resume(workload, order, by_kueue=step.act is Act.ANNOTATE)

    def _mark(self, workload: Workload, step: WorkloadStep) -> None:
        message, changed = step.reason if step.act is Act.MARK else None, 0
        for first in range(0, len(step.pods), MARKED_AT_ONCE):
            if first and not self._is_still_told(workload):
                break
            pods = step.pods[first : first + MARKED_AT_ONCE]
            changed += mark_pods(self._api, pods, message=message, may_act=self._may_act, now_s=self._now_s)
        log.info("%s: %d of its pods are %sed", workload.title, changed, step.act.value)

    def _is_still_told(self, before: Workload) -> bool:
        """Whether the workload's incident annotation is unchanged."""
        try:
            now = self._api.get(before.kind.resource, before.namespace, before.name)
        except ObjectNotFoundError:
            return False
        return annotations_of(now).get(INCIDENT) == annotations_of(before.obj).get(INCIDENT)

    def _drop(self, workload: Workload, step: WorkloadStep) -> None:
        self._patch(workload, annotate_patch(workload.obj, {REQUEUE: None}))
        log.info("%s is not restarted: %s", workload.title, one_line(step.reason))
        if workload.state in (State.SUSPENDED, State.STOPPING):
            decision = "" if step.order is None else step.order.decision
            self._tell(workload, DROPPED_EVENT, f"Not restarted by Tidegauge: {step.reason}.", decision)

    def _resume(self, workload: Workload, order: RequeueOrder, *, by_kueue: bool) -> None:
        self._patch(workload, resume_patch(workload.kind, workload.obj, order, by_kueue=by_kueue))
        log.info("%s restarts as attempt %d (decision %s)", workload.title, order.attempt, one_line(order.decision))

    def _prove(self, workload: Workload, order: RequeueOrder, pod: Object | None) -> None:
        """Told first: an Event has its name from the decision, so one that is told again is the same."""
        proof = proof_of(workload, order, pod)
        log.log(logging.INFO if proof.complete else logging.WARNING, "%s: %s", workload.title, one_line(proof.text))
        reason = RESTARTED_EVENT if proof.complete else UNPROVEN_EVENT
        self._tell(workload, reason, proof.text, order.decision, warning=not proof.complete)
        self._patch(workload, annotate_patch(workload.obj, {RESTARTING: None}))

    def _activate(self, workload: Workload) -> None:
        queue_workload = find_queue_workload(self._api, workload)
        if queue_workload is None:
            return  # it went just now: the next look sees the workload without it
        name = queue_workload["metadata"]["name"]
        self._api.patch(QUEUE_WORKLOADS, workload.namespace, name, active_patch(queue_workload, True))
        log.info("%s: its Workload %s is active again", workload.title, name)

    def _patch(self, workload: Workload, patch: Mapping[str, Any]) -> None:
        self._api.patch(workload.kind.resource, workload.namespace, workload.name, patch)

    def _tell(self, workload: Workload, reason: str, note: str, decision: str, *, warning: bool = True) -> None:
        """Leave an Event for the owner. A failure to write it does not undo the step."""
        regarding = (workload.kind.resource, workload.obj)
        try:
            record_event(self._api, regarding, reason=reason, note=note, decision_id=decision, warning=warning)
        except SchedulerError as error:
            self._counts.count("event", outcome_of(error))
            log.warning("%s: the Event for its owner could not be written: %s", workload.title, error)
