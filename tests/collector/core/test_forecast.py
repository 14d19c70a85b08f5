"""Times to out-of-memory: right now, after a pause, at another speed, and against real errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from leakseries.machine import MIB, Row, feed
from leakseries.recorded import Capped, wild_recordings
from tidegauge.core.detector import RankDetector
from tidegauge.core.verdicts import Band, LeakState, Signal

GIB = 1 << 30
HOURS_6 = 6 * 3600.0
LIMIT = 40 * GIB
PER_STEP = 1.2 * MIB
STEPS_TO_LIMIT = int((LIMIT - GIB - 8 * GIB) / PER_STEP)
"""Of a leak on top of 8 GiB, beside 1 GiB outside the allocator."""


def leak(step_s: Callable[[int], float], steps: int, *, peak: float = 1.0, pieces: float = 0.0) -> Iterator[Row]:
    """Rows of a leak. For each byte that is kept the peak rises by ``peak``, and what lies between by ``pieces``."""
    time_s = 0.0
    for step in range(steps):
        kept = int(step * PER_STEP)
        top = 8 * GIB + int(kept * peak)
        reserved = top + int(kept * pieces)
        yield Row(step, time_s, 8 * GIB + kept, reserved, top, reserved + GIB, int(kept * pieces))
        time_s += step_s(step)


def one_second(_step: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    "step_s",
    [
        pytest.param(lambda step: HOURS_6 if step == 8000 else 1.0, id="a suspend of six hours"),
        pytest.param(lambda step: 5.0 if step < 8000 else 0.5, id="data that was cold at first"),
        pytest.param(lambda step: 0.5 if step < 8000 else 5.0, id="a network that became slow"),
        pytest.param(lambda step: 31.0 if step % 100 == 99 else 1.0, id="evaluations"),
        pytest.param(lambda step: 1.0 if step % 2 else 0.2, id="long and short steps"),
    ],
)
def test_the_band_holds_at_once_after_a_pause_or_at_another_speed(step_s: Callable[[int], float]) -> None:
    end_s = sum(step_s(step) for step in range(STEPS_TO_LIMIT))
    detector = RankDetector()
    for row in leak(step_s, 16_000):
        feed(detector, row, limit_bytes=LIMIT)
        if row.step > 8003 and row.step % 7 == 0:
            band = detector.verdict.seconds_to_oom
            assert band is not None
            assert band.low <= end_s - row.t <= band.high, row.step


def test_forecast_counts_down_between_evaluations() -> None:
    detector = RankDetector()
    likely = []
    for row in leak(one_second, 4000):
        looked = feed(detector, row, limit_bytes=LIMIT)
        left = detector.verdict.steps_to_oom
        if row.step >= 3000:
            assert left is not None
            likely.append(left.likely)
            assert left.likely == pytest.approx(STEPS_TO_LIMIT - row.step, rel=0.02)
    assert looked.steps_to_oom != detector.verdict.steps_to_oom, "no look at every step"
    assert all(now < before for before, now in zip(likely, likely[1:]))


def test_forecast_includes_the_transient_copy_in_the_limit() -> None:
    """``torch.cat`` into itself: twice what is kept is there at once."""
    met = int((LIMIT - 9 * GIB) / (2 * PER_STEP))
    assert_found(leak(one_second, 4000, peak=2.0), met)


def test_pieces_that_a_flush_does_not_give_back_count() -> None:
    met = int((LIMIT - 9 * GIB) / (1.5 * PER_STEP))
    assert_found(leak(one_second, 4000, pieces=0.5), met)


def assert_found(rows: Iterator[Row], met: int) -> None:
    """The limit is met at step ``met``, and that is said all the time."""
    detector = RankDetector()
    for row in rows:
        feed(detector, row, limit_bytes=LIMIT)
        if row.step > 500 and row.step % 10 == 0:
            left = detector.verdict.steps_to_oom
            assert left is not None
            assert left.low <= met - row.step <= left.high
            assert left.likely == pytest.approx(met - row.step, rel=0.1)


def test_memory_that_a_step_needed_once_is_reckoned_with_again() -> None:
    """An evaluation before the growth needed 20 GiB more: the next one will need it on top of what was kept since."""
    detector = RankDetector()
    for row in leak(one_second, 4000):
        spike = row._replace(peak_allocated=max(row.peak_allocated, 28 * GIB)) if row.step > 50 else row
        feed(detector, spike, limit_bytes=LIMIT)
    left = detector.verdict.steps_to_oom
    assert left is not None
    assert left.low <= (LIMIT - GIB - 28 * GIB) / PER_STEP - 4000


@pytest.mark.parametrize("seed", [3, 4])
def test_real_errors_on_an_h200_come_within_the_band(seed: int) -> None:
    """Every second after the alarm counts, of loops that the forecast was not made with."""
    before = inside = seconds = 0.0
    for run in wild_recordings("h200"):
        if run.oom_s is None or run.series.seed != seed:
            continue
        for left_s, shown_s, band in shown(run):
            seconds += shown_s
            before += shown_s * (left_s < band.low)
            inside += shown_s * (band.low <= left_s <= band.high)
    assert seconds > 100
    assert before <= 0.05 * seconds
    assert inside >= 0.85 * seconds


def shown(run: Capped) -> Iterator[tuple[float, float, Band]]:
    """What was shown after the alarm: seconds that were really left, for how long it was shown, and the band."""
    assert run.oom_s is not None
    detector = RankDetector()
    ends = [row.t for row in run.series.rows[1:]] + [run.oom_s]
    for row, end_s in zip(run.series.rows, ends):
        outside = max(row.nvml_process - row.reserved, 0)
        feed(detector, row, limit_bytes=run.cap_bytes + outside)
        verdict = detector.verdict
        if verdict.state is LeakState.LEAK and verdict.seconds_to_oom is not None:
            yield run.oom_s - row.t, end_s - row.t, verdict.seconds_to_oom


def test_a_cache_that_a_flush_gives_back_is_not_likely_to_meet_a_limit() -> None:
    """Reserved grows, faster by and by, and all of it is free segments."""
    detector = RankDetector()
    for step in range(2000):
        reserved = 4 * GIB + step * step // 200 * MIB
        feed(detector, Row(step, float(step), GIB, reserved, GIB, reserved + GIB, 0), limit_bytes=LIMIT)
    verdict = detector.verdict
    assert (verdict.state, verdict.signal) == (LeakState.LEAK, Signal.RESERVED)
    assert verdict.headroom_eaten == 0
    assert verdict.seconds_to_oom is not None
    assert (verdict.seconds_to_oom.likely, verdict.seconds_to_oom.high) == (math.inf, math.inf)


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(lambda step: 20 * min(step, 1600) // 400, id="four steps to the end"),
        pytest.param(lambda step: 20 * 2 ** (step // 300) / 32, id="a list that doubles"),
        pytest.param(lambda step: step // 100 * 1.0 + (step % 100 < 10) * 0.9, id="bursts"),
    ],
)
def test_few_rises_that_eat_most_of_the_head_room_are_a_leak(kept: Callable[[int], float]) -> None:
    """Of 28 GiB that are free."""
    detector = RankDetector()
    for step in range(2000):
        allocated = 4 * GIB + int(kept(step) * GIB)
        if allocated > 32 * GIB:
            break
        row = Row(step, float(step), allocated, allocated + GIB, allocated, allocated + 2 * GIB, 0)
        if feed(detector, row, limit_bytes=34 * GIB).state is LeakState.LEAK:
            return
    raise AssertionError("it ran out of memory without an alarm")
