"""Workloads and their pods: from the watches where a moment's delay is harmless, else from the API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial

from tidegauge.core.jobs.kubernetes import INCIDENT, PROFILE_LABEL, REQUEUE, RESTARTING
from tidegauge_scheduler_hooks.kubernetes.controller.steps import StepSurroundings, is_marked, needs_proof
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.kueue import find_queue_workload
from tidegauge_scheduler_hooks.kubernetes.owners import BY_NAME, KINDS, POD, OwnerReference, State, topmost
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, KubeApi, Object, ObjectNotFoundError, Resource, Watches
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of, labels_of

NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
ORDERS = (REQUEUE, RESTARTING, INCIDENT)
"""Annotations that need a step on the workload."""


class ClusterState:
    """Calls ``on_key`` for every workload that may need a step, from the watches' threads. ``kinds``: those that are
    acted on. Thread-safe."""

    def __init__(
        self, api: KubeApi, watches: Watches, kinds: Iterable[str], *, on_key: Callable[[WorkKey], None]
    ) -> None:
        self._api = api
        self._kinds = tuple(kinds)
        self._on_key = on_key
        self._directory = PodDirectory(watches, self._kinds)
        self.kinds = self._directory.kinds
        self.stores = self._directory.stores
        self._directory.on_change = self._changed  # what watches told before is told again by ``tell_all``

    def by_uid(self, uid: str) -> Object | None:
        """A workload that is watched."""
        found = (store.by_uid(uid) for resource, store in self.stores.items() if resource is not PODS)
        return next(filter(None, found), None)

    def tell_all(self) -> None:
        """Call ``on_key`` for all workloads that may need a step now."""
        for store in self.stores.values():
            for obj in store.all():
                self._changed(obj, False)

    def workload(self, key: WorkKey) -> Workload | None:
        """The workload as the API server has it now, with the watched pods. ``None``: it has gone.

        Raises ``TemporaryError``, ``PermanentError``."""
        kind = KINDS[key.kind]
        try:
            obj = self._api.get(kind.resource, key.namespace, key.name)
        except ObjectNotFoundError:
            return None
        return Workload(kind, obj, tuple(self._directory.pods_of(obj)))

    def surroundings(self, workload: Workload) -> StepSurroundings:
        """The further inputs of ``next_step``. Raises ``TemporaryError``, ``PermanentError``."""
        if workload.order is None and needs_proof(workload):
            return StepSurroundings(unfinished=self._telling(workload))
        if workload.order is None or workload.state is State.FINISHED:
            return StepSurroundings()
        ending = self._ending(workload) if workload.state is State.SUSPENDED else ()
        return StepSurroundings(ending, find_queue_workload(self._api, workload))

    def _ending(self, workload: Workload) -> tuple[Object, ...]:
        """Those that the watch shows: while there are some, a list of all pods of the namespace each few seconds would
        tell nothing new. That none is left the API server has to say."""
        return workload.living if self.stores[PODS].current and workload.living else self._unfinished(workload)

    def _telling(self, workload: Workload) -> tuple[Object, ...]:
        """Those of ``_unfinished`` that show with what it was started again. Where its templates name the label, pods
        without it are a head, a driver or a submitter, which the webhook leaves alone and which often come first."""
        pods = self._unfinished(workload)
        made_from = (workload.obj, *self._directory.links_of(workload.obj))
        if any(PROFILE_LABEL in json.dumps(obj.get("spec")) for obj in made_from):
            pods = tuple(pod for pod in pods if PROFILE_LABEL in labels_of(pod))
        return pods

    def _unfinished(self, workload: Workload) -> tuple[Object, ...]:
        """Ask the API server, without a label: a pod that is not in a cache, or not watched, may run all the same."""
        pods = self._api.list(PODS, workload.namespace, field_selector=NOT_ENDED)
        return tuple(pod for pod in pods if self._may_run_in(pod, workload))

    def _may_run_in(self, pod: Object, workload: Workload) -> bool:
        owned = topmost(pod, self.kinds, partial(self._owner, workload))
        if owned is None:
            # Its owner has gone, or is so new that the watch has not shown it. All these controllers label pods with
            # the name of what they make them for.
            return workload.name in labels_of(pod).values()
        return bool(owned.obj["metadata"]["uid"] == workload.uid)

    def _owner(
        self, workload: Workload, resource: Resource, namespace: str, reference: OwnerReference
    ) -> Object | None:
        """The owner of a pod in ``namespace``; ``workload`` itself need not have come through a watch yet."""
        mine = reference.uid == workload.uid
        return workload.obj if mine else self._directory.owner(resource, namespace, reference)

    def _changed(self, obj: Object, deleted: bool) -> None:
        """Called in a watch's thread."""
        kind = BY_NAME.get(str(obj.get("kind")))
        if kind is POD:
            owned = self._directory.owner_of(obj)
            if owned is not None and (is_marked(obj) or any(name in annotations_of(owned.obj) for name in ORDERS)):
                self._tell(owned.kind.name, owned.obj)
        elif kind is not None and not deleted:
            marked = (is_marked(pod) for pod in self._directory.pods_of(obj))
            if any(name in annotations_of(obj) for name in ORDERS) or any(marked):
                self._tell(kind.name, obj)

    def _tell(self, kind: str, obj: Object) -> None:
        if kind in self._kinds:
            self._on_key(WorkKey(kind, obj["metadata"]["namespace"], obj["metadata"]["name"]))
