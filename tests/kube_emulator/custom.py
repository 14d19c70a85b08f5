"""Custom resources: what a definition must be, and what its schema does to objects (prune, default, validate)."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kube_emulator.cel import NotEvaluatedError, evaluate
from kube_emulator.resources import ResourceType
from kube_emulator.schemas import Reading, Schema, read_metadata


def served_types(definition: Mapping[str, Any]) -> Iterator[ResourceType]:
    """The kinds that a ``CustomResourceDefinition`` brings: one a served version."""
    spec = definition["spec"]
    for version in spec["versions"]:
        if version["served"]:
            yield ResourceType(
                group=spec["group"],
                version=version["name"],
                plural=spec["names"]["plural"],
                kind=spec["names"]["kind"],
                namespaced=spec["scope"] == "Namespaced",
                subresources=("status",) if "status" in (version.get("subresources") or {}) else (),
                schema=version["schema"]["openAPIV3Schema"],
            )


def definition_causes(definition: Mapping[str, Any]) -> list[str]:
    """Why a ``CustomResourceDefinition`` is refused."""
    spec = definition["spec"]
    causes = []
    expected = f"{spec['names']['plural']}.{spec['group']}"
    if definition["metadata"]["name"] != expected:
        causes.append(
            f'metadata.name: Invalid value: "{definition["metadata"]["name"]}": '
            'must be spec.names.plural+"."+spec.group'
        )
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        causes.append("spec.versions: Invalid value: must have exactly one version marked as storage version")
    for place, version in enumerate(spec["versions"]):
        at = f"spec.versions[{place}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            causes.append(f"{at}: Required value: schemas are required")
        else:
            causes.extend(_structural(schema, at))
    return causes


def _structural(schema: Schema, at: str) -> Iterator[str]:
    """Every field has a type (API conventions, "Specifying a structural schema")."""
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if "type" not in schema and not free:
        yield f"{at}.type: Required value: must not be empty for specified object fields"
    for key, part in (schema.get("properties") or {}).items():
        yield from _structural(part, f"{at}.properties[{key}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from _structural(schema[key], f"{at}.{key}")


def complete_definition(definition: dict[str, Any], now: str) -> dict[str, Any]:
    """With its defaults, and established: the API serves it from now on."""
    spec = definition["spec"]
    names = {"singular": spec["names"]["kind"].lower(), "listKind": f"{spec['names']['kind']}List", **spec["names"]}
    conditions = [
        {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
        {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "accepted"},
    ]
    return {
        **definition,
        "spec": {"conversion": {"strategy": "None"}, **spec, "names": names},
        "status": {
            "conditions": [{**condition, "lastTransitionTime": now} for condition in conditions],
            "acceptedNames": names,
            "storedVersions": [version["name"] for version in spec["versions"] if version["storage"]],
        },
    }


def read_custom(value: Mapping[str, Any], schema: Schema, old: Mapping[str, Any] | None, skipped: set[str]) -> Reading:
    """Pruned, defaulted and validated. ``skipped`` gathers CEL rules that cannot be evaluated here."""
    reading = Reading()
    head = {key: value[key] for key in ("apiVersion", "kind") if key in value}
    metadata = read_metadata(value.get("metadata") or {})
    body = {key: part for key, part in value.items() if key not in ("apiVersion", "kind", "metadata")}
    properties = {
        k: v for k, v in (schema.get("properties") or {}).items() if k not in ("apiVersion", "kind", "metadata")
    }
    content = {**schema, "properties": properties}
    pruned = _defaulted(_pruned(body, content, "", reading), content)
    _validate(pruned, content, "", reading, old, skipped)
    reading.value = {**head, "metadata": metadata.value, **pruned}
    reading.unknown.extend(metadata.unknown)
    reading.malformed.extend(metadata.malformed)
    return reading


def _pruned(value: Any, schema: Schema, path: str, reading: Reading) -> Any:
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [_pruned(part, schema["items"], f"{path}[{place}]", reading) for place, part in enumerate(value)]
    if not isinstance(value, dict):
        return value
    properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
    result = {}
    for key, part in value.items():
        at = f"{path}.{key}".lstrip(".")
        known = properties.get(key, more)
        if isinstance(known, Mapping):
            result[key] = _pruned(part, known, at, reading)
        elif known is True or schema.get("x-kubernetes-preserve-unknown-fields"):
            result[key] = part
        else:
            reading.unknown.append(at)
    return result


def _defaulted(value: Any, schema: Schema) -> Any:
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [_defaulted(part, schema["items"]) for part in value]
    if not isinstance(value, dict):
        return value
    properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
    result = dict(value)
    for key, part in properties.items():
        if "default" in part and (key not in result or (result[key] is None and not part.get("nullable"))):
            result[key] = copy.deepcopy(part["default"])
    for key, inner in result.items():
        known = properties.get(key, more)
        if isinstance(known, Mapping):
            result[key] = _defaulted(inner, known)
    return result


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
}


def _validate(value: Any, schema: Schema, path: str, reading: Reading, old: Any, skipped: set[str]) -> None:
    if value is None and schema.get("nullable"):
        return
    shown = json.dumps(value) if not isinstance(value, (dict, list)) else "object"
    wanted = schema.get("type")
    wrong_bool = isinstance(value, bool) and wanted != "boolean"
    if wanted and (wrong_bool or not isinstance(value, _TYPES[wanted])):
        reading.causes.append(f"{path}: Invalid value: {shown}: {path} in body must be of type {wanted}: {shown}")
        return
    reading.causes.extend(f"{path}: {cause}" for cause in _value_causes(value, schema, path, shown))
    if isinstance(value, dict):
        missing = [key for key in schema.get("required", ()) if key not in value]
        reading.causes.extend(f"{path}.{key}: Required value".lstrip(".") for key in missing)
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, part in value.items():
            known = properties.get(key, more)
            if isinstance(known, Mapping):
                before = old.get(key) if isinstance(old, Mapping) else None
                _validate(part, known, f"{path}.{key}".lstrip("."), reading, before, skipped)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for place, part in enumerate(value):
            _validate(part, schema["items"], f"{path}[{place}]", reading, None, skipped)
    for rule in schema.get("x-kubernetes-validations", ()):
        _apply_rule(rule, value, old, path, reading, skipped)


def _value_causes(value: Any, schema: Schema, path: str, shown: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(each) for each in schema["enum"])
        yield f"Unsupported value: {shown}: supported values: {supported}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield f"Invalid value: {shown}: {path} in body should be greater than or equal to {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"Invalid value: {shown}: {path} in body should be less than or equal to {schema['maximum']}"
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"Invalid value: {shown}: {path} in body should match '{schema['pattern']}'"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"Too long: may not be more than {schema['maxLength']} bytes"
        if len(value) < schema.get("minLength", 0):
            yield f"Invalid value: {shown}: {path} in body should be at least {schema['minLength']} chars long"
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
        if len(value) < schema.get("minItems", 0):
            yield f"Invalid value: {len(value)}: {path} in body should have at least {schema['minItems']} items"


def _apply_rule(rule: Mapping[str, Any], value: Any, old: Any, path: str, reading: Reading, skipped: set[str]) -> None:
    text = rule["rule"]
    if "oldSelf" in text and old is None:
        return
    try:
        holds = evaluate(text, {"self": value, "oldSelf": old})
    except NotEvaluatedError:
        skipped.add(text)
        return
    if holds is not True:
        reading.causes.append(f"{path}: Invalid value: {rule.get('message') or f'failed rule: {text}'}")
