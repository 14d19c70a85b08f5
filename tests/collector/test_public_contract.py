"""What scripts, dashboards and sites rely on: names of metrics, labels, commands, options, settings and JSON fields.

``tests/data/contract/public.json`` has them as of 2026-11-28. A name may be added there; one that is renamed or removed
breaks somebody, and needs an entry in ``RETIRED`` that says under which name it still works, and a changelog entry.

    .venv/bin/python tests/collector/test_public_contract.py > tests/data/contract/public.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegauge.cli.main import build_parser
from tidegauge.cluster.api.openapi import openapi_document
from tidegauge.settings import Settings
from tidegauge_exporter.metrics.notifications import NOTIFIER_TABLE
from tidegauge_exporter.metrics.table import COORDINATOR_TABLE, NODE_TABLE, SERVICE_TABLE
from tidegauge_exporter.runbooks.job_alerts import JOB_RUNBOOK
from tidegauge_exporter.runbooks.service_alerts import SERVICE_RUNBOOK
from tidegauge_scheduler_hooks.policy.models import Policy

FILE = Path(__file__).parents[1] / "data" / "contract" / "public.json"
RETIRED: dict[str, set[str]] = {}
"""By part, names that are gone on purpose. None so far."""


def contract() -> dict[str, list[str]]:
    """Each part as sorted names."""
    return {
        "metrics": sorted(
            f"{row.name} {row.kind.value} {','.join(row.labels)} {row.unit or '-'}"
            for row in {*NODE_TABLE, *COORDINATOR_TABLE, *NOTIFIER_TABLE, *SERVICE_TABLE}
        ),
        "commands": sorted(_commands(build_parser(), "tidegauge")),
        "settings": sorted(Settings.model_fields),
        "policy": sorted(set(_properties(Policy.model_json_schema(), ""))),
        "api": sorted(set(_properties(openapi_document(), ""))),
        "alerts": sorted(entry.alert for entry in (*JOB_RUNBOOK, *SERVICE_RUNBOOK)),
    }


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield path
            for name, subparser in action.choices.items():
                yield from _commands(subparser, f"{path} {name}")
        elif action.option_strings:
            for option in action.option_strings:
                yield f"{path} {option}"
        elif action.choices is not None:
            yield from (f"{path} {choice}" for choice in action.choices)
        else:
            yield f"{path} {action.metavar or action.dest}"


def _properties(schema: Any, path: str) -> Iterator[str]:
    """Every path, parameter, form field and property of a document of JSON Schemas."""
    if isinstance(schema, list):
        for part in schema:
            yield from _properties(part, path)
    if not isinstance(schema, dict):
        return
    if "in" in schema and isinstance(schema.get("name"), str):
        yield f"{path} parameter {schema['name']}"
    for key, part in schema.items():
        if key in ("properties", "paths", "schemas", "$defs") and isinstance(part, dict):
            for name, inner in part.items():
                yield f"{path} {name}".strip()
                yield from _properties(inner, f"{path} {name}".strip())
        elif key not in ("example", "examples", "enum", "required"):
            yield from _properties(part, path)


@pytest.mark.parametrize("part", ["metrics", "commands", "settings", "policy", "api", "alerts"])
def test_public_names_are_still_there(part: str) -> None:
    promised, here = set(json.loads(FILE.read_text("utf-8"))[part]), set(contract()[part])
    assert promised - here - RETIRED.get(part, set()) == set()


@pytest.mark.parametrize("part", ["metrics", "commands", "settings", "policy", "api", "alerts"])
def test_public_names_that_are_new_are_written_down(part: str) -> None:
    promised, here = set(json.loads(FILE.read_text("utf-8"))[part]), set(contract()[part])
    assert here - promised == set()


if __name__ == "__main__":
    json.dump(contract(), sys.stdout, indent=0)
    print()
