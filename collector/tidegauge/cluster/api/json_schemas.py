"""JSON Schemas of our values, as ``core.wire.to_wire`` writes them: derived from their types, never written by hand.

JSON Schema 2020-12, as OpenAPI 3.1 has it. A number that may be infinite or unknown is ``null``: so may every float be.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections import abc
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

Schema = dict[str, Any]

_UNIONS = (Union, types.UnionType)
_SCALARS: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    float: {"type": ["number", "null"]},
    object: {},
    Any: {},
}


class Schemas:
    """Collects the schemas of the classes that it meets, by name: ``#/components/schemas/NAME``."""

    def __init__(self) -> None:
        self._forms: dict[str, type] = {}
        self._schemas: dict[str, Schema] = {}

    def of(self, form: Any) -> Schema:
        """The schema of a type. Raises ``TypeError`` for one that has no JSON form."""
        if hasattr(form, "__supertype__"):
            return self.of(form.__supertype__)
        if form in _SCALARS:
            return _SCALARS[form]
        origin, parts = get_origin(form), get_args(form)
        if origin in _UNIONS:
            return self._optional(parts)
        if origin in (tuple, frozenset, list, abc.Sequence):
            return self._list(parts)
        if origin in (dict, abc.Mapping):
            return {"type": "object", "additionalProperties": self.of(parts[1])}
        if isinstance(form, type) and issubclass(form, Enum):
            return self._named(form, lambda: {"enum": [member.value for member in form]})
        if isinstance(form, type) and (dataclasses.is_dataclass(form) or hasattr(form, "_fields")):
            return self._named(form, lambda: self._object(form))
        raise TypeError(f"{form} has no JSON form")

    def components(self) -> dict[str, Schema]:
        """All that were met, by name in order."""
        return dict(sorted(self._schemas.items()))

    def _optional(self, parts: tuple[Any, ...]) -> Schema:
        inner = [self.of(part) for part in parts if part is not type(None)]
        return inner[0] if len(inner) == len(parts) == 1 else {"anyOf": [*inner, {"type": "null"}]}

    def _list(self, parts: tuple[Any, ...]) -> Schema:
        if len(parts) == 1 or parts[-1] is Ellipsis:
            return {"type": "array", "items": self.of(parts[0])}
        length = len(parts)
        return {
            "type": "array",
            "prefixItems": [self.of(part) for part in parts],
            "minItems": length,
            "maxItems": length,
        }

    def _named(self, form: type, make: abc.Callable[[], Schema]) -> Schema:
        name = form.__name__
        if self._forms.setdefault(name, form) is not form:
            raise TypeError(f"two classes are called {name}: {self._forms[name].__module__} and {form.__module__}")
        if name not in self._schemas:
            self._schemas[name] = {}  # a value may hold others of its own class
            self._schemas[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, form: Any) -> Schema:
        """``to_wire`` writes every field. Later versions may write more, which readers pass over."""
        hints = get_type_hints(form)
        names = form._fields if hasattr(form, "_fields") else [field.name for field in dataclasses.fields(form)]
        text = (form.__doc__ or "").strip()
        said = {} if text.startswith(f"{form.__name__}(") or not text else {"description": _first_paragraph(text)}
        return {
            "type": "object",
            **said,
            "properties": {name: self.of(hints[name]) for name in names},
            "required": list(names),
        }


def _first_paragraph(text: str) -> str:
    lines = itertools.takewhile(str.strip, text.splitlines())
    return " ".join(line.strip() for line in lines)
