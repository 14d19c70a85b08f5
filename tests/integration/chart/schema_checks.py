"""Manifests against schemas: Kubernetes' own (``kubernetes-validate``, unknown fields refused) and those of custom
resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from integration.chart.pods import name_of
from integration.chart.rendering import Object

DEFINITIONS = Path(__file__).with_name("custom_resources.yaml")


def definitions() -> list[Object]:
    """The custom resources that the chart makes objects of, where it is told to."""
    return list(yaml.safe_load_all(DEFINITIONS.read_text(encoding="utf-8")))


def unlike_their_schemas(objects: Sequence[Object], version: str) -> Iterator[str]:
    """``version`` of Kubernetes, such as ``1.33``. An object without a schema is wrong, too: it is unknown there."""
    custom = {
        (f"{about['spec']['group']}/{about_version['name']}", about["spec"]["names"]["kind"]): _strict(
            about_version["schema"]["openAPIV3Schema"]
        )
        for about in definitions()
        for about_version in about["spec"]["versions"]
    }
    for thing in objects:
        own = custom.get((thing["apiVersion"], thing["kind"]))
        try:
            if own is None:
                kubernetes_validate.validate(thing, version, strict=True)
            else:
                without_envelope = {"spec": thing["spec"]}
                jsonschema.Draft202012Validator(own).validate(without_envelope)
        except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
            yield f"{name_of(thing)}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{name_of(thing)}: Kubernetes {version} has no {thing['apiVersion']} {thing['kind']}"


def _strict(schema: Any) -> Any:
    """The API server drops fields that it does not know; here they are mistakes."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        strict["additionalProperties"] = False
    return strict
