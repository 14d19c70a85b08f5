"""A policy's parts as values: durations, conditions, what a file may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sample_views import NOW_S
from scheduler_values import facts, incident, scheduler_facts, target
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.verdicts import Severity
from tidegauge_scheduler_hooks.policy.conditions import When, seconds_left
from tidegauge_scheduler_hooks.policy.durations import parse_duration, write_duration
from tidegauge_scheduler_hooks.policy.models import Policy, Rule, schema


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(300, 300.0), (0.5, 0.5), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("2d", 172800.0), ("1m0.5s", 60.5)],
)
def test_a_duration_is_seconds_or_a_text(written: Any, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize("written", ["5", "5 m", "m5", "", "30m1h", "-5m", "1:30", -1, True, None, float("nan"), [5]])
def test_policy_duration_error_shows_the_valid_forms(written: Any) -> None:
    with pytest.raises(ValueError, match="90s, 5m, 1h30m or 2d"):
        parse_duration(written)


@given(st.integers(0, 10**7))
def test_a_duration_that_is_written_is_read_as_the_same(seconds: int) -> None:
    assert parse_duration(write_duration(float(seconds))) == seconds


def matches(when: dict[str, Any], *, requeues: int = 0, **changes: Any) -> bool:
    of_job = facts(
        user_name="ada", job_name="llm-pretrain", scheduler_facts=scheduler_facts(restarts=2),
        alloc_conf="expandable_segments:True,max_split_size_mb:64",
    )  # fmt: skip
    condition = When.model_validate(when)
    return condition.matches(incident(**changes), of_job, requeues=requeues, now_s=NOW_S + 100.0)


@pytest.mark.parametrize(
    ("holds", "does_not"),
    [
        ({"cause": "leak"}, {"cause": ["fragmentation", "host_memory"]}),
        ({"severity": "warning"}, None),
        ({"oom_within": 740}, {"oom_within": 739}),  # the near end is 840 s, 100 s ago
        ({"scope": "rank"}, {"scope": "job"}),
        ({"scheduler": "local"}, {"scheduler": "slurm"}),
        ({"checkpoint": True}, {"checkpoint": False}),
        ({"requeueable": True}, {"requeueable": False}),
        ({"shared_gpu": False}, {"shared_gpu": True}),
        ({"restarts_at_least": 2}, {"restarts_at_least": 3}),
        ({"requeues_at_least": 1}, {"requeues_at_least": 2}),
        ({"alloc_conf_has": {"expandable_segments": True}}, {"alloc_conf_has": {"max_split_size_mb": 65}}),
        ({"user": ["bob", "a?a"]}, {"user": "Ada"}),
        ({"job_name": "llm-*"}, {"job_name": "llm"}),
        ({"account": "phys*"}, {"account": "chem*"}),
        ({"partition": "gpu"}, {"partition": "cpu"}),
        ({"namespace": "team-[ab]"}, {"namespace": "team-c"}),
        ({"qos": "normal"}, {"qos": "high"}),
    ],
)
def test_each_condition_holds_for_what_it_names(holds: dict[str, Any], does_not: dict[str, Any] | None) -> None:
    assert matches(holds, requeues=1)
    if does_not is not None:
        assert not matches(does_not, requeues=1)


def test_a_severity_is_a_least_one() -> None:
    assert not matches({"severity": "critical"}, severity=Severity.WARNING)


@pytest.mark.parametrize("condition", [{"oom_within": "30d"}, {"alloc_conf_has": {"a": "b"}}, {"job_name": "*"}])
def test_policy_condition_on_an_unknown_value_does_not_match(condition: dict[str, Any]) -> None:
    of_job = facts(alloc_conf=None, job_name=None)
    when = When.model_validate(condition)
    assert not when.matches(incident(seconds_to_oom=None), of_job, requeues=0, now_s=NOW_S)


@pytest.mark.parametrize("condition", [{"requeueable": True}, {"account": "*"}, {"restarts_at_least": 1}])
def test_a_job_that_no_scheduler_knows_is_in_no_account_and_not_requeueable(condition: dict[str, Any]) -> None:
    when = When.model_validate(condition)
    assert not when.matches(incident(), facts(scheduler_facts=None), requeues=0, now_s=NOW_S)


def test_the_time_that_is_left_runs_on_between_two_looks_and_ends_at_zero() -> None:
    assert seconds_left(incident(), now_s=NOW_S + 40.0) == 800.0
    assert seconds_left(incident(), now_s=NOW_S + 10_000.0) == 0.0


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ({}, {"cause": "leak"}),
        ({"cause": ["leak", "fragmentation"]}, {"cause": "leak", "user": "ada"}),
        ({"severity": "warning"}, {"severity": "critical"}),
        ({"oom_within": "2h"}, {"oom_within": "1h"}),
        ({"requeues_at_least": 1}, {"requeues_at_least": 2}),
        ({"alloc_conf_has": {"a": "1"}}, {"alloc_conf_has": {"a": "1", "b": "2"}}),
        ({"shared_gpu": True}, {"shared_gpu": True}),
    ],
)
def test_a_condition_covers_a_narrower_one_and_not_the_reverse(wide: dict[str, Any], narrow: dict[str, Any]) -> None:
    assert When.model_validate(wide).covers(When.model_validate(narrow))
    if wide != narrow:
        assert not When.model_validate(narrow).covers(When.model_validate(wide))


def test_a_rule_for_one_scheduler_leaves_the_others_alone() -> None:
    when = When.model_validate({"scheduler": ["loc*"]})
    other = facts(target=replace(target(), scheduler="slurm"))
    assert not when.matches(incident(IncidentCause.LEAK), other, requeues=0, now_s=NOW_S)


@pytest.mark.parametrize(
    ("rung", "complaint"),
    [
        ({"action": "notify", "text": "hello {whom}"}, r"\{whom\} in the text; the placeholders are \{what\}"),
        ({"action": "notify", "text": "{what!r}"}, r"\{what!r\}"),
        ({"action": "notify", "text": "{"}, "invalid placeholder"),
        ({"action": "requeue", "alloc_conf": {"expandable_segment": "True"}}, "is not an allocator setting"),
        ({"action": "requeue", "alloc_conf": {"expandable_segments": "on"}}, "takes True or False, not 'on'"),
        ({"action": "requeue", "alloc_conf": {"max_split_size_mb": 8}}, "above 20"),
        ({"action": "requeue", "alloc_conf": {"garbage_collection_threshold": 1}}, "between 0 and 1"),
        ({"action": "requeue", "alloc_conf": {"roundup_power2_divisions": 3}}, "power of two"),
        ({"action": "requeue", "alloc_conf": {"per_process_memory_fraction": 0.5}}, "the action cap sets"),
        ({"action": "requeue", "environ": {"A-B": "1"}}, "not a valid name of an environment variable"),
        ({"action": "requeue", "environ": {"PYTORCH_ALLOC_CONF": "x"}}, "use alloc_conf"),
        ({"action": "notify", "tries": 0}, "greater than or equal to 1"),
    ],
)
def test_a_rung_that_would_break_something_is_refused(rung: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Rule.model_validate({"name": "one", "ladder": [rung]})


def test_settings_may_be_written_as_yaml_reads_them() -> None:
    settings = {"expandable_segments": True, "garbage_collection_threshold": 0.8, "max_split_size_mb": 64}
    rule = Rule.model_validate({"name": "one", "ladder": [{"action": "requeue", "alloc_conf": settings}]})
    assert rule.ladder[0].model_dump()["alloc_conf"] == {
        "expandable_segments": "True", "garbage_collection_threshold": "0.8", "max_split_size_mb": "64",
    }  # fmt: skip


def test_two_rules_of_one_name_are_refused() -> None:
    rule = {"name": "same", "ladder": [{"action": "notify"}]}
    with pytest.raises(ValidationError, match="two rules are named 'same'"):
        Policy.model_validate({"version": 1, "rules": [rule, rule]})


def test_a_policy_observes_unless_it_says_otherwise() -> None:
    assert Policy(version=1).mode == "observe"


def test_the_schema_describes_every_key() -> None:
    made = schema()
    for name, part in {"policy": made, **made["$defs"]}.items():
        for key, about in part.get("properties", {}).items():
            assert key == "action" or about.get("description"), f"{name}.{key}"
        assert part.get("additionalProperties", False) is False
