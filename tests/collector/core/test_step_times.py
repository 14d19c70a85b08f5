"""Seconds per step: what steps take now, with the pauses that come again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tidegauge.core.detector.step_times import StepTimes
from tidegauge.core.verdicts import Band

HOURS_6 = 6 * 3600.0


def after(durations: Iterable[float], *, per_sample: int = 1) -> Band:
    """What is said after steps of these durations."""
    times = StepTimes()
    step, time_s = 0, 1000.0
    times.tick(step, time_s)
    for duration_s in durations:
        step += per_sample
        time_s += duration_s * per_sample
        times.tick(step, time_s)
    found = times.per_step_s()
    assert found is not None
    return found


def test_steps_that_are_alike_take_what_they_take() -> None:
    assert after([0.5] * 1000) == pytest.approx(Band(0.5, 0.5, 0.5))


def test_a_sample_of_every_tenth_step_says_the_same() -> None:
    assert after([0.5] * 1000, per_sample=10) == pytest.approx(Band(0.5, 0.5, 0.5))


@pytest.mark.parametrize("steps_after", [1, 10, 100, 1000, 10_000])
def test_a_suspend_of_six_hours_is_not_expected_again(steps_after: int) -> None:
    found = after([*[1.0] * 8000, HOURS_6, *[1.0] * steps_after])
    assert found.low == pytest.approx(1.0)
    assert found.likely == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("before_s", "now_s"), [(5.0, 0.5), (0.5, 5.0)])
@pytest.mark.parametrize("steps_since", [3, 10, 20, 100, 5000])
def test_another_speed_is_in_the_band_after_three_steps(before_s: float, now_s: float, steps_since: int) -> None:
    found = after([*[before_s] * 2000, *[now_s] * steps_since])
    assert found.low <= now_s * 1.001
    assert found.high >= now_s * 0.999
    if steps_since > 20:
        assert found.likely == pytest.approx(now_s, rel=0.01)


@pytest.mark.parametrize("every", [20, 100, 500])
def test_evaluations_that_come_again_are_part_of_what_a_step_takes(every: int) -> None:
    """Of 60 seconds after every so many steps of one second."""
    found = after([61.0 if step % every == 0 else 1.0 for step in range(12_000)])
    assert found.low == pytest.approx(1.0)
    assert found.likely == pytest.approx(1.0 + 60.0 / every, rel=0.15)
    assert found.likely <= found.high


def test_short_and_long_steps_in_turn_are_a_mean() -> None:
    for steps in (1000, 1001):
        assert after([0.1 if step % 2 else 1.0 for step in range(steps)]).likely == pytest.approx(0.55, rel=0.1)


def test_without_a_clock_nothing_is_said() -> None:
    times = StepTimes()
    for step in range(100):
        times.tick(step, 0.0)
    assert times.per_step_s() is None


def test_a_step_that_comes_again_or_goes_back_changes_nothing() -> None:
    times = StepTimes()
    for step in range(100):
        times.tick(step, float(step))
        times.tick(step, step + 0.5)
        times.tick(step - 1, step + 0.6)
    assert times.per_step_s() == pytest.approx(Band(1.0, 1.0, 1.0))
