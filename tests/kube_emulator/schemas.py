"""What fields a kind has: of built-in kinds by the published OpenAPI description, of custom ones by their definition.

The description is data of ``kubernetes-validate`` (a test dependency): types, times, quantities, merge keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate

Schema = Mapping[str, Any]

_RELEASE = "v1.36.0-local"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[munkMGTPE]|[eE][+-]?\d+)?")
_FRACTION = re.compile(r"(.*T\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


@cache
def _definitions() -> Mapping[str, Schema]:
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / _RELEASE
    definitions: Mapping[str, Schema] = json.loads((folder / "_definitions.json").read_bytes())["$defs"]
    return definitions


@cache
def _by_kind() -> Mapping[tuple[str, str, str], Schema]:
    return {
        (each["group"], each["version"], each["kind"]): definition
        for definition in _definitions().values()
        for each in definition.get("x-kubernetes-group-version-kind", ())
    }


def built_in_schema(group: str, version: str, kind: str) -> Schema:
    return _by_kind()[group, version, kind]


def _target(schema: Schema) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _resolved(schema: Schema) -> Schema:
    name = _target(schema)
    return _definitions()[name] if name else schema


def property_of(schema: Schema | None, key: str) -> Schema | None:
    if schema is None:
        return None
    whole = _resolved(schema)
    found = (whole.get("properties") or {}).get(key, whole.get("additionalProperties"))
    return found if isinstance(found, Mapping) else None


def items_of(schema: Schema) -> Schema | None:
    found = _resolved(schema).get("items")
    return found if isinstance(found, Mapping) else None


@dataclass
class Reading:
    """What came of reading an object. Texts have the API server's form, ``field: what``."""

    value: Any = None
    unknown: list[str] = field(default_factory=list)
    """Fields that were dropped."""
    malformed: list[str] = field(default_factory=list)
    """Values that cannot be decoded at all: 400 for built-in kinds."""
    causes: list[str] = field(default_factory=list)
    """Missing or refused values: 422."""


def read_built_in(value: Any, group: str, version: str, kind: str) -> Reading:
    """Without unknown fields and nulls, and with times and quantities as the API server writes them."""
    reading = Reading()
    reading.value = _read(value, built_in_schema(group, version, kind), "", reading)
    return reading


def read_metadata(value: Any) -> Reading:
    reading = Reading()
    reading.value = _read(value, _definitions()[_META + "ObjectMeta"], "metadata", reading)
    return reading


def _read(value: Any, schema: Schema, path: str, reading: Reading) -> Any:
    target = _target(schema)
    if target.startswith(_META) and target.endswith("Time"):
        return _time(value, target.endswith("MicroTime"), reading)
    if target.endswith(".Quantity"):
        return _quantity(value, reading)
    if target.endswith(("IntOrString", "RawExtension", "JSON", "FieldsV1")):
        return value
    whole = _resolved(schema)
    types = whole.get("type", [])
    kind = types if isinstance(types, str) else next((each for each in types if each != "null"), None)
    if isinstance(value, dict) and (kind == "object" or "properties" in whole):
        return _read_object(value, whole, path, reading)
    if isinstance(value, list) and kind == "array":
        items = whole.get("items", {})
        return [_read(entry, items, f"{path}[{place}]", reading) for place, entry in enumerate(value)]
    if kind is not None and not _is_type(value, kind):
        seen = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(value), "number")
        reading.malformed.append(f"json: cannot unmarshal {seen} into Go struct field {path} of type {_go(kind)}")
    return value


def _read_object(value: dict[str, Any], whole: Schema, path: str, reading: Reading) -> dict[str, Any]:
    properties, more = whole.get("properties"), whole.get("additionalProperties")
    result: dict[str, Any] = {}
    for key, part in value.items():
        at = f"{path}.{key}" if path else key
        schema = (properties or {}).get(key, more)
        if schema is None and properties is not None:
            reading.unknown.append(at)
        elif part is not None:
            result[key] = _read(part, schema, at, reading) if isinstance(schema, Mapping) else part
    if not path.startswith("status"):
        missing = [key for key in whole.get("required", ()) if result.get(key) in (None, "") and key != "metadata"]
        reading.causes.extend(f"{path}.{key}: Required value".lstrip(".") for key in missing)
    return result


def _is_type(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "boolean": bool, "object": dict, "array": list}.get(kind, object))


def _go(kind: str) -> str:
    return {"integer": "int64", "boolean": "bool", "object": "map[string]string", "array": "[]string"}.get(kind, kind)


def _time(value: Any, micro: bool, reading: Reading) -> Any:
    """Go's layouts: ``2006-01-02T15:04:05Z07:00``, where a fraction is allowed, and with exactly six digits of one."""
    found = _FRACTION.fullmatch(value) if isinstance(value, str) else None
    layout = "2006-01-02T15:04:05.000000Z07:00" if micro else "2006-01-02T15:04:05Z07:00"
    if found is None or (micro and len(found[2] or "") != 6):
        rest = found[3] if found is not None else value
        reading.malformed.append(
            f'parsing time "{value}" as "{layout}": cannot parse "{rest}" as "{".000000" if micro else "2006"}"'
        )
        return value
    moment = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")).astimezone(timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{found[2]}Z" if micro else "Z")


def _quantity(value: Any, reading: Reading) -> Any:
    text = str(value)
    if isinstance(value, bool) or not _QUANTITY.fullmatch(text):
        reading.malformed.append(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    return text
