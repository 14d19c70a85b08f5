"""The controller of the admission checks whose ``controllerName`` is ``CONTROLLER_NAME``.

Kueue waits for a check as long as its state is Pending, whoever sets it and however long that takes
(``pkg/workload/admissionchecks.go``). So what cannot be compared within ``within_s`` passes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegauge.core.jobs.kubernetes import PREFIX
from tidegauge.estimator.results import FitVerdict
from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import StepCounts
from tidegauge_scheduler_hooks.kubernetes.controller.options import MemoryCheckOptions
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.events import cut, record_event, regarding_owner
from tidegauge_scheduler_hooks.kubernetes.kueue import ADMISSION_CHECKS, QUEUE_WORKLOADS, RESOURCE_FLAVORS
from tidegauge_scheduler_hooks.kubernetes.memory_check.judging import FitAnswer, gpu_pod_sets, judge
from tidegauge_scheduler_hooks.kubernetes.memory_check.needs import RecordedNeeds, stated_need, unreadable_need
from tidegauge_scheduler_hooks.kubernetes.owners import at, condition, controller_of, is_true, time_s, timestamp
from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Object, ObjectStore, Resource, Watches
from tidegauge_scheduler_hooks.kubernetes.statuses import apply_status
from tidegauge_scheduler_hooks.kubernetes.workloads import annotations_of
from tidegauge_scheduler_hooks.ports import SchedulerError

log = logging.getLogger(__name__)

CONTROLLER_NAME = PREFIX + "memory"
MISFIT_EVENT = "GpuMemoryMayNotFit"
UNREADABLE_EVENT = "GpuMemoryNeedUnreadable"
MAX_MESSAGE_BYTES = 1024
AGAIN_S = 2.0


class MemoryChecks:
    """Thread-safe, as long as no two threads work on one key at once. Tells ``on_key`` of what needs an answer.

    ``owner``: a job's object by its uid, if it is watched."""

    def __init__(
        self,
        api: KubeApi,
        watches: Watches,
        options: MemoryCheckOptions,
        *,
        owner: Callable[[str], Object | None],
        on_key: Callable[[WorkKey], None],
        counts: StepCounts,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._counts = counts
        self._options = options
        self._owner = owner
        self._on_key = on_key
        self._now_s = now_s
        self._needs = RecordedNeeds(options.needs_file, now_s=now_s)
        self.stores: dict[Resource, ObjectStore] = {}
        # In this order: what a Workload is judged by is there before it is told of.
        self.stores[RESOURCE_FLAVORS] = self._flavors = watches.store(RESOURCE_FLAVORS)
        self.stores[ADMISSION_CHECKS] = watches.store(ADMISSION_CHECKS, on_change=self._check_changed)
        self.stores[QUEUE_WORKLOADS] = watches.store(QUEUE_WORKLOADS, on_change=self._changed)

    def tell_all(self) -> None:
        """Call ``on_key`` for all that needs an answer now."""
        for resource in (ADMISSION_CHECKS, QUEUE_WORKLOADS):
            for obj in self._all(resource):
                self._changed(obj, False)

    @staticmethod
    def covers(key: WorkKey) -> bool:
        return key.kind in (QUEUE_WORKLOADS.kind, ADMISSION_CHECKS.kind)

    def reconcile(self, key: WorkKey) -> float | None:
        """As ``Reconciler.reconcile``."""
        if key.kind == ADMISSION_CHECKS.kind:
            found = self.stores[ADMISSION_CHECKS].get(None, key.name)
            if found is not None and _is_ours(found) and not is_true(found, "Active"):
                with self._counts.counting("activate_check"):
                    self._activate(found)
            return None
        workload = self.stores[QUEUE_WORKLOADS].get(key.namespace, key.name)
        if workload is None or not self._is_due(workload):
            return None
        answer = self._answer(workload)
        if answer is None:
            return AGAIN_S
        with self._counts.counting("check"):
            self._write(workload, answer)
        return None

    def _changed(self, obj: Object, deleted: bool) -> None:
        """Called in a watch's thread."""
        if deleted:
            return
        if obj.get("kind") == ADMISSION_CHECKS.kind:
            if _is_ours(obj) and not is_true(obj, "Active"):
                self._on_key(WorkKey(ADMISSION_CHECKS.kind, "", obj["metadata"]["name"]))
        elif self._is_due(obj):
            self._on_key(WorkKey(QUEUE_WORKLOADS.kind, obj["metadata"]["namespace"], obj["metadata"]["name"]))

    def _check_changed(self, obj: Object, deleted: bool) -> None:
        self._changed(obj, deleted)
        if _is_ours(obj):
            for workload in self._all(QUEUE_WORKLOADS):
                self._changed(workload, False)

    def _all(self, resource: Resource) -> Sequence[Object]:
        """Watches tell what they find while they are being made."""
        store = self.stores.get(resource)
        return () if store is None else store.all()

    def _is_due(self, workload: Object) -> bool:
        """Whether it has quota, and waits for a check of ours. One that is being evicted has it for a moment more, and
        its checks wait already; an answer then would stand for the next flavor."""
        holds = is_true(workload, "QuotaReserved") and not is_true(workload, "Evicted")
        return holds and any(one["state"] == "Pending" for one in self._ours(workload))

    def _ours(self, workload: Object) -> Sequence[Mapping[str, Any]]:
        states = at(workload, ("status", "admissionChecks")) or ()
        checks = self.stores[ADMISSION_CHECKS]
        return [one for one in states if (check := checks.get(None, one["name"])) is not None and _is_ours(check)]

    def _answer(self, workload: Object) -> FitAnswer | None:
        """``None``: not yet."""
        try:
            problem = None if self._flavors.synced else self._flavors.problem or "flavors have not been listed"
            if problem is None:
                return self._judged(workload)
        except OSError as error:
            problem = str(error)
        except Exception:  # a job must not wait for a defect
            log.exception("Workload %s could not be compared", workload["metadata"]["name"])
            return FitAnswer("Not compared: internal error")
        since_s = time_s((condition(workload, "QuotaReserved") or {}).get("lastTransitionTime"))
        if since_s is not None and self._now_s() < since_s + self._options.within_s:
            return None
        return FitAnswer(f"Not compared within {self._options.within_s:g} s: {problem}")

    def _judged(self, workload: Object) -> FitAnswer:
        pod_sets = gpu_pod_sets(workload, lambda name: self._flavors.get(None, name))
        reference = controller_of(workload)
        if reference is None:
            return judge(pod_sets, None)
        owner = self._owner(reference.uid)
        said = {} if owner is None else annotations_of(owner)
        namespace = workload["metadata"]["namespace"]
        of_job = stated_need(said) or self._needs.of_job(namespace, reference.name, owner)
        return judge(pod_sets, of_job, unreadable_need(said))

    def _write(self, workload: Object, answer: FitAnswer) -> None:
        """Apply the states of all checks of ours: one that was left out would be given up."""
        # The check may have come to the queue while the job ran: that is no reason to end it.
        rejected = (
            self._options.rejects and answer.verdict is FitVerdict.DOES_NOT_FIT and not is_true(workload, "Admitted")
        )
        mine = {
            "state": "Rejected" if rejected else "Ready",
            "message": cut(answer.text, MAX_MESSAGE_BYTES),
            "lastTransitionTime": timestamp(self._now_s()),
        }
        states = [
            {"name": one["name"], **(mine if one["state"] == "Pending" else {key: one[key] for key in mine})}
            for one in self._ours(workload)
        ]
        metadata = workload["metadata"]
        apply_status(self._api, QUEUE_WORKLOADS, metadata, {"admissionChecks": states}, as_read=True)
        log.info("Workload %s/%s: %s", metadata["namespace"], metadata["name"], answer.text)
        if answer.verdict in (FitVerdict.DOES_NOT_FIT, FitVerdict.TOO_CLOSE):
            self._tell(workload, MISFIT_EVENT, f"{answer.text}{'. Rejected' if rejected else '. It was not held'}")
        elif answer.unreadable:
            self._tell(workload, UNREADABLE_EVENT, answer.text)

    def _tell(self, workload: Object, reason: str, note: str) -> None:
        """Leave an Event for the job's owner, once for each admission. The answer counts, with or without."""
        job, namespace = controller_of(workload), workload["metadata"]["namespace"]
        regarding = (QUEUE_WORKLOADS, workload) if job is None else regarding_owner(job, namespace)
        reserved = (condition(workload, "QuotaReserved") or {}).get("lastTransitionTime")
        admission = f"{workload['metadata']['uid']}/{reserved}"
        try:
            record_event(self._api, regarding, reason=reason, note=note, decision_id=admission)
        except SchedulerError as error:
            log.warning("the Event for the owner of %s could not be written: %s", workload["metadata"]["name"], error)

    def _activate(self, check: Object) -> None:
        """Without the condition Kueue lets nothing into the queues that name the check."""
        active = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": f"Jobs pass within {self._options.within_s:g} s while a controller of Tidegauge leads",
            "observedGeneration": check["metadata"].get("generation", 0),
            "lastTransitionTime": timestamp(self._now_s()),
        }
        apply_status(self._api, ADMISSION_CHECKS, check["metadata"], {"conditions": [active]})
        log.info("admission check %s is active", check["metadata"]["name"])


def _is_ours(check: Object) -> bool:
    return bool(at(check, ("spec", "controllerName")) == CONTROLLER_NAME)
