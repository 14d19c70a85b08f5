"""The search for the largest batch: right on any rising curve, in few runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.estimator.gpus import GIB, MIB, GpuType, SizeSource, Target
from tidegauge.estimator.largest_batch import MAX_TRIALS, BatchRuns, by_the_line, fitting_bytes, largest_batch


def gpu(total_bytes: int) -> GpuType:
    return GpuType("test", Target("test", total_bytes, (9, 0), 132), SizeSource.MEASURED)


def line(start_bytes: int, slope_bytes: int) -> Callable[[int], int]:
    return lambda batch: start_bytes + slope_bytes * batch


@given(st.integers(1, 60 * GIB), st.integers(1 * MIB, 4 * GIB), st.integers(1, 512), st.integers(8 * GIB, 180 * GIB))
def test_on_a_straight_line_the_answer_is_exact_and_takes_few_runs(
    start_bytes: int, slope_bytes: int, first: int, total_bytes: int
) -> None:
    needs = line(start_bytes, slope_bytes)
    runs = BatchRuns(needs, {first: needs(first)})
    found = largest_batch(runs, gpu(total_bytes))
    room_bytes = fitting_bytes(total_bytes)
    assert found.batch_size == max(0, (room_bytes - start_bytes) // slope_bytes)
    assert found.tried
    assert runs.spent <= 4
    assert found.border_batch_size == max(0, (total_bytes - start_bytes) // slope_bytes)


@given(st.lists(st.integers(0, 3 * GIB), min_size=1, max_size=300), st.integers(1, 64))
def test_on_any_rising_curve_the_answer_fits_and_was_run(steps: list[int], first: int) -> None:
    def needs(batch: int) -> int:
        return GIB + sum(steps[: batch % len(steps)]) + (batch // len(steps)) * sum(steps) + batch

    runs = BatchRuns(needs, {first: needs(first)})
    found = largest_batch(runs, gpu(40 * GIB))
    assert runs.spent <= MAX_TRIALS
    assert (found.border_batch_size or 0) >= found.batch_size
    if found.batch_size:
        assert found.device_bytes == needs(found.batch_size) <= fitting_bytes(40 * GIB)
    if runs.spent < MAX_TRIALS:
        assert needs(found.batch_size + 1) > fitting_bytes(40 * GIB) or found.batch_size >= 1 << 20


def test_a_job_that_does_not_fit_with_one_sample_has_no_batch() -> None:
    needs = line(50 * GIB, GIB)
    found = largest_batch(BatchRuns(needs, {8: needs(8)}), gpu(40 * GIB))
    assert (found.batch_size, found.device_bytes) == (0, None)


def test_each_batch_is_run_once() -> None:
    seen: list[int] = []

    def needs(batch: int) -> int:
        seen.append(batch)
        return GIB * batch

    largest_batch(BatchRuns(needs, {4: 4 * GIB}), gpu(80 * GIB))
    assert len(seen) == len(set(seen))
    assert 4 not in seen


def test_the_line_through_two_runs_answers_without_another() -> None:
    found = by_the_line({8: 9 * GIB, 16: 17 * GIB}, gpu(44 * GIB))
    assert (found.batch_size, found.tried, found.border_batch_size) == (39, False, 43)
    assert found.device_bytes == 40 * GIB


def test_a_line_needs_two_points() -> None:
    with pytest.raises(ValueError, match="two batch sizes"):
        by_the_line({8: GIB}, gpu(GIB))
