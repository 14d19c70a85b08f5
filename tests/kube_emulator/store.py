"""All objects in memory, in one sequence of versions, with the history that watches and pages need.

Objects are never changed in place: whoever takes one out copies it before changing anything.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kube_emulator.resources import ResourceType

Object = dict[str, Any]


class Key(NamedTuple):
    """Where an object lies; versions of an API are views of the same object."""

    group: str
    plural: str
    namespace: str
    name: str


def key_of(resource: ResourceType, namespace: str, name: str) -> Key:
    """Events are one kind that is served by two groups."""
    group = "" if resource.plural == "events" else resource.group
    return Key(group, resource.plural, namespace if resource.namespaced else "", name)


class Change(NamedTuple):
    """One step of history; ``before`` is ``None`` for a new object, ``after`` for one that is gone."""

    version: int
    key: Key
    before: Object | None
    after: Object | None
    deleted_as: Object | None = None
    """The last words on a deleted object: as it was, with the version of its deletion."""


class StaleError(Exception):
    """The object is another version than the caller saw, or there already, or gone."""


class CompactedError(Exception):
    """History before that version is forgotten."""


class Store:
    """Thread-safe. ``changed`` is notified after each change."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._objects: dict[Key, Object] = {}
        self._history: list[Change] = []
        self._version = 1
        self._compacted = 0

    @property
    def version(self) -> int:
        return self._version

    @property
    def compacted(self) -> int:
        """Watches and pages from before this version are refused."""
        return self._compacted

    def get(self, key: Key) -> Object | None:
        with self.changed:
            return self._objects.get(key)

    def of_kind(self, group: str, plural: str, namespace: str | None = None) -> list[Object]:
        """Sorted by namespace and name, as the API server lists. ``namespace=None``: all."""
        with self.changed:
            chosen = [
                (key, value)
                for key, value in self._objects.items()
                if (key.group, key.plural) == (group, plural) and namespace in (None, key.namespace)
            ]
        return [value for _key, value in sorted(chosen, key=lambda pair: pair[0])]

    def everything(self) -> Mapping[Key, Object]:
        with self.changed:
            return dict(self._objects)

    def create(self, key: Key, value: Object) -> Object:
        """Raises ``StaleError`` if there is one."""
        with self.changed:
            if key in self._objects:
                raise StaleError
            return self._write(key, None, value)

    def update(self, key: Key, seen: Object, value: Object) -> Object:
        """Raises ``StaleError`` if the object is no longer ``seen``. The same content keeps its version."""
        with self.changed:
            if self._objects.get(key) is not seen:
                raise StaleError
            return seen if value == seen else self._write(key, seen, value)

    def delete(self, key: Key, seen: Object) -> Object:
        """The object with the version of its deletion. Raises ``StaleError`` if it is no longer ``seen``."""
        with self.changed:
            if self._objects.get(key) is not seen:
                raise StaleError
            del self._objects[key]
            self._version += 1
            last = _versioned(seen, self._version)
            self._history.append(Change(self._version, key, seen, None, last))
            self.changed.notify_all()
            return last

    def _write(self, key: Key, before: Object | None, value: Object) -> Object:
        self._version += 1
        after = _versioned(value, self._version)
        self._objects[key] = after
        self._history.append(Change(self._version, key, before, after))
        self.changed.notify_all()
        return after

    def changes_after(self, version: int) -> Sequence[Change]:
        """Raises ``CompactedError``."""
        with self.changed:
            if version < self._compacted:
                raise CompactedError
            first = len(self._history)
            while first and self._history[first - 1].version > version:
                first -= 1
            return self._history[first:]

    def as_of(self, version: int, group: str, plural: str, namespace: str | None) -> list[Object]:
        """The list as it was at that version. Raises ``CompactedError``."""
        with self.changed:
            undone = {key: value for key, value in self._objects.items() if (key.group, key.plural) == (group, plural)}
            for change in reversed(self.changes_after(version)):
                if (change.key.group, change.key.plural) != (group, plural):
                    continue
                if change.before is None:
                    undone.pop(change.key, None)
                else:
                    undone[change.key] = change.before
        return [undone[key] for key in sorted(undone) if namespace in (None, key.namespace)]

    def compact(self) -> None:
        """Forget all history, as etcd does every five minutes with what is older than that."""
        with self.changed:
            self._compacted = self._version
            self._history.clear()
            self.changed.notify_all()


def _versioned(value: Object, version: int) -> Object:
    return {**value, "metadata": {**value["metadata"], "resourceVersion": str(version)}}
