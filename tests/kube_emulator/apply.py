"""Server-side apply: which manager owns which field, and what happens where two want the same.

Ownership is kept beside the objects: a get and a list show it as ``metadata.managedFields``, without times. A field is
a leaf of the object; list entries count by their key where the schema names one, other lists as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kube_emulator.patches import merge_patch
from kube_emulator.schemas import Schema, items_of, property_of
from kube_emulator.store import Key

FieldPath = tuple[str, ...]


class Manager(NamedTuple):
    """Who owns fields, as an entry of ``managedFields`` tells them apart."""

    name: str
    applies: bool
    """Server-side apply; else plain creates and updates."""
    subresource: str = ""


_NOT_OWNED = frozenset({("apiVersion",), ("kind",)})


class ApplyConflictError(Exception):
    """Other managers own fields that would change: ``(manager, path)`` each."""

    def __init__(self, fields: list[tuple[str, FieldPath]]) -> None:
        super().__init__(fields)
        self.fields = fields

    @property
    def message(self) -> str:
        count = len(self.fields)
        lines = [f'conflict with "{manager}": {_shown(path)}' for manager, path in self.fields]
        return f"Apply failed with {count} conflict{'s' if count > 1 else ''}: " + "\n".join(lines)


def _shown(path: FieldPath) -> str:
    return "".join(step if step.startswith("[") else f".{step}" for step in path)


class Ownership:
    """Who owns what; entries of objects that are gone do no harm, as a new object has a new uid."""

    def __init__(self) -> None:
        self._fields: dict[tuple[Key, str], dict[Manager, frozenset[FieldPath]]] = {}

    def written(
        self, key: Key, manager: Manager, old: Mapping[str, Any] | None, new: Mapping[str, Any], schema: Schema | None
    ) -> None:
        """A change that is stored: the fields that changed are this manager's from now on."""
        before, after = dict(_leaves(old or {}, schema, manager)), dict(_leaves(new, schema, manager))
        changed = frozenset(path for path, value in after.items() if path not in before or before[path] != value)
        owners = self._fields.setdefault((key, new["metadata"]["uid"]), {})
        for other in owners:
            owners[other] -= changed
        owners[manager] = owners.get(manager, frozenset()) | changed

    def applied(
        self,
        key: Key,
        manager: Manager,
        old: Mapping[str, Any] | None,
        wanted: Mapping[str, Any],
        schema: Schema | None,
        *,
        force: bool,
    ) -> dict[str, Any]:
        """The object with what ``manager`` wants of it. Raises ``ApplyConflictError`` unless ``force``."""
        if old is None:
            return dict(wanted)
        owners = self._fields.get((key, old["metadata"]["uid"]), {})
        present, fields = dict(_leaves(old, schema, manager)), dict(_leaves(wanted, schema, manager))
        clashes = [
            (other.name, path)
            for path, value in fields.items()
            for other, owned in owners.items()
            if other != manager and path in owned and path in present and present[path] != value
        ]
        if clashes and not force:
            raise ApplyConflictError(clashes)
        given_up = owners.get(manager, frozenset()) - set(fields)
        others = frozenset().union(*(owned for other, owned in owners.items() if other != manager))
        result: dict[str, Any] = _merged(old, wanted, schema, (), given_up - others)
        return result

    def entries(self, key: Key, uid: str) -> list[dict[str, Any]]:
        """As ``metadata.managedFields``."""
        return [
            {
                "manager": manager.name,
                "operation": "Apply" if manager.applies else "Update",
                "fieldsType": "FieldsV1",
                "fieldsV1": _fields_v1(fields),
                **({"subresource": manager.subresource} if manager.subresource else {}),
            }
            for manager, fields in list(self._fields.get((key, uid), {}).items())
            if fields
        ]

    def take(self, key: Key, uid: str, manager: Manager, wanted: Mapping[str, Any], schema: Schema | None) -> None:
        """After a successful apply: the fields are this manager's; shared with those who want the same value."""
        owners = self._fields.setdefault((key, uid), {})
        fields = dict(_leaves(wanted, schema, manager))
        owners[manager] = frozenset(fields)


def _fields_v1(paths: Iterable[FieldPath]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in paths:
        inner = found
        for step in path:
            inner = inner.setdefault(f"k:{step}" if step.startswith("[") else f"f:{step}", {})
    return found


def _leaves(value: Mapping[str, Any], schema: Schema | None, manager: Manager) -> Iterator[tuple[FieldPath, Any]]:
    """Of the part of the object that a request of this manager's can change."""
    for key, part in value.items():
        if manager.subresource == "status":
            if key == "status":
                yield from _walk(part, property_of(schema, key), (key,))
        elif key == "metadata":
            kept = {name: part[name] for name in ("labels", "annotations", "finalizers") if part.get(name)}
            yield from _walk(kept, property_of(schema, key), ("metadata",))
        elif key != "status" and (key,) not in _NOT_OWNED:
            yield from _walk(part, property_of(schema, key), (key,))


def _walk(value: Any, schema: Schema | None, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _walk(part, property_of(schema, key), (*path, key))
    elif isinstance(value, list) and (keys := _list_keys(schema)):
        for entry in value:
            yield from _walk(entry, items_of(schema or {}), (*path, _entry_name(entry, keys)))
    else:
        yield path, value


def _list_keys(schema: Schema | None) -> list[str]:
    return list((schema or {}).get("x-kubernetes-list-map-keys") or ())


def _entry_name(entry: Mapping[str, Any], keys: list[str]) -> str:
    return "[" + ",".join(f'{key}="{entry.get(key)}"' for key in keys) + "]"


def _merged(old: Any, wanted: Any, schema: Schema | None, path: FieldPath, given_up: frozenset[FieldPath]) -> Any:
    """``wanted`` over ``old``, without the fields that the manager no longer wants."""
    keys = _list_keys(schema)
    if isinstance(old, Mapping) and isinstance(wanted, Mapping):
        result = {key: part for key, part in old.items() if (*path, key) not in given_up}
        for key, part in wanted.items():
            known = property_of(schema, key)
            inner = (*path, key)
            result[key] = _merged(old[key], part, known, inner, given_up) if key in old else merge_patch(None, part)
        for key in set(old) - set(wanted):
            if key in result and any(gone[: len(path) + 1] == (*path, key) for gone in given_up):
                result[key] = _merged(old[key], type(old[key])(), property_of(schema, key), (*path, key), given_up)
        return result
    if isinstance(old, list) and isinstance(wanted, list) and keys:
        entries = {_entry_name(entry, keys): entry for entry in old}
        for entry in wanted:
            name = _entry_name(entry, keys)
            entries[name] = _merged(entries.get(name, {}), entry, items_of(schema or {}), (*path, name), given_up)
        gone = {inner[len(path)] for inner in given_up if inner[: len(path)] == path and len(inner) > len(path)}
        kept = {_entry_name(entry, keys) for entry in wanted}
        return [entry for name, entry in entries.items() if name in kept or name not in gone]
    return wanted
