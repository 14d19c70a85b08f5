"""Attempt and changes for a new pod, and the name of its job, from its topmost owner.

From the owner, not from the pod's template: Kueue puts templates back as they were submitted each time that it stops a
workload (``RestorePodSpec`` in its pkg/podset), and leaves the annotations of the object alone.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, REQUEUE, RESTARTING
from tidegauge_scheduler_hooks.kubernetes.owners import POD, OwnerKind, OwnerReference, topmost
from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Object, ObjectStore, Resource
from tidegauge_scheduler_hooks.kubernetes.workloads import annotations_of, attempt_of
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError, TemporaryError

READ_WITHIN_S = 1.0
"""Of one request. API servers wait for the webhook for 5 s by the chart."""
ALL_WITHIN_S = 2.5
"""After this no further request begins: a chain has three links at most, most of which are watched."""
MAX_READ = 64
"""Owners that are being read at once."""
_TOLD_BY_US = frozenset({ATTEMPT, CHANGES, REQUEUE, RESTARTING})


class PodSettings(NamedTuple):
    """What a new pod is told."""

    attempt: int | None
    """``None``: it is not known, and a wrong one is worse than none."""
    changes: str | None
    """The annotation ``CHANGES``, as it was found."""
    is_owners: bool = False
    """Whether a workload says so, and not the pod itself."""
    unread: str | None = None
    """Why the workload could not be read, for people."""
    job_name: str | None = None
    """The workload's name, which the head calls the job by; ``None``: no workload was read."""


def own_settings(metadata: Mapping[str, Any], namespace: str) -> PodSettings:  # noqa: ARG001 - as OwnerReader's
    """Those of a pod that is its own workload."""
    pod = {"metadata": metadata}
    return PodSettings(attempt_of(pod), annotations_of(pod).get(CHANGES))


class OwnerReader:
    """Reads them from watches where these are sure to be right, else from the API server. Thread-safe; never waits for
    more than some seconds.

    ``api`` must end each request within ``READ_WITHIN_S``. ``kinds``: those that may be above a pod, with their
    ``stores``."""

    def __init__(
        self,
        api: KubeApi,
        kinds: Mapping[str, OwnerKind],
        stores: Mapping[Resource, ObjectStore],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._kinds = kinds
        self._stores = stores
        self._monotonic_s = monotonic_s
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._reads: dict[tuple[Resource, str, str], _Read] = {}

    def settings_of(self, metadata: Mapping[str, Any], namespace: str) -> PodSettings:
        """For a pod that is about to be made in ``namespace``; its own metadata may lack it."""
        until_s = self._monotonic_s() + ALL_WITHIN_S
        pod = {"metadata": {**metadata, "namespace": namespace}}
        last: Object | None = None
        """The last owner that a watch showed, if that is all there is."""

        def look_up(resource: Resource, namespace: str, reference: OwnerReference) -> Object | None:
            nonlocal last
            last = self._stores[resource].by_uid(reference.uid)
            if last is not None and last["metadata"].get("namespace") != namespace:
                last = None  # the reference is a forged one
            return last or self._get(resource, namespace, reference.name, until_s)

        try:
            owned = topmost(pod, self._kinds, look_up)
            if owned is None:
                raise PermanentError("its owner is not in this namespace (any more)")
            if owned.kind is POD or not owned.kind.is_read:
                return own_settings(metadata, namespace)
            obj = owned.obj
            if last is not None and self._may_be_old(owned.kind.resource, last):
                obj = self._get(owned.kind.resource, namespace, last["metadata"]["name"], until_s)
                if obj["metadata"]["uid"] != owned.uid:
                    raise PermanentError("another object has its name by now")
        except SchedulerError as error:
            # What is in force can only have become more since the watch showed it; the number may be another by now.
            return PodSettings(None, None if last is None else annotations_of(last).get(CHANGES), True, str(error))
        return PodSettings(attempt_of(obj), annotations_of(obj).get(CHANGES), True, job_name=obj["metadata"]["name"])

    def _may_be_old(self, resource: Resource, owner: Object) -> bool:
        """An order stands on a workload for as long as its pods take to end, which an open watch shows in time; the
        patch that resumes it may come a moment before its pods."""
        return not self._stores[resource].current or not _TOLD_BY_US.isdisjoint(annotations_of(owner))

    def _get(self, resource: Resource, namespace: str, name: str, until_s: float) -> Object:
        """The object as it is after this call began. Pods of one workload, of which there may be thousands, share a
        request that begins after they have asked."""
        asked, key = next(self._order), (resource, namespace, name)
        with self._lock:
            if key not in self._reads and len(self._reads) >= MAX_READ:
                raise TemporaryError("too many workloads are being read")
            read = self._reads.setdefault(key, _Read())
            read.waiting += 1
        try:
            if not read.lock.acquire(timeout=max(0.0, until_s - self._monotonic_s())):
                raise TemporaryError("the API server did not answer in time")
            try:
                if read.found is None or read.began < asked:
                    read.began, read.found = next(self._order), None
                    if self._monotonic_s() >= until_s:
                        raise TemporaryError("the API server did not answer in time")
                    read.found = self._api.get(resource, namespace, name)
                return read.found
            finally:
                read.lock.release()
        finally:
            with self._lock:
                read.waiting -= 1
                if not read.waiting:
                    del self._reads[key]


class _Read:
    """A request, and those who wait for its answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting = 0
        self.began = -1
        self.found: Object | None = None
