"""What earlier runs tell of a running job: that its growth ends, or that it goes beyond all of them."""

from __future__ import annotations

from random import Random
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
    _difference,
    change_words,
    earlier_runs,
    filled_runs,
    has_same_script,
    is_earlier_run,
    with_earlier_runs,
)
from tidegauge.core.job_records.memory import JobMemory, RankMemory
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


def judged(course: Course, steps: int, earlier: EarlierRuns, limit: int = LIMIT, *, number: int = 0) -> Judged:
    detector = RankDetector()
    found = Judged([], [], [], [])
    most = 0
    for row in rows(course, steps, 77):
        most = max(most, row.peak_allocated)
        verdict = feed(detector, row, limit_bytes=limit)
        rank = rank_summary(
            number, verdict=verdict, step=row.step, allocated_bytes=row.allocated, allocated_peak_bytes=most,
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
    found = earlier_runs(past)
    assert found is not None
    return found._replace(filled=filled_runs(past))


@pytest.fixture(scope="module")
def filled() -> EarlierRuns:
    """Five runs that filled to 50 GiB in 736 steps and stayed there for 2,264."""
    found = known()
    assert len(found.filled) == 5
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


def leaked(step: int) -> float:
    return MODEL + step * 24 * MIB


PAST = [run(fills(), 3000, number=number) for number in range(MIN_EARLIER_RUNS)]


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("one died of it", [*PAST, run(fills(), 700, number=8, end=JobEnd.OOM)]),
        ("one had an error that it survived", [*PAST, run(fills(), 3000, number=8, ooms=1)]),
        ("the policy ended one", [*PAST, run(fills(), 3000, number=8, end=JobEnd.REQUEUED, actions=("requeue",))]),
        ("one went on growing beyond", [*PAST, run(leaked, 3000, number=8)]),
        ("all are too short to have stopped", [run(fills(), 800, number=number) for number in range(8, 12)]),
    ],
)
def test_runs_that_do_not_agree_show_no_end_of_growth(name: str, runs: list[tuple[JobRecord, JobMemory]]) -> None:
    assert filled_runs(runs) == (), name


NO_CURVE = run(fills(), 3000, number=9)[0], JobMemory()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ended while it filled", run(fills(), 400, number=8, end=JobEnd.CANCELLED)),
        ("ended soon after it was full", run(fills(), 850, number=8, end=JobEnd.CANCELLED)),
        ("its curve was deleted for room", NO_CURVE),
        ("a last evaluation takes more", run(lambda step: fills()(step) + 6 * GIB * (step > 2950), 3000, number=8)),
    ],
)
def test_a_run_that_tells_less_takes_nothing_from_the_others(name: str, other: tuple[JobRecord, JobMemory]) -> None:
    assert len(filled_runs([*PAST, other])) >= MIN_EARLIER_RUNS, name


def evaluated(step: int) -> float:
    return fills()(step) + 6 * GIB * (step > 2900)


def test_runs_with_a_last_evaluation_stop_all_the_same() -> None:
    found = judged(fills(), 1200, known(evaluated))
    assert Severity.CRITICAL in found.alone
    assert Severity.CRITICAL not in found.severities


