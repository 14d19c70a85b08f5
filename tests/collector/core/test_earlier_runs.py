"""What earlier runs tell of a running job: that its growth ends, or that it goes beyond all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from earlier_courses import ACTIVATIONS, LIMIT, MODEL, Course, fills, rows, run
from leakseries.machine import feed
from sample_views import GIB, MIB, NOW_S, identity, job_record, rank_summary
from tidegauge.core.detector import RankDetector
from tidegauge.core.evidence.growth_bound import EARLIER_RUNS, BoundState
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.earlier_runs import (
    MIN_EARLIER_RUNS,
    EarlierRuns,
    change_words,
    earlier_runs,
    filling,
    has_same_script,
    is_earlier_run,
    with_earlier_runs,
)
from tidegauge.core.job_records.memory import JobMemory
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.verdicts import LeakState, Severity
from tidegauge.core.views import RankSummary


class Judged(NamedTuple):
    severities: list[Severity | None]
    """Of established growth, by step, as people are told."""
    alone: list[Severity | None]
    """As the detector says by itself."""
    states: list[BoundState | None]
    ranks: list[RankSummary]

    def first(self, severity: Severity) -> int | None:
        return next((step for step, one in enumerate(self.severities) if one is severity), None)


def judged(course: Course, steps: int, earlier: EarlierRuns, limit: int = LIMIT, seed: int = 77) -> Judged:
    detector = RankDetector()
    found = Judged([], [], [], [])
    most = 0
    for row in rows(course, steps, seed):
        most = max(most, row.peak_allocated)
        verdict = feed(detector, row, limit_bytes=limit)
        rank = rank_summary(
            0, verdict=verdict, step=row.step, allocated_bytes=row.allocated, allocated_peak_bytes=most,
            reserved_bytes=row.reserved, limit_bytes=limit,
        )  # fmt: skip
        (told,) = with_earlier_runs([rank], earlier)
        found.alone.append(verdict.severity if verdict.state is LeakState.LEAK else None)
        found.severities.append(told.verdict.severity if told.verdict.state is LeakState.LEAK else None)
        found.states.append(None if told.bound is None else told.bound.state)
        found.ranks.append(told)
    return found


FILLS = fills()


def known(course: Course = FILLS, steps: int = 3000, runs: int = 5) -> EarlierRuns:
    past = [run(course, steps, number=number) for number in range(runs)]
    found = earlier_runs([record for record, _ in past])
    assert found is not None
    return found._replace(filling=filling(past))


@pytest.fixture(scope="module")
def filled() -> EarlierRuns:
    """Five runs that filled to 50 GiB in 736 steps and stayed there for 2,264."""
    found = known()
    assert found.filling is not None
    return found


def test_a_job_that_fills_as_it_did_before_is_in_no_danger(filled: EarlierRuns) -> None:
    """The promise, with the real detector: without earlier runs this very series is called critical."""
    found = judged(fills(), 1200, filled)
    assert Severity.CRITICAL in found.alone
    assert Severity.CRITICAL not in found.severities
    critical = [step for step, one in enumerate(found.alone) if one is Severity.CRITICAL]
    assert all(found.states[step] is BoundState.HOLDS for step in critical)
    bound = found.ranks[critical[0]].bound
    assert bound is not None
    assert bound.kind == EARLIER_RUNS
    assert 50 * GIB <= bound.end_bytes.likely <= 50 * GIB + ACTIVATIONS
    assert found.ranks[critical[0]].verdict.seconds_to_oom is None


@pytest.mark.parametrize(
    ("name", "course"),
    [
        ("goes on beyond", fills(until=90 * GIB)),
        ("leaks beside", lambda step: fills()(step) + step * 24 * MIB),
        ("leaks after it is full", lambda step: fills()(step) + max(step - 900, 0) * 64 * MIB),
        ("leaks faster", fills(per_step=160 * MIB, until=90 * GIB)),
        ("leaks slowly instead", lambda step: MODEL + step * 16 * MIB),
        ("leaks from later on", lambda step: MODEL + max(step - 800, 0) * 64 * MIB),
    ],
)
def test_a_leak_is_found_in_spite_of_earlier_runs(filled: EarlierRuns, name: str, course: Course) -> None:
    steps = next(step for step in range(10_000) if course(step) + ACTIVATIONS > LIMIT)
    found = judged(course, steps, filled)
    alone, told = found.alone.index(Severity.CRITICAL), found.first(Severity.CRITICAL)
    assert told is not None, name
    assert steps - told >= 0.25 * (steps - alone), "a warning in time"


def test_a_smaller_gpu_that_the_earlier_level_does_not_fit_is_told_in_time(filled: EarlierRuns) -> None:
    found = judged(fills(), 500, filled, limit=40 * GIB)
    told = found.first(Severity.CRITICAL)
    assert told is not None
    bound = found.ranks[told].bound
    assert bound is not None
    assert bound.state is BoundState.TOO_LARGE
    assert bound.missing_bytes is not None
    assert 8 * GIB <= bound.missing_bytes <= 18 * GIB


LEAKED = lambda step: MODEL + step * 16 * MIB  # noqa: E731


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("too few", []),
        ("one died of it", [run(fills(), 700, number=8, end=JobEnd.OOM)]),
        ("one had an error that it survived", [run(fills(), 3000, number=8, ooms=1)]),
        ("the policy ended one", [run(fills(), 3000, number=8, end=JobEnd.REQUEUED, actions=("requeue",))]),
        ("one went on growing", [run(LEAKED, 3000, number=8)]),
        ("all are too short to have stopped", [run(fills(), 800, number=number) for number in range(8, 12)]),
    ],
)
def test_runs_that_do_not_agree_show_no_end_of_growth(name: str, others: list[tuple[JobRecord, JobMemory]]) -> None:
    count = MIN_EARLIER_RUNS - 1 if name in ("too few", "all are too short to have stopped") else MIN_EARLIER_RUNS
    past = [run(fills(), 3000, number=number) for number in range(count)]
    assert filling([*past, *others]) is None, name


def test_runs_that_were_ended_early_say_nothing_against_it() -> None:
    past = [run(fills(), 3000, number=number) for number in range(MIN_EARLIER_RUNS)]
    found = filling([*past, run(fills(), 400, number=8, end=JobEnd.CANCELLED)])
    assert found is not None
    assert found.runs == MIN_EARLIER_RUNS


def test_a_level_job_that_grows_now_has_no_excuse() -> None:
    found = judged(fills(until=90 * GIB), 1100, known(lambda _: MODEL))
    assert found.severities == found.alone
    assert Severity.CRITICAL in found.severities


def test_a_filling_is_small_whatever_the_runs_were() -> None:
    past = [run(fills(per_step=rate * MIB), 3000, number=rate) for rate in range(40, 52)]
    found = filling(past)
    assert found is not None
    assert len(found.steps) == len(found.low_bytes) == len(found.high_bytes) <= 65
    assert all(low <= high for low, high in zip(found.low_bytes, found.high_bytes))
    assert list(found.steps) == sorted(set(found.steps))


ME = job_record(job=JobKey("9", 0, 1001), started_unix_s=NOW_S, ended_unix_s=None, end=None, script="train.py",
                script_sha256="ab")  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"job_name": "another"}, {"world_size": 4}, {"script": "eval.py"}, {"namespace": "team-a"}, {"end": None},
        {"job": JobKey("1", 0, 7)}, {"started_unix_s": NOW_S + 1.0}, {"steps": 0},
    ],
)  # fmt: skip
def test_runs_of_other_users_names_scripts_and_sizes_are_other_jobs(other: dict[str, Any]) -> None:
    one = run(fills(), 10, number=1)[0]
    assert is_earlier_run(one, ME)
    assert not is_earlier_run(one._replace(**other), ME)


def test_a_script_that_was_edited_is_another_script() -> None:
    one = run(fills(), 10, number=1)[0]
    assert has_same_script(one, ME)
    assert not has_same_script(one._replace(script_sha256="cd"), ME)
    assert not has_same_script(one._replace(script_sha256=None), ME._replace(script_sha256=None))


def beyond(**now: Any) -> str | None:
    past = [run(fills(), 10, number=number)[0] for number in range(4)]
    past = [one._replace(fullest=RankPeak(0, "a", 40 * GIB, 42 * GIB, LIMIT), arguments="--batch 32") for one in past]
    known = earlier_runs(past)
    assert known is not None
    who = identity(0, **{"script": "train.py", "script_sha256": "ab", "arguments": "--batch 32",
                         "torch_version": None, "alloc_conf": None, **now})  # fmt: skip
    return change_words([rank_summary(0, identity=who, allocated_peak_bytes=52 * GIB)], known)


@pytest.mark.parametrize(
    ("now", "since"),
    [
        ({"arguments": "--batch 64"}, "since the last of them: arguments --batch 32 → --batch 64"),
        ({"script_sha256": "cd"}, "since the last of them: script changed"),
        ({"torch_version": "2.12.0", "arguments": None}, "since the last of them: arguments changed, torch changed"),
        ({}, "script and arguments are those of the last run (what it imports or reads may have changed)"),
    ],
)
def test_a_peak_beyond_all_earlier_runs_is_told_with_what_changed(now: dict[str, Any], since: str) -> None:
    assert beyond(**now) == (
        f"its peak (52.0 GiB allocated) is beyond those of 4 earlier runs (40.0 GiB at most); {since}"
    )


def test_a_peak_that_earlier_runs_had_as_well_is_no_change() -> None:
    record = run(fills(), 10, number=1)[0]._replace(fullest=RankPeak(0, "a", 52 * GIB, 53 * GIB, LIMIT))
    found = earlier_runs([record] * 3)
    assert found is not None
    assert change_words([rank_summary(0, allocated_bytes=52 * GIB + 30 * MIB)], found) is None
    assert earlier_runs([record] * 2) is None
