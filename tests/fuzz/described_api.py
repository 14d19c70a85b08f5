"""The HTTP API against its own description: schemathesis makes requests from the OpenAPI document, to the real one.

What comes back must have a status, a type and a shape that the document names; a page never fails (500).
"""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api_world import filled_service
from fuzz.fuzzing import Outcome
from tidegauge.cluster.api.openapi import PAGES, openapi_json

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ROUND = 10
"""Requests for one page before the next has its turn."""


def fuzz_api(seconds: float, *, seed: int) -> Outcome:
    """Page after page until the time is over, each with parameters that fit the document and with others."""
    logging.getLogger("tidegauge").setLevel(logging.CRITICAL)
    began_s, inputs = time.monotonic(), 0
    findings: list[str] = []
    schema: Any = schemathesis.openapi.from_dict(json.loads(openapi_json()))
    with tempfile.TemporaryDirectory(prefix="tidegauge-fuzz-") as folder, filled_service(Path(folder)) as service:
        for number in itertools.count():
            for path in PAGES:
                if time.monotonic() - began_s > seconds or len(findings) >= 5:
                    took_s = max(time.monotonic() - began_s, 0.1)
                    return Outcome(
                        "described API", inputs, round(inputs / took_s), len(PAGES), None, 0, 0, tuple(findings)
                    )
                for operation in schema[path].values():
                    inputs += _round(operation, service.url, seed + number, findings)
    raise AssertionError("the pages never end")


def _round(operation: Any, url: str, seed: int, findings: list[str]) -> int:
    """``ROUND`` requests, every other round with parameters that the document does not allow."""
    mode = schemathesis.GenerationMode.NEGATIVE if seed % 2 else schemathesis.GenerationMode.POSITIVE
    if not operation.definition.raw.get("parameters") and "requestBody" not in operation.definition.raw:
        mode = schemathesis.GenerationMode.POSITIVE
    count = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=ROUND, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        nonlocal count
        count += 1
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=30)

    try:
        ask()
    except Exception as error:  # a failed check, several of them, or a connection that broke: all are findings
        findings.append(f"{operation.label}: {type(error).__name__}: {str(error)[:600]}")
    return count
