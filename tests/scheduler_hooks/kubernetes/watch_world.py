"""An API server whose lists and watches a test scripts, and what a store's listener was told."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scheduler_hooks.kubernetes.scripted_api import Reply, ScriptedApi, Seen
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from waiting import PATIENCE_S

GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def pod(name: str, version: int, *, uid: str | None = None, namespace: str = "research") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "managedFields": [{"manager": "kubelet"}]}}


def event(word: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": word, "object": item}


class WatchWorld:
    """Lists are what ``listed`` says; each watch is the next of ``watches``, and then one without events."""

    def __init__(self, folder: Path) -> None:
        self.listed: tuple[int, list[dict[str, Any]]] = (1, [])
        self.refusal: Reply | None = None
        self.watches: queue.SimpleQueue[Iterator[Mapping[str, Any]] | Reply] = queue.SimpleQueue()
        self.server = ScriptedApi(self._say)
        self.api = open_api(self.server.kubeconfig(folder))
        self.changes: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
        self.watched: queue.SimpleQueue[Seen] = queue.SimpleQueue()

    def on_change(self, item: Object, deleted: bool) -> None:
        self.changes.put((item["metadata"]["uid"], deleted))

    def next_changes(self, count: int) -> list[tuple[str, bool]]:
        return [self.changes.get(timeout=PATIENCE_S) for _ in range(count)]

    def next_watch(self) -> Seen:
        """The next request to watch."""
        return self.watched.get(timeout=PATIENCE_S)

    def _say(self, seen: Seen) -> Reply:
        if self.refusal is not None:
            return self.refusal
        if "watch" not in seen.query:
            version, items = self.listed
            return Reply(body={"metadata": {"resourceVersion": str(version)}, "items": items})
        self.watched.put(seen)
        try:
            coming = self.watches.get_nowait()
        except queue.Empty:
            coming = self.server.forever
        return coming if isinstance(coming, Reply) else Reply(events=coming)
