"""The default policy's answer to every cause, walked through with time: what is done, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policy_runs import Run
from scheduler_values import facts, scheduler_facts
from tidegauge.core.incidents import IncidentCause, IncidentKey
from tidegauge.core.incidents.actions import Outcome
from tidegauge.core.verdicts import Band, Severity
from tidegauge_scheduler_hooks.policy.files import load_policy

JOB_KEY = facts().target.job
HOUR = 3600
SAVED_AND_REQUEUEABLE: dict[str, Any] = {}
NOT_REQUEUEABLE = {"scheduler_facts": scheduler_facts(requeueable=False)}
NOT_SAVED = {"checkpoint": None}
SHARED = {"shared_gpu": True, "cap_fraction": 0.4}

CRITICAL, WARNING, NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE
LEAK, FRAGMENTATION = IncidentCause.LEAK, IncidentCause.FRAGMENTATION
CUDA_GRAPHS = IncidentCause.CUDA_GRAPHS

TWICE = [(0, "do notify"), (4 * HOUR, "do notify")]
"""Once when it is seen, once when the end is two hours away."""

ANSWERS: list[tuple[str, IncidentCause, Severity, dict[str, Any], list[tuple[int, str]]]] = [
    ("out-of-memory", IncidentCause.OUT_OF_MEMORY, CRITICAL, {}, [(0, "do notify")]),
    ("share-exceeded", IncidentCause.SHARE_EXCEEDED, WARNING, SHARED, [(0, "do notify"), (300, "do cap")]),
    (
        "fragmentation-despite-setting",
        FRAGMENTATION,
        CRITICAL,
        {"alloc_conf": "expandable_segments:True"},
        [(0, "do notify")],
    ),
    (
        "fragmentation-requeue",
        FRAGMENTATION,
        CRITICAL,
        SAVED_AND_REQUEUEABLE,
        [(0, "do notify"), (300, "do notify"), (4 * HOUR, "do checkpoint"), (4 * HOUR, "do requeue")],
    ),
    ("fragmentation", FRAGMENTATION, CRITICAL, NOT_REQUEUEABLE, TWICE),
    ("fragmentation", FRAGMENTATION, CRITICAL, NOT_SAVED, TWICE),
    ("fragmentation", FRAGMENTATION, WARNING, SAVED_AND_REQUEUEABLE, TWICE),
    (
        "cuda-graphs-requeue",
        CUDA_GRAPHS,
        CRITICAL,
        SAVED_AND_REQUEUEABLE,
        [
            (0, "do notify"), (300, "do notify"),
            (5 * HOUR + 1800, "do checkpoint"), (5 * HOUR + 1800, "do requeue"),
        ],
    ),
    ("cuda-graphs", CUDA_GRAPHS, CRITICAL, NOT_REQUEUEABLE, TWICE),
    ("cuda-graphs", CUDA_GRAPHS, CRITICAL, NOT_SAVED, TWICE),
    ("cuda-graphs", CUDA_GRAPHS, WARNING, {"alloc_conf": "expandable_segments:True"}, TWICE),
    (
        "leak-on-shared-gpu-requeue",
        LEAK,
        CRITICAL,
        SHARED,
        [
            (0, "do notify"), (120, "do cap"), (300, "do notify"),
            (5 * HOUR + 1800, "do checkpoint"), (5 * HOUR + 1800, "do requeue"),
        ],
    ),
    (
        "leak-on-shared-gpu",
        LEAK,
        CRITICAL,
        {**SHARED, **NOT_SAVED},
        [(0, "do notify"), (300, "do cap"), (4 * HOUR, "do notify")],
    ),
    (
        "leak-requeue",
        LEAK,
        CRITICAL,
        SAVED_AND_REQUEUEABLE,
        [
            (0, "do notify"), (300, "do notify"),
            (5 * HOUR + 1800, "do checkpoint"), (5 * HOUR + 1800, "do requeue"),
        ],
    ),
    ("leak", LEAK, CRITICAL, NOT_SAVED, TWICE),
    ("leak", LEAK, CRITICAL, NOT_REQUEUEABLE, TWICE),
    ("leak", LEAK, WARNING, {**SHARED}, TWICE),
    ("growth-elsewhere", IncidentCause.OUTSIDE_ALLOCATOR, CRITICAL, SAVED_AND_REQUEUEABLE, TWICE),
    ("growth-elsewhere", IncidentCause.HOST_MEMORY, CRITICAL, SAVED_AND_REQUEUEABLE, TWICE),
]  # fmt: skip


def run_of(cause: IncidentCause, severity: Severity, of_job: dict[str, Any], **changes: Any) -> Run:
    acting = load_policy(None).model_copy(update={"mode": "act"})
    oom = Band(6.0 * HOUR, 7.0 * HOUR, 8.0 * HOUR) if cause.is_growth else None
    known = {"key": IncidentKey(JOB_KEY, cause), "severity": severity, "seconds_to_oom": oom}
    return Run(acting, of_job=facts(**of_job), **{**known, **changes})


@pytest.mark.parametrize(("rule", "cause", "severity", "of_job", "expected"), ANSWERS)
def test_the_default_answer(
    rule: str, cause: IncidentCause, severity: Severity, of_job: dict[str, Any], expected: list[tuple[int, str]]
) -> None:
    run = run_of(cause, severity, of_job)
    assert run.until(6 * HOUR) == expected
    assert {one.rule for one in run.decisions} == {rule}


def test_private_pools_are_not_met_with_the_setting_that_does_not_cure_them() -> None:
    run = run_of(CUDA_GRAPHS, CRITICAL, {})
    run.until(6 * HOUR)
    assert run.decisions[-1].parameters["alloc_conf"] == {}
    told = [one.parameters["text"] for one in run.decisions if "text" in one.parameters]
    assert len(told) == 2
    assert [text for text in told if "expandable_segments" in text] == []


def test_evidence_that_comes_between_warning_and_requeue_changes_the_ladder() -> None:
    run = run_of(FRAGMENTATION, CRITICAL, {})
    assert run.until(600) == [(0, "do notify"), (300, "do notify")]
    run.incident = replace(run.incident, key=IncidentKey(JOB_KEY, CUDA_GRAPHS))
    run.until(6 * HOUR)
    assert {one.rule for one in run.decisions[2:]} == {"cuda-graphs-requeue"}
    assert run.decisions[-1].parameters["alloc_conf"] == {}


def test_every_default_rule_has_its_answer_here() -> None:
    assert {rule.name for rule in load_policy(None).rules} == {rule for rule, *_ in ANSWERS}


@pytest.mark.parametrize("cause", [cause for cause in IncidentCause if cause.is_growth])
def test_default_policy_ignores_growth_that_takes_weeks(cause: IncidentCause) -> None:
    assert run_of(cause, NOTE, {}).until(6 * HOUR) == []


def test_a_fast_leak_is_saved_ten_minutes_after_it_was_seen() -> None:
    run = run_of(LEAK, CRITICAL, {}, seconds_to_oom=Band(900.0, 1000.0, 1100.0))
    assert run.until(900) == [(0, "do notify"), (300, "do notify"), (600, "do checkpoint"), (600, "do requeue")]


def test_the_fragmenting_job_starts_again_with_the_setting_that_its_owner_was_told_of() -> None:
    run = run_of(FRAGMENTATION, CRITICAL, {"alloc_conf": "max_split_size_mb:64", "torch_version": "2.9.1"})
    run.until(6 * HOUR)
    assert run.last.parameters["alloc_conf"] == {"expandable_segments": "True"}
    assert "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True" in run.text()


def test_a_leaking_job_that_could_not_be_saved_runs_on() -> None:
    run = run_of(LEAK, CRITICAL, {})
    run.until(5 * HOUR)
    made = run.until(6 * HOUR, outcome=Outcome.NO_PROOF)
    assert made == [
        (5 * HOUR + 1800, "do checkpoint"), (5 * HOUR + 1860, "do checkpoint"),
        (5 * HOUR + 1920, "withheld checkpoint: tries"),
    ]  # fmt: skip


def test_a_job_whose_share_is_not_known_is_not_capped_and_still_saved() -> None:
    run = run_of(LEAK, CRITICAL, {"shared_gpu": True})
    made = [what for _, what in run.until(6 * HOUR)]
    assert made == ["do notify", "withheld cap: no_fraction", "do notify", "do checkpoint", "do requeue"]


def test_by_default_nothing_is_done_at_all() -> None:
    run = run_of(LEAK, CRITICAL, {})
    run.policy = load_policy(None)
    assert [what.split()[0] for _, what in run.until(6 * HOUR)] == ["would"] * 4