@pytest.mark.parametrize("limit", [52 * GIB + ACTIVATIONS, 51 * GIB + ACTIVATIONS])
def test_where_there_is_no_room_above_the_end_a_leak_is_told_as_without_earlier_runs(
    filled: EarlierRuns, limit: int
) -> None:
    found = judged(fills(until=90 * GIB), (limit - MODEL - ACTIVATIONS) // (64 * MIB), filled, limit)
    assert found.first(Severity.CRITICAL) is not None
    assert found.first(Severity.CRITICAL) == found.alone.index(Severity.CRITICAL)


def test_ends_that_differ_must_all_fit(filled: EarlierRuns) -> None:
    past = [run(fills(until=end * GIB), 3000, number=end) for end in (44, 46, 50, 54, 56)]
    found = earlier_runs(past)
    assert found is not None
    result = judged(fills(until=90 * GIB), 850, found._replace(filled=filled_runs(past)), 60 * GIB)
    assert result.first(Severity.CRITICAL) is not None
    assert result.first(Severity.CRITICAL) == result.alone.index(Severity.CRITICAL)


def test_one_filled_run_among_flat_ones_is_too_few() -> None:
    past = [run(fills(), 4000, number=1), *(run(lambda _: MODEL, 4000, number=number) for number in (2, 3))]
    found = earlier_runs(past)
    assert found is not None
    late = judged(lambda step: MODEL + max(step - 300, 0) * 20 * MIB, 3700, found._replace(filled=filled_runs(past)))
    assert late.severities == late.alone
    assert Severity.CRITICAL in late.alone


def test_a_level_that_nobody_saw_fill_excuses_no_growth_after_its_time() -> None:
    """Runs of 16 h: a point of their curves is 512 steps."""
    found = judged(lambda step: MODEL + max(step - 300, 0) * 8 * MIB, 8000, known(lambda _: 60 * GIB, 60_000, 4))
    assert found.first(Severity.CRITICAL) == found.alone.index(Severity.CRITICAL)


def test_a_filling_at_the_beginning_of_long_runs_is_expected_in_its_time() -> None:
    found = judged(fills(per_step=256 * MIB), 600, known(fills(per_step=256 * MIB), 60_000, 4))
    assert Severity.CRITICAL in found.alone
    assert Severity.CRITICAL not in found.severities


def test_runs_with_noisy_activations_stop_all_the_same() -> None:
    def noisy(step: int) -> float:
        return fills(until=40 * GIB)(step) + Random(step).betavariate(1, 4) * 12 * GIB

    assert len(filled_runs([run(noisy, 3000, number=number) for number in range(4)])) == 4


def of_two_ranks(number: int) -> tuple[JobRecord, JobMemory]:
    """A pipeline: rank 0 fills to 50 GiB, rank 1 holds 4."""
    record, full = run(fills(), 3000, number=number)
    _, flat = run(lambda _: MODEL, 3000, number=100 + number)
    peak = flat.peaks[0]._replace(rank=1)
    return record, JobMemory((*full.peaks, peak), (*full.curves, RankMemory(1, flat.curves[0].points)))


def test_of_ranks_that_differ_each_has_its_own_past() -> None:
    past = [of_two_ranks(number) for number in range(4)]
    found = earlier_runs(past)
    assert found is not None
    found = found._replace(filled=filled_runs(past))
    assert Severity.CRITICAL not in judged(fills(), 1200, found).severities
    leaky = judged(fills(until=90 * GIB), 1000, found, number=1)
    assert leaky.severities == leaky.alone


def test_of_ranks_that_are_alike_any_tells_of_all(filled: EarlierRuns) -> None:
    assert Severity.CRITICAL not in judged(fills(), 1200, filled, number=7).severities


def test_what_is_kept_of_a_run_is_small_whatever_it_was() -> None:
    for one in filled_runs([run(fills(per_step=rate * MIB), 3000, number=rate) for rate in range(40, 52)]):
        (rank,) = one.ranks.values()
        assert len(rank.steps) == len(rank.bytes_held) <= 64
        assert list(rank.steps) == sorted(set(rank.steps))


def test_a_level_job_that_grows_now_has_no_excuse() -> None:
    found = judged(fills(until=90 * GIB), 1100, known(lambda _: MODEL))
    assert found.severities == found.alone
    assert Severity.CRITICAL in found.severities


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


ARGUMENTS = "--batch 32"


def beyond(**now: Any) -> str | None:
    past = [
        (
            run(fills(), 10, number=number)[0]._replace(
                fullest=RankPeak(0, "a", 38 * GIB, 42 * GIB, LIMIT), arguments=ARGUMENTS
            ),
            JobMemory((RankPeak(1, "a", 40 * GIB, 41 * GIB, LIMIT),)),
        )
        for number in range(4)
    ]
    known = earlier_runs(past)
    assert known is not None
    who = identity(0, **{"script": "train.py", "script_sha256": "ab", "arguments": ARGUMENTS,
                         "torch_version": None, "alloc_conf": None, **now})  # fmt: skip
    return change_words([rank_summary(0, identity=who, allocated_peak_bytes=52 * GIB)], known)


@pytest.mark.parametrize(
    ("now", "since"),
    [
        ({"arguments": "--batch 64"}, "; since the last of them: arguments --batch 32 → --batch 64"),
        ({"arguments": ""}, "; since the last of them: arguments --batch 32 → none"),
        ({"script_sha256": "cd"}, "; since the last of them: script changed"),
        ({"script_sha256": None, "arguments": None}, ""),
        ({}, "; script and arguments are those of the last run (what it imports or reads may have changed)"),
    ],
)
def test_a_peak_beyond_all_earlier_runs_is_told_with_what_changed(now: dict[str, Any], since: str) -> None:
    assert beyond(**now) == f"its peak (52.0 GiB allocated) is beyond those of 4 earlier runs (40.0 GiB at most){since}"


def test_long_arguments_are_shown_from_where_they_differ() -> None:
    long = "--data /datasets/imagenet --workers 16 --epochs 300 --model vit"
    assert _difference("arguments", f"{long} --batch 64 --seed 1", f"{long} --batch 32 --seed 1") == (
        "arguments … 32 --seed 1 → 64 --seed 1"
    )


def test_a_peak_that_the_program_has_reset_since_counts_as_in_the_records() -> None:
    record = run(fills(), 10, number=1)[0]._replace(fullest=RankPeak(0, "a", 40 * GIB, 42 * GIB, LIMIT))
    known = earlier_runs([(record, JobMemory())] * 3)
    assert known is not None
    rank = rank_summary(0, allocated_bytes=GIB, allocated_peak_bytes=2 * GIB, allocated_highest_bytes=52 * GIB)
    assert "its peak (52.0 GiB allocated)" in (change_words([rank], known) or "")


def test_a_peak_that_earlier_runs_had_as_well_is_no_change() -> None:
    record = run(fills(), 10, number=1)[0]._replace(fullest=RankPeak(0, "a", 52 * GIB, 53 * GIB, LIMIT))
    found = earlier_runs([(record, JobMemory())] * 3)
    assert found is not None
    assert change_words([rank_summary(0, allocated_bytes=52 * GIB + 30 * MIB)], found) is None
    assert earlier_runs([(record, JobMemory())] * 2) is None
