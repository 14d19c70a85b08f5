"""Tells the owners of pods that were not touched, by an Event on what made the pod: a warning reaches only who creates
a pod by hand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge_scheduler_hooks.kubernetes.events import UNWATCHED_EVENT, record_event, regarding_owner
from tidegauge_scheduler_hooks.kubernetes.owners import controller_of
from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Object, Resource
from tidegauge_scheduler_hooks.ports import PermanentError

MAX_TOLD = 10_000
"""Owners that are not told again. Beyond that all may be: an Event is there once at most, by its name."""
MAX_WAITING = 256
"""Owners that are still to be told. One more takes the place of one of the namespace that has most of them, whose owner
is told when it makes the next pod: a pod that the API server refuses afterwards has an owner, too, of any name."""


class _Owner(NamedTuple):
    namespace: str
    regarding: tuple[Resource, Object]
    note: str


class OwnersToTell:
    """Notes owners while pods are created, which must not wait, and tells them later. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._waiting: dict[str, _Owner] = {}

    def note(self, namespace: str, metadata: Mapping[str, Any], note: str) -> None:
        """Its controller is to be told, once. One without a controller was made by hand, and has had the warning."""
        reference = controller_of({"metadata": metadata})
        if reference is None:
            return
        object_uid = reference.uid
        with self._lock:
            if object_uid in self._told or (object_uid not in self._waiting and not self._has_place(namespace)):
                return
            self._waiting[object_uid] = _Owner(namespace, regarding_owner(reference, namespace), note)

    def _has_place(self, namespace: str) -> bool:
        if len(self._waiting) < MAX_WAITING:
            return True
        ((crowd, _),) = Counter(one.namespace for one in self._waiting.values()).most_common(1)
        if crowd == namespace:
            return False
        del self._waiting[next(uid for uid, one in reversed(self._waiting.items()) if one.namespace == crowd)]
        return True

    def tell(self, api: KubeApi) -> None:
        """Leave the Events. Raises ``TemporaryError``: those that are left wait for the next call."""
        with self._lock:
            waiting = dict(self._waiting)
        refused: PermanentError | None = None
        for uid, (_, regarding, note) in waiting.items():
            try:
                record_event(api, regarding, reason=UNWATCHED_EVENT, note=note, decision_id="left-alone")
            except PermanentError as error:  # gone by now, or not our right: the next call would fare no better
                refused = error
            with self._lock:
                self._waiting.pop(uid, None)  # its place may be another's by now
                self._told = {uid} if len(self._told) >= MAX_TOLD else self._told | {uid}
        if refused is not None:
            raise refused
