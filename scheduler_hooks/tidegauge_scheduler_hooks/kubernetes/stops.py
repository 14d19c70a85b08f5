"""Suspends a workload, for a requeue, hold or cancel, and writes on it why, while others write to it too."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from tidegauge.core.jobs.kubernetes import INCIDENT, LEAK_CONDITION, PROFILE_LABEL, REQUEUE, STOPPED
from tidegauge_scheduler_hooks.kubernetes.kueue import QUEUE_WORKLOADS, active_patch, find_queue_workload, is_active
from tidegauge_scheduler_hooks.kubernetes.owners import State, is_true
from tidegauge_scheduler_hooks.kubernetes.patches import annotate_patch, suspend_patch
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, ConflictError, KubeApi, Object
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError, TemporaryError

log = logging.getLogger(__name__)

TRIES = 4
"""Controllers write an object's status several times a second when it starts or ends."""


class Stops:
    """Stops workloads of one API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    def stop(
        self,
        look: Callable[[], Workload],
        may_stop: Callable[[Workload], Mapping[str, str | None]],
        *,
        incarnation: str,
        decision_id: str,
    ) -> Workload | None:
        """Suspend the workload; returns it as it was, ``None`` if this decision had done it before.

        ``look`` reads it anew. ``may_stop`` returns the annotations to write, or raises if it must not be stopped (any
        more); it is asked each time the object has changed. Raises ``TemporaryError``, ``PermanentError``."""
        for _ in range(TRIES):
            workload = look()
            if was_ordered(workload, incarnation, decision_id):
                if workload.state is State.RUNNING and workload.incarnation == incarnation:
                    self._deactivate(workload)  # the last try may have ended between the two steps that Kueue needs
                return None
            intent = may_stop(workload)
            queued = find_queue_workload(self._api, workload)
            patch = suspend_patch(workload.kind, workload.obj, intent, by_kueue=queued is not None)
            try:
                self._api.patch(workload.kind.resource, workload.namespace, workload.name, patch)
            except ConflictError:
                continue
            except TemporaryError:
                # The answer may have been lost on its way here.
                if not was_ordered(look(), incarnation, decision_id):
                    raise
            if queued is not None:
                try:
                    self._deactivate(workload)
                except PermanentError:
                    self._take_back(look, intent)
                    raise
            return workload
        raise TemporaryError(f"{look().title}: another client keeps changing it; retrying")

    def _deactivate(self, workload: Workload) -> None:
        for _ in range(TRIES):
            queued = find_queue_workload(self._api, workload)
            if queued is None or not is_active(queued):
                return
            try:
                patch = active_patch(queued, False)
                self._api.patch(QUEUE_WORKLOADS, workload.namespace, queued["metadata"]["name"], patch)
            except ConflictError:
                continue
            return
        raise TemporaryError(f"Kueue's Workload of {workload.title}: another client keeps changing it")

    def _take_back(self, look: Callable[[], Workload], intent: Mapping[str, str | None]) -> None:
        """Remove the annotations, because the workload runs on."""
        try:
            workload = look()
            patch = annotate_patch(workload.obj, dict.fromkeys(intent))
            self._api.patch(workload.kind.resource, workload.namespace, workload.name, patch)
        except SchedulerError as error:
            log.warning("annotations %s and %s may be out of date: %s", REQUEUE, STOPPED, error)


def was_ordered(workload: Workload, incarnation: str, decision_id: str) -> bool:
    """Whether this decision about this run is written on it."""
    return any(
        intent is not None and (intent.decision, intent.mark) == (decision_id, incarnation)
        for intent in (workload.order, workload.stopped)
    )


SETTLES_S = 5.0
"""The time in which a controller that is putting the condition on pods sees that it is to be removed: it looks at the
workload again after every few pods (``controller.reconcile.MARKED_AT_ONCE``)."""
PODS_PER_S = 10.0
"""The controller's minimum rate; its client makes 20 requests a second."""
MAX_RETRY_S = 60.0


def goes_by_condition(workload: Workload, links: Iterable[Object]) -> bool:
    """Whether the workload, or an object between it and its pods (a TrainJob's JobSet), mentions the condition."""
    return any(LEAK_CONDITION in json.dumps(obj.get("spec")) for obj in (workload.obj, *links))


def take_marks_off(api: KubeApi, workload: Workload, *, controller_away: str | None) -> None:
    """Returns once none of its pods bears the condition, and none will be given it.

    ``controller_away``: why there is no controller that would take it off; ``None``: there is one. Raises
    ``TemporaryError`` until then, ``PermanentError``."""
    if INCIDENT in annotations_of(workload.obj):
        patch = annotate_patch(workload.obj, {INCIDENT: None})
        with suppress(ConflictError):  # then it is there at the next try
            api.patch(workload.kind.resource, workload.namespace, workload.name, patch)
        raise TemporaryError(
            f"{workload.title} is not suspended yet: first the condition {LEAK_CONDITION} is removed from its pods, or "
            "its podFailurePolicy would fail it",
            retry_after_s=SETTLES_S,
        )
    marked = _marked(api, workload)
    if marked and controller_away is not None:
        raise TemporaryError(
            f"{workload.title} is not suspended: {marked} of its pods have the condition {LEAK_CONDITION}, for which "
            f"its podFailurePolicy would fail it, and no controller removes it ({controller_away}; "
            "docs/kubernetes_controller.md)",
            retry_after_s=MAX_RETRY_S,
        )
    if marked:
        raise TemporaryError(
            f"{workload.title} is not suspended yet: {marked} of its pods still have the condition {LEAK_CONDITION}",
            retry_after_s=min(MAX_RETRY_S, SETTLES_S + marked / PODS_PER_S),
        )


def _marked(api: KubeApi, workload: Workload) -> int:
    """By the API server: a watch may be a moment behind."""
    ours = {pod["metadata"]["uid"] for pod in workload.living}
    pods = api.list(PODS, workload.namespace, label_selector=PROFILE_LABEL) if ours else ()
    return sum(pod["metadata"]["uid"] in ours and is_true(pod, LEAK_CONDITION) for pod in pods)
