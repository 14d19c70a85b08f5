"""When growth is dangerous: it eats new head-room, has eaten much of it, and is expected to reach the limit."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from random import Random

import pytest

from leakseries.machine import MIB, Row, feed
from leakseries.recorded import wild_recordings
from tidegauge.core.detector import RankDetector
from tidegauge.core.detector.danger import Danger, still_to_come
from tidegauge.core.detector.params import DEFAULT
from tidegauge.core.verdicts import LeakState, Severity, Verdict

GIB = 1 << 30
BASE, LIMIT = 20 * GIB, 80 * GIB
"""Bytes kept at the start, and the card."""


def rows_of(kept: Sequence[float], peaks: Sequence[float] | None = None, *, step_s: float = 1.0) -> list[Row]:
    """A loop that keeps so many bytes at the end of each step and needs 2 GiB more within it, if not said otherwise."""
    needs = [value + 2 * GIB for value in kept] if peaks is None else peaks
    return [
        Row(step, step * step_s, int(now), int(max(needs[: step + 1])), int(need), int(max(needs[: step + 1])) + GIB)
        for step, (now, need) in enumerate(zip(kept, needs))
    ]


def worst(rows: list[Row], limit: int = LIMIT) -> tuple[Severity | None, float]:
    """The gravest severity of an established growth, and the share of the head-room eaten when it was first said."""
    detector, found, eaten = RankDetector(), None, 0.0
    for row in rows:
        verdict = feed(detector, row, limit_bytes=limit)
        severity = verdict.severity if verdict.state is LeakState.LEAK else None
        if severity is not None and (found is None or severity.level > found.level):
            found, eaten = severity, detector.verdict.headroom_eaten or 0.0
    return found, eaten


def until_full(per_step: float, share: float = 1.0) -> list[float]:
    """A straight leak that takes so much of the head-room."""
    return [BASE + step * per_step for step in range(int(share * (LIMIT - BASE - 3 * GIB) / per_step))]


def test_a_straight_leak_is_dangerous_about_half_way_to_the_limit() -> None:
    severity, eaten = worst(rows_of(until_full(64 * MIB)))
    assert severity is Severity.CRITICAL
    assert 0.5 <= eaten <= 0.65


@pytest.mark.parametrize("share", [0.3, 0.45])
def test_growth_that_ends_before_half_of_the_head_room_is_never_dangerous(share: float) -> None:
    rising = until_full(64 * MIB, share)
    assert worst(rows_of(rising + [rising[-1]] * 400))[0] is Severity.WARNING


@pytest.mark.parametrize(
    "grown",
    [
        lambda step: 45 * (1 - exp(-step / 300)),
        lambda step: 40 * (1 - exp(-step / 60)),
        lambda step: 6.5 * log(1 + step / 3),
        lambda step: 46 * step / (step + 250),
    ],
    ids=["saturation", "quick saturation", "logarithm", "hyperbola"],
)
def test_growth_that_levels_off_below_the_limit_is_never_dangerous(grown) -> None:  # type: ignore[no-untyped-def]
    assert worst(rows_of([BASE + GIB * grown(step) for step in range(2500)]))[0] is not Severity.CRITICAL


def test_growth_below_a_peak_that_stays_eats_nothing() -> None:
    kept = [BASE + step * 30 * MIB for step in range(1200)]
    assert worst(rows_of(kept, [60.0 * GIB] * len(kept)))[0] is not Severity.CRITICAL


def test_a_leak_that_has_outgrown_an_early_peak_is_dangerous() -> None:
    kept = until_full(48 * MIB)
    peaks = [70.0 * GIB] * 5 + [value + 2 * GIB for value in kept[5:]]
    assert worst(rows_of(kept, peaks))[0] is Severity.CRITICAL


def test_a_leak_within_steps_that_keep_nothing_is_dangerous() -> None:
    peaks = [30 * GIB + step * 40 * MIB for step in range(1250)]
    severity, eaten = worst(rows_of([float(BASE)] * len(peaks), peaks))
    assert severity is Severity.CRITICAL
    assert eaten >= 0.8


@pytest.mark.parametrize("seed", range(20))
def test_largest_batches_of_random_lengths_are_never_dangerous(seed: int) -> None:
    draw = Random(seed)
    peaks = [30 * GIB + min(draw.lognormvariate(1.5, 0.8), 45.0) * GIB for _ in range(2000)]
    assert worst(rows_of([float(BASE)] * len(peaks), peaks))[0] is not Severity.CRITICAL


@pytest.mark.parametrize("stairs", [3, 4, 6])
def test_even_stairs_are_dangerous_before_the_last_one(stairs: int) -> None:
    size, every = (LIMIT - BASE - 3 * GIB) / (stairs + 0.5), 240
    kept = [BASE + step // every * size for step in range((stairs + 1) * every)]
    assert worst(rows_of(kept))[0] is Severity.CRITICAL


def test_a_list_that_doubles_is_dangerous_when_the_next_doubling_does_not_fit() -> None:
    kept = [BASE + 2 * GIB * 2.0 ** int(log(1 + step / 40, 2)) for step in range(1200)]
    assert worst(rows_of(kept))[0] is Severity.CRITICAL


def test_danger_is_not_raised_long_after_the_last_rise() -> None:
    rising = until_full(64 * MIB, 0.62)
    detector, raised = RankDetector(), []
    for row in rows_of(rising + [rising[-1]] * 3000):
        verdict = feed(detector, row, limit_bytes=LIMIT)
        raised.append(verdict.severity is Severity.CRITICAL)
    assert any(raised[: len(rising) + 100])
    assert not any(raised[2 * len(rising) :])


def test_a_fast_late_leak_is_dangerous_although_it_lasts_for_forty_steps() -> None:
    flat = [float(BASE)] * 2000
    kept = flat + [BASE + step * 57 * GIB / 40 for step in range(40)]
    assert worst(rows_of(kept, step_s=10.0))[0] is Severity.CRITICAL


def test_the_onset_stays_when_the_finest_floors_have_forgotten_it() -> None:
    steady = {"leak_contexts", "leak_despite_empty_cache", "leak_beside_a_pause", "leak_under_wandering_lengths"}
    runs = [run for run in wild_recordings("h100_slow") if run.series.family in steady]
    assert len(runs) == len(steady)
    for run in runs:
        detector, onsets = RankDetector(), set()
        for row in run.series.rows:
            verdict = feed(detector, row, limit_bytes=run.limit_bytes(row))
            if verdict.state is LeakState.LEAK:
                onsets.add(verdict.onset_step)
        assert onsets == {0}, run.series.family


def test_looks_for_what_is_eaten_are_few_however_memory_swings() -> None:
    looks = 0

    class Counting(RankDetector):
        def _conclude(self) -> Verdict:
            nonlocal looks
            looks += 1
            return super()._conclude()

    detector, draw = Counting(), Random(1)
    for row in rows_of([BASE + draw.uniform(0, 40) * GIB for _ in range(4000)]):
        feed(detector, row, limit_bytes=LIMIT)
    assert looks <= 100


def test_danger_is_withdrawn_within_some_samples_of_a_fall_and_not_at_the_next_look() -> None:
    detector, grows = RankDetector(), until_full(2 * MIB, 0.7)
    for step, kept in enumerate([*grows, *[BASE] * 40]):
        top = max(kept, grows[min(step, len(grows) - 1)]) + 2 * GIB
        row = Row(step, float(step), int(kept), int(top), int(kept) + 2 * GIB, int(top) + GIB)
        verdict = feed(detector, row, limit_bytes=LIMIT)
        if step == len(grows) - 1:
            assert verdict.severity is Severity.CRITICAL
    assert verdict.severity is not Severity.CRITICAL


def test_a_host_leak_that_creeps_is_not_accused_of_what_a_neighbour_takes() -> None:
    detector = RankDetector()
    for step in range(6000):
        taken = min(max(step - 2000, 0) * GIB // 10, 199 * GIB)
        detector.update(
            step=step, time_s=float(step), allocated_bytes=GIB, reserved_bytes=GIB,
            host_bytes=GIB + step * MIB // 10, host_free_bytes=200 * GIB - taken - step * MIB // 10,
        )  # fmt: skip
        assert detector.verdict.severity is not Severity.CRITICAL


def test_growth_outside_the_allocator_that_is_little_without_the_idle_cache_is_no_danger() -> None:
    detector = RankDetector()
    for step in range(1500):
        outside = GIB + min(step, 600) * MIB
        detector.update(
            step=step, time_s=float(step), allocated_bytes=10 * GIB, reserved_bytes=LIMIT - 2 * GIB,
            nontorch_bytes=outside, allocated_peak_bytes=12 * GIB, inactive_split_bytes=GIB, limit_bytes=LIMIT,
        )  # fmt: skip
        assert detector.verdict.severity is not Severity.CRITICAL


def test_danger_is_raised_at_the_second_look_that_expects_it_and_withdrawn_at_the_first_that_does_not() -> None:
    danger = Danger()
    assert not danger.judged(True, sure=False, look=1)
    assert not danger.judged(True, sure=False, look=1)
    assert danger.judged(True, sure=False, look=2)
    assert not danger.judged(False, sure=True, look=3)
    assert not danger.judged(True, sure=False, look=4)
    assert danger.judged(True, sure=True, look=5)


def test_a_line_goes_on_without_end_and_a_flat_stretch_ends_it() -> None:
    line = [float(step) for step in range(64)]
    assert still_to_come(line, DEFAULT, raised=False) == inf
    assert still_to_come(line + [63.0] * 20, DEFAULT, raised=False) == 0
    assert still_to_come([5.0] * 64, DEFAULT, raised=False) == 0


@pytest.mark.parametrize("constant", [40, 80, 160])
def test_the_plateau_of_an_exponential_approach_is_foretold(constant: int) -> None:
    values = [1000 * (1 - exp(-at / constant)) for at in range(100)]
    left = 1000 - values[-1]
    assert 0.9 * left <= still_to_come(values, DEFAULT, raised=False) <= 2 * left + 20


@pytest.mark.parametrize("pause", [4, 9])
def test_an_alarm_wants_a_recent_rise_and_keeps_for_a_longer_pause(pause: int) -> None:
    stairs = [float(at // 8) for at in range(64)] + [7.0] * pause
    assert (still_to_come(stairs, DEFAULT, raised=True) > 0) == (pause == 4)
    assert still_to_come(stairs, DEFAULT, raised=False) == 0


def pools(reserved: Sequence[float]) -> Severity | None:
    """The gravest severity where tensors and pieces of segments stand still and this much is reserved."""
    detector, found = RankDetector(), None
    for step, now in enumerate(reserved):
        verdict = detector.update(
            step=step, time_s=float(step), allocated_bytes=4 * GIB, reserved_bytes=int(now), nontorch_bytes=GIB,
            allocated_peak_bytes=6 * GIB, inactive_split_bytes=GIB // 8, limit_bytes=LIMIT,
        )  # fmt: skip
        if verdict.state is LeakState.LEAK and verdict.severity is not None:
            found = verdict.severity if found is None or verdict.severity.level > found.level else found
    return found


def test_reserved_memory_that_grows_evenly_above_level_tensors_is_dangerous_although_no_pieces_show() -> None:
    assert pools([8 * GIB + step // 4 * 80 * MIB for step in range(3500)]) is Severity.CRITICAL


@pytest.mark.parametrize("seed", range(4))
def test_a_cache_that_grows_by_records_is_never_dangerous(seed: int) -> None:
    draw, most, reserved = Random(seed), 0.0, []
    for _ in range(4000):
        most = max(most, draw.lognormvariate(0, 0.6))
        reserved.append(min(8 * GIB + most * 10 * GIB, LIMIT - GIB))
    assert pools(reserved) is not Severity.CRITICAL


def test_pieces_are_not_added_to_a_peak_whose_memory_was_given_back_long_before() -> None:
    """A copy of the weights at the start, and then a cache of 8 MiB items in segments of 20: it fits beside 1 GiB."""
    detector = RankDetector()
    for step in range(1, 830):
        kept = min(step, 700) * 8 * MIB
        reserved = -(-min(step, 700) // 2) * 20 * MIB
        detector.update(
            step=step, time_s=step * 0.12, allocated_bytes=kept, reserved_bytes=reserved, nontorch_bytes=400 * MIB,
            allocated_peak_bytes=6720 * MIB, inactive_split_bytes=reserved - kept, limit_bytes=8 * GIB,
        )  # fmt: skip
        assert detector.verdict.severity is not Severity.CRITICAL


def test_a_leak_below_a_cap_that_was_set_meanwhile_is_dangerous() -> None:
    detector, seen = RankDetector(), set()
    for step in range(6600):
        kept = BASE + step * MIB // 2
        limit = LIMIT if step < 4000 else BASE + 13 * GIB // 4
        verdict = feed(detector, Row(step, float(step), kept, kept, kept, kept), limit_bytes=limit)
        seen.add(verdict.severity)
    assert Severity.CRITICAL in seen
