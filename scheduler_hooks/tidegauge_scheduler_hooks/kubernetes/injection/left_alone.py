"""Tells the owners of pods that were not touched, by an Event on what made the pod: a warning reaches only who creates
a pod by hand."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge_scheduler_hooks.kubernetes.events import UNWATCHED_EVENT, record_event, regarding_owner
from tidegauge_scheduler_hooks.kubernetes.owners import controller_of
from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Object, Resource
from tidegauge_scheduler_hooks.ports import PermanentError

MAX_TOLD = 10_000
"""Owners that are not told again. Beyond that all may be: an Event is there once at most, by its name."""
MAX_WAITING = 256
"""Owners that are still to be told; others are told when they make the next pod."""


class _Owner(NamedTuple):
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
            if object_uid not in self._told and len(self._waiting) < MAX_WAITING:
                self._waiting[object_uid] = _Owner(regarding_owner(reference, namespace), note)

    def tell(self, api: KubeApi) -> None:
        """Leave the Events. Raises ``TemporaryError``: those that are left wait for the next call."""
        with self._lock:
            waiting = dict(self._waiting)
        refused: PermanentError | None = None
        for uid, (regarding, note) in waiting.items():
            try:
                record_event(api, regarding, reason=UNWATCHED_EVENT, note=note, decision_id="left-alone")
            except PermanentError as error:  # gone by now, or not our right: the next call would fare no better
                refused = error
            with self._lock:
                del self._waiting[uid]
                self._told = {uid} if len(self._told) >= MAX_TOLD else self._told | {uid}
        if refused is not None:
            raise refused
