"""JSON of values: stable keys, and ``null`` for what JSON cannot say."""

from __future__ import annotations

import json
import math

import pytest

from sample_views import LEAK, job_view
from tidegauge.cluster.wire import identity_from_wire, to_json, to_wire, verdict_from_wire
from tidegauge.core.verdicts import OK, Band, LeakState, Verdict


def test_a_job_keeps_the_order_of_its_fields() -> None:
    keys = list(json.loads(to_json(job_view())))
    assert keys[:6] == ["job_id", "attempt", "job_name", "user_name", "scheduler", "world_size"]
    assert to_json(job_view()) == to_json(job_view())


def test_a_verdict_is_written_field_by_field() -> None:
    assert to_wire(LEAK._replace(steps_to_oom=None))["state"] == "leak"  # type: ignore[index, call-overload]
    assert to_wire(OK)["bytes_per_step"] is None  # type: ignore[index, call-overload]


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_become_null(number: float) -> None:
    assert to_wire(Band(1.0, 2.0, number)) == {"low": 1.0, "likely": 2.0, "high": None}


def test_enums_tuples_and_mappings() -> None:
    assert to_wire({LeakState.LEAK: (1, 2.5, "x", True)}) == {"leak": [1, 2.5, "x", True]}


def test_text_that_is_not_ascii_survives() -> None:
    assert json.loads(to_json("Zoë \u2013 \ud83d".encode("utf-8", "replace").decode())) == "Zoë \u2013 ?"


def test_a_thing_that_is_no_value_is_refused() -> None:
    with pytest.raises(TypeError, match="a object has no JSON form"):
        to_wire(object())


@pytest.mark.parametrize("verdict", [OK, LEAK, LEAK._replace(steps_to_oom=Band(1.0, 2.0, math.inf), cause=None)])
def test_a_verdict_comes_back_as_it_was(verdict: Verdict) -> None:
    assert verdict_from_wire(json.loads(to_json(verdict))) == verdict


def test_an_identity_comes_back_as_it_was() -> None:
    identity = job_view().ranks[0].identity
    assert identity_from_wire(json.loads(to_json(identity))) == identity
