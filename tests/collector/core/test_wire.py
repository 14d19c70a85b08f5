"""JSON of values: stable keys, and ``null`` for what JSON cannot say."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest

from sample_views import LEAK, job_view
from scheduler_values import JOB, decision, facts, finding, incident, oom_record, record
from tidegauge.core.incidents import ChangeKind, Incident, IncidentCause, IncidentChange
from tidegauge.core.incidents.actions import ActionKind, LoopStatus, Outcome, UnderWay
from tidegauge.core.verdicts import OK, Band, LeakState
from tidegauge.core.wire import from_wire, to_json, to_wire, wire_json


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


LISTS: tuple[Mapping[Any, object], ...] = (
    {},
    {"jobs": []},
    {"jobs": (), "left_out": 0},
    {LeakState.LEAK: [job_view(), job_view()], 'a "name"': None, "z": (1, math.nan, "\u2013")},
    {"band": Band(1.0, 2.0, math.inf), "by rank": {"0": [1], "1": [2]}, "last": [[1, 2], {}]},
)


@pytest.mark.parametrize("value", LISTS)
def test_a_mapping_is_written_item_by_item_and_reads_the_same(value: Mapping[Any, object]) -> None:
    once = {name: iter(part) if isinstance(part, list) or type(part) is tuple else part for name, part in value.items()}
    assert to_json(value) == to_json(once) == wire_json(to_wire(value))


def test_a_long_answer_takes_little_more_than_its_text() -> None:
    lines = ({"incident": n, "points": [[n, n + 1, n + 2]] * 20} for n in range(2000))
    tracemalloc.start()
    text = to_json({"lines": lines})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * len(text)


def test_text_that_is_not_ascii_survives() -> None:
    assert json.loads(to_json("Zoë \u2013 \ud83d".encode("utf-8", "replace").decode())) == "Zoë \u2013 ?"


def test_a_thing_that_is_no_value_is_refused() -> None:
    with pytest.raises(TypeError, match="a object has no JSON form"):
        to_wire(object())


def test_a_set_is_a_sorted_list() -> None:
    assert to_wire(frozenset({ActionKind.REQUEUE, ActionKind.CAP})) == ["cap", "requeue"]


VERDICTS = (OK, LEAK, LEAK._replace(steps_to_oom=Band(1.0, 2.0, math.inf), cause=None))
INCIDENTS = (
    incident(),
    incident(
        IncidentCause.OUT_OF_MEMORY,
        findings=(finding(0, oom=oom_record(), uuid=None),),
        seconds_to_oom=Band(1.0, 2.0, math.inf),
    ),
)
ALL_VALUES = (
    *VERDICTS,
    *INCIDENTS,
    job_view().ranks[0].identity,
    facts(),
    facts(scheduler_facts=None, checkpoint=None),
    decision(parameters={"alloc_conf": {"expandable_segments": "True"}}),
    record(decision(ActionKind.REQUEUE), Outcome.DONE),
    IncidentChange(ChangeKind.OPENED, 1.5, incident()),
    LoopStatus("act", None, under_way=(UnderWay("1:leak:0:1", ActionKind.CAP, JOB, 2.0, "asking"),)),
)


@pytest.mark.parametrize("value", ALL_VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert from_wire(type(value), json.loads(to_json(value))) == value


def test_wire_ignores_unknown_fields_and_defaults_missing_ones() -> None:
    raw = json.loads(to_json(LoopStatus("act", None, incidents_open=3)))
    del raw["incidents_open"]
    assert from_wire(LoopStatus, {**raw, "shiny": 1}) == LoopStatus("act", None)


@pytest.mark.parametrize(
    "damage",
    [
        {"severity": "awful"},
        {"number": "1"},
        {"number": True},
        {"findings": 3},
        {"key": None},
        {"flaps": None},
        {"opened_unix_s": 10**400},
    ],
)
def test_a_thing_that_is_no_incident_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="this is no Incident that"):
        from_wire(Incident, {**json.loads(to_json(incident())), **damage})


def test_a_field_without_a_default_must_be_there() -> None:
    raw = json.loads(to_json(incident()))
    del raw["findings"]
    with pytest.raises(ValueError, match=r"no Incident that this version of Tidegauge can read: .*findings"):
        from_wire(Incident, raw)
