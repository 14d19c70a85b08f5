"""Finds the workload of a pod from watches, without a request: for agents that found a rank in it, and for the
adapter."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from tidegauge.core.jobs.kubernetes import OWNER, PROFILE_LABEL, PodFacts
from tidegauge_scheduler_hooks.kubernetes.gone_objects import GoneObjects
from tidegauge_scheduler_hooks.kubernetes.owners import (
    Owned,
    OwnerKind,
    OwnerReference,
    at,
    controller_of,
    links_below,
    own_restarts,
    runs_one_pod,
    topmost,
    watched_kinds,
)
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, Object, ObjectStore, Resource, Watches
from tidegauge_scheduler_hooks.kubernetes.replicas import are_one, replica_with
from tidegauge_scheduler_hooks.kubernetes.run_ends import EndedRun
from tidegauge_scheduler_hooks.kubernetes.workloads import (
    Workload,
    annotations_of,
    attempt_of,
    restart_label,
    told_attempt,
)

SELECTOR = PROFILE_LABEL
"""Pods with the label, with any value; the injection puts it on pods that it watches for their namespace's sake. No
others are kept: a cluster has ten thousand of them, and one costs tens of kilobytes."""
MAX_OWNER_CHARS = 128
"""Of a name: it is repeated for every rank in every report, and an annotation may have 256 KiB."""
MAX_BELOW = 20_000
"""Objects below one owner that are looked at."""


class PodDirectory:
    """The directory. ``kinds``: the enabled ones. Thread-safe; nothing here blocks."""

    def __init__(
        self, watches: Watches, kinds: Iterable[str], *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.kinds: Mapping[str, OwnerKind] = watched_kinds(kinds)
        self.on_change: Callable[[Object, bool], None] | None = None
        """Called in a watch's thread with each object and whether it was deleted, once the directory knows it."""
        self._lock = threading.Lock()
        self._below: dict[str, set[str]] = defaultdict(set)
        """Uids of the objects directly below an owner, by the owner's."""
        self._above: dict[str, str] = {}
        self._earlier: dict[str, int] = {}
        """The most pods that were ever seen before one in its Job: they may be deleted while it runs."""
        self._gone = GoneObjects(monotonic_s)
        self._pods = watches.store(PODS, label_selector=SELECTOR, on_change=self._changed)
        self._owners = {
            kind.resource: watches.store(kind.resource, on_change=self._changed) for kind in self.kinds.values()
        }
        self.stores: Mapping[Resource, ObjectStore] = {PODS: self._pods, **self._owners}

    @property
    def problem(self) -> str | None:
        """Why pods are not known (for people); ``None``: they are. A kind that is not installed is no problem."""
        return None if self._pods.synced else (self._pods.problem or "pods have not been listed yet")

    def problem_below(self, kind: OwnerKind) -> str | None:
        """Why the pods below workloads of that kind are not known, for people: until the kinds between have been
        listed, a workload seems to have none."""
        links = (self._owners[link.resource] for link in links_below(kind) if link.resource in self._owners)
        unknown = next((store for store in links if not (store.synced or store.kind_missing)), None)
        return self.problem if unknown is None else (unknown.problem or "their owners have not been listed yet")

    def pod_of(self, uid: str) -> PodFacts | None:
        """The pod's facts; ``None`` for one that does not exist, is not labelled, or whose owner is not known yet."""
        pod, owned = self._pods.by_uid(uid), self.owned(uid)
        if pod is None or owned is None:
            return None
        said = (_owner_named_on(found) for found in (pod, owned.obj))
        told, replica = told_attempt(pod), replica_with(owned)
        return PodFacts(
            pod_uid=uid,
            namespace=pod["metadata"]["namespace"],
            pod=pod["metadata"]["name"],
            job_name=owned.obj["metadata"]["name"] if replica is None else replica.server,
            kind=owned.kind.name if replica is None else replica.kind,
            attempt=(attempt_of(owned.obj) if told is None else told) + restart_label(pod) + self.earlier(pod),
            user_name=next(filter(None, said), pod["metadata"]["namespace"]),
            containers=_containers(pod),
            replica="" if replica is None else replica.name,
        )

    def owned(self, uid: str) -> Owned | None:
        """The owner of the pod with this uid; a pod without an owner is its own workload."""
        pod = self._pods.by_uid(uid)
        return None if pod is None else self.owner_of(pod)

    def ended_run(self, pod_uids: Iterable[str]) -> EndedRun | None:
        """The run that was in these pods, also when they, or their owners, have been deleted; ``None``: one of them is
        not known (any more), or they belong to several workloads."""
        pods = [self._pods.by_uid(uid) or self._last_seen(uid) for uid in sorted(set(pod_uids))]
        known = [pod for pod in pods if pod is not None]
        owners = [topmost(pod, self.kinds, self._last_owner) for pod in known]
        first = owners[0] if owners else None
        if first is None or len(known) < len(pods) or any(one is None or not are_one(first, one) for one in owners):
            return None
        if self.problem_below(first.kind) is not None:
            return None
        links = {link["metadata"]["uid"]: link for pod in known if (link := self._link_above(pod)) is not None}
        uids = [obj["metadata"]["uid"] for obj in (first.obj, *known, *links.values())]
        with self._lock:
            gone = self._gone.among(uids)
        return EndedRun(self.with_pods(first), tuple(known), tuple(links.values()), gone)

    def _link_above(self, pod: Object) -> Object | None:
        reference = controller_of(pod)
        kind = None if reference is None else self.kinds.get(reference.kind)
        if reference is None or kind is None:
            return None
        return self._last_owner(kind.resource, pod["metadata"]["namespace"], reference)

    def _last_owner(self, resource: Resource, namespace: str, reference: OwnerReference) -> Object | None:
        return self.owner(resource, namespace, reference) or self._last_seen(reference.uid)

    def _last_seen(self, uid: str) -> Object | None:
        """An object that was deleted lately."""
        with self._lock:
            return self._gone.get(uid)

    def with_pods(self, owned: Owned) -> Workload:
        return Workload(owned.kind, owned.obj, tuple(self.pods_of(owned.obj)), owned.foreign)

    def owner_of(self, pod: Object) -> Owned | None:
        return topmost(pod, self.kinds, self.owner)

    def pods_of(self, owner: Object) -> Sequence[Object]:
        """The pods below an owner, over all links between; of a pod, the pod. Pods of other namespaces do not count,
        whatever they claim."""
        found = (self._pods.by_uid(uid) for uid in self._below_owner(owner))
        return [pod for pod in found if pod is not None and _namespace(pod) == _namespace(owner)]

    def links_of(self, owner: Object) -> Sequence[Object]:
        """The objects of known kinds between an owner and its pods."""
        uids = self._below_owner(owner)[1:]
        found = (store.by_uid(uid) for uid in uids for store in self._owners.values())
        return [link for link in found if link is not None and _namespace(link) == _namespace(owner)]

    def _below_owner(self, owner: Object) -> Sequence[str]:
        """Uids, the owner's own first."""
        left, seen = [owner["metadata"]["uid"]], dict[str, None]()
        while left and len(seen) < MAX_BELOW:
            uid = left.pop()
            seen[uid] = None
            with self._lock:  # not around a store's own lock: its watch calls ``_changed`` with that held
                left.extend(self._below.get(uid, set()) - seen.keys())
        return list(seen)

    def earlier(self, pod: Object) -> int:
        """The pods that its Job had before it, if the Job runs one at a time: each was a start of the whole."""
        uid, reference = pod["metadata"]["uid"], controller_of(pod)
        kind = None if reference is None else self.kinds.get(reference.kind)
        if reference is None or kind is None:
            return 0
        job = self.owner(kind.resource, pod["metadata"]["namespace"], reference)
        if job is None or not runs_one_pod(kind, job):
            return 0
        others = [other for other in self.pods_of(job) if other["metadata"]["uid"] != uid]
        seen = sum(_age_key(other) < _age_key(pod) for other in others)
        if at(pod, ("status", "phase")) not in ("Succeeded", "Failed") and seen == len(others):
            # It is the latest: what the Job has counted came before it, also where those pods are deleted by now.
            seen = max(seen, own_restarts(kind, job))
        with self._lock:
            if uid in self._above:
                seen = self._earlier[uid] = max(seen, self._earlier.get(uid, 0))
        return seen

    def owner(self, resource: Resource, namespace: str, reference: OwnerReference) -> Object | None:
        """The object of a known kind in that namespace, as last heard."""
        store = self._owners.get(resource)
        found = None if store is None else store.by_uid(reference.uid)
        return found if found is None or _namespace(found) == namespace else None

    def _changed(self, obj: Object, deleted: bool) -> None:
        """Called in a watch's thread."""
        uid, reference = obj["metadata"]["uid"], controller_of(obj)
        with self._lock:
            before = self._above.pop(uid, None)
            if before is not None:
                self._below[before].discard(uid)
                if not self._below[before]:
                    del self._below[before]
            if deleted:
                self._earlier.pop(uid, None)
                self._gone.add(obj)
            else:
                self._gone.take_out(uid)
            if reference is not None and not deleted:
                self._above[uid] = reference.uid
                self._below[reference.uid].add(uid)
        if self.on_change is not None:
            self.on_change(obj, deleted)


def _namespace(obj: Object) -> str | None:
    found: str | None = obj["metadata"].get("namespace")
    return found


def _owner_named_on(obj: Object) -> str:
    """The annotation ``OWNER``; empty without one, and for an invalid name."""
    text = annotations_of(obj).get(OWNER, "").strip()
    return text if text.isprintable() and len(text) <= MAX_OWNER_CHARS else ""


def _age_key(pod: Object) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]


def _containers(pod: Object) -> Mapping[str, str]:
    """Names by container id: ``containerd://<64 digits>`` in the status, the digits here."""
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    statuses = [one for kind in kinds for one in at(pod, ("status", kind)) or ()]
    found = {(one.get("containerID") or "").rpartition("://")[2]: one["name"] for one in statuses}
    found.pop("", None)
    return found
