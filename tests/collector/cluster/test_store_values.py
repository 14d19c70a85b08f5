"""Values as text: the same value comes back, from an older version's text and a newer one's, too."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_values import decision, facts, finding, incident, scheduler_facts
from tidegauge.cluster.store.values import DECISION, INCIDENT, column_name
from tidegauge.core.incidents import Incident
from tidegauge.core.verdicts import Band

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.from_type(Incident))
def test_any_incident_comes_back(value: Incident) -> None:
    text = INCIDENT.write(value)
    assert INCIDENT.write(INCIDENT.read(text)) == text  # not the values: NaN differs from itself


@given(st.dictionaries(st.text(), json_values, max_size=3), st.text(st.characters(exclude_categories=[])))
def test_any_decision_comes_back(parameters: dict[str, object], reason: str) -> None:
    value = decision(parameters=parameters, reason=reason, facts=facts(scheduler_facts=scheduler_facts(qos=reason)))
    assert DECISION.read(DECISION.write(value)) == value


def test_infinity_comes_back_and_the_text_is_strict_json() -> None:
    value = incident(seconds_to_oom=Band(1.0, float("inf"), float("inf")))
    written = INCIDENT.write(value)
    json.loads(written, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert INCIDENT.read(written) == value


def test_store_values_ignore_unknown_fields_at_every_depth() -> None:
    value = incident(findings=(finding(0), finding(1)))
    raw = json.loads(INCIDENT.write(value))
    raw["new"] = {"deep": 1}
    raw["key"]["job"]["new"] = 1
    raw["findings"][1]["new"] = 2
    for one in raw["findings"]:
        one["verdict"]["new"] = [3]
        one["verdict"]["bytes_per_step"]["new"] = 4
    assert INCIDENT.read(json.dumps(raw)) == value


def test_fields_that_an_older_version_did_not_have_get_their_defaults() -> None:
    raw = json.loads(INCIDENT.write(incident(flaps=3)))
    del raw["flaps"]
    assert INCIDENT.read(json.dumps(raw)) == incident(flaps=0)


@pytest.mark.parametrize("text", ["{}", "[]", "", "{", '{"number": "x"}'])
def test_a_text_that_is_no_incident_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        INCIDENT.read(text)


def test_a_word_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="state"):
        INCIDENT.read(INCIDENT.write(incident()).replace('"open"', '"pondering"'))


@given(st.text(st.characters()), st.text(st.characters()))
def test_different_names_stay_different(first: str, second: str) -> None:
    assert (column_name(first) == column_name(second)) == (first == second)


@given(st.text(st.characters(exclude_categories=[]), max_size=1024))
def test_any_name_can_be_stored(name: str) -> None:
    stored = column_name(name)
    assert "\0" not in stored
    assert len(stored.encode("utf-8")) < 2000
