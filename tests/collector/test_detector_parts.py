"""The detector's parts by themselves: floors, shape, derived signals, forecasts, severity, peers, the docs' tables."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.detector import DEFAULT, Params, judge_job
from tidegauge.core.detector.danger import assumed_limit, head_room, severity_of
from tidegauge.core.detector.floors import Floors
from tidegauge.core.detector.forecast import Pace, pace_of, until
from tidegauge.core.detector.shape import Ended, Growth, floors_above, ladder_of, look, net, usual_reversal
from tidegauge.core.detector.signals import Derivation
from tidegauge.core.detector.watch import CAUSES
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict

MIB = 1 << 20
GIB = 1 << 30
DAY_S = 86400.0
DOCS = Path(__file__).resolve().parents[2] / "docs" / "detector.md"


def floors_of(values: list[float], params: Params = DEFAULT) -> Floors:
    floors = Floors(params)
    for step, value in enumerate(values):
        floors.push(value, step, step * 0.5)
    return floors


def test_a_floor_is_the_lowest_value_of_its_window() -> None:
    floors = floors_of([99, 99, 99, 99, 5, 3, 4, 6, 9, 8, 7, 8])
    assert floors.scales[0].mins == [3, 7]
    assert floors.scales[0].steps == [7, 11]
    assert floors.first == (0, 0.0)


@given(st.lists(st.integers(0, 1000), max_size=700))
def test_every_scale_holds_the_minima_of_its_own_windows(values: list[int]) -> None:
    params = Params(floors_kept=16)
    floors = floors_of([float(value) for value in values], params)
    seen = values[params.skip_samples :]
    for scale in floors.scales:
        windows = [seen[at : at + scale.width] for at in range(0, len(seen) - scale.width + 1, scale.width)]
        assert len(scale.mins) == len(windows) - scale.forgotten <= params.floors_kept
        assert scale.mins == [min(window) for window in windows[scale.forgotten :]]


def test_looks_become_rare_as_the_run_gets_long() -> None:
    floors = Floors(DEFAULT)
    looks = [
        step
        for step in range(200_000)
        for scale in floors.push(1.0, step, 0.0) or []
        if scale is floors.scales[-1] or scale.forgotten == 0
    ]
    assert len([step for step in looks if step >= 100_000]) < 40


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=100))
def test_the_ladder_never_falls_and_never_exceeds_the_floors(mins: list[int]) -> None:
    ladder = ladder_of([float(value) for value in mins], len(mins) - 1)
    assert ladder == sorted(ladder)
    assert all(level <= value for level, value in zip(ladder, mins))
    assert ladder[-1] == mins[-1]


def test_a_straight_line_grows() -> None:
    found = look([float(at) for at in range(60)], 1, DEFAULT)
    assert isinstance(found, Growth)
    assert found.start <= 1
    assert found.reversal_ratio == math.inf


def test_flat_then_line_starts_at_the_bend() -> None:
    found = look([100.0] * 50 + [100.0 + at for at in range(50)], 1, DEFAULT)
    assert isinstance(found, Growth)
    assert 47 <= found.start <= 51
    assert found.quiet >= 40


def test_a_line_that_became_flat_has_ended() -> None:
    assert isinstance(look([float(min(at, 60)) for at in range(100)], 1, DEFAULT), Ended)


def test_growth_that_levels_off_has_ended() -> None:
    assert isinstance(look([round(1000 * (1 - math.exp(-at / 15))) for at in range(100)], 50, DEFAULT), Ended)


@pytest.mark.parametrize(("rises", "grows"), [(3, False), (4, True), (7, True)])
def test_a_staircase_needs_four_stairs(rises: int, grows: bool) -> None:
    mins = [float(at // 12) for at in range(12 * (rises + 1) - 2)]
    assert isinstance(look(mins, 0.5, DEFAULT), Growth) is grows


def test_a_staircase_that_misses_a_stair_has_ended() -> None:
    mins = [float(min(at // 10, 6)) for at in range(100)]
    assert isinstance(look(mins, 0.5, DEFAULT), Ended)


def test_detector_does_not_call_a_single_jump_growth() -> None:
    assert not isinstance(look([0.0] * 40 + [1000.0] * 40, 1, DEFAULT), Growth)


def test_saw_teeth_are_not_growth() -> None:
    assert not isinstance(look([float(at % 23) for at in range(120)], 1, DEFAULT), Growth)


def test_growth_below_the_least_bytes_is_not_looked_at() -> None:
    assert look([float(at) for at in range(60)], 100, DEFAULT) is None


def test_the_usual_reversal_of_independent_noise_shrinks_when_merged() -> None:
    mins = [float((at * 7919) % 101) for at in range(128)]
    ladder = ladder_of(mins, 127)
    falls = sorted(value - level for value, level in zip(mins, ladder))
    assert usual_reversal(mins, ladder, DEFAULT) < 0.75 * falls[int(0.9 * 127)]


def test_floors_above_counts_back_from_the_newest() -> None:
    assert floors_above([1, 5, 2, 6, 7], 5) == 2
    assert floors_above([5, 6], 5) == 2
    assert floors_above([5, 1], 5) == 0


def test_reserved_that_grows_with_the_peak_is_explained() -> None:
    derive = Derivation(DEFAULT)
    before = derive.unexplained_reserved(GIB, 2 * GIB, GIB)
    assert derive.unexplained_reserved(GIB, 4 * GIB, 2 * GIB) < before
    assert derive.unexplained_reserved(GIB, 8 * GIB, 2 * GIB) > before


def test_a_peak_that_was_reset_by_the_user_is_remembered() -> None:
    derive = Derivation(DEFAULT)
    derive.unexplained_reserved(GIB, 9 * GIB, 5 * GIB)
    derive.unexplained_reserved(GIB, 9 * GIB, GIB)
    assert derive.peak == 5 * GIB


def test_a_late_nvml_reading_never_shows_more_than_there_is() -> None:
    """NVML still counts segments that the allocator has just given back: nontorch seems to jump."""
    derive = Derivation(DEFAULT)
    truth = 500 * MIB
    assert derive.nontorch_proven(GIB, 4 * GIB, truth, 0.0) == truth
    stale = truth + 3 * GIB
    assert derive.nontorch_proven(GIB, GIB, stale, 0.05) == truth
    assert derive.nontorch_proven(GIB, GIB, truth, 0.2) == truth


def test_a_late_nvml_reading_never_shows_less_than_there_was() -> None:
    """NVML does not count yet what the allocator has just taken, or what it had back after a flush between samples."""
    derive = Derivation(DEFAULT)
    truth = 500 * MIB
    assert derive.nontorch_proven(MIB, 2 * GIB, truth, 0.0) == truth
    assert derive.nontorch_proven(MIB, 4 * GIB, truth - 2 * GIB, 0.05) == truth
    assert derive.nontorch_proven(MIB, GIB, truth - GIB + MIB, 0.1) == truth


def test_memory_outside_the_allocator_that_grows_is_seen_although_segments_come_and_go() -> None:
    derive = Derivation(DEFAULT)
    for step in range(200):
        reserved = (4 if step // 20 % 2 else 1) * GIB
        nvml = (4 if (step - 3) // 20 % 2 else 1) * GIB + (500 + step) * MIB
        seen = derive.nontorch_proven(GIB, reserved, nvml - reserved, 0.05 * step)
        if step > 20:
            assert 500 + step - 20 <= seen / MIB <= 500 + step


def test_memory_outside_the_allocator_that_was_given_back_is_no_longer_shown() -> None:
    derive = Derivation(DEFAULT)
    for step in range(40):
        nontorch = (900 if step < 20 else 500) * MIB
        seen = derive.nontorch_proven(GIB, 2 * GIB, nontorch, 0.05 * step)
        assert seen == nontorch


def test_the_net_catches_growth_of_any_shape_that_ate_most_of_the_head_room() -> None:
    stairs = [float(step // 10) for step in range(60)]
    line = [float(step) for step in range(8)]
    late = [0.1] * 60 + [float(step) for step in range(20)]
    for mins in (stairs, line, late):
        found = net(mins, 0.3 * mins[-1], DEFAULT)
        assert found is not None
        assert found.gained > 0.6 * mins[-1]


@pytest.mark.parametrize(
    ("mins", "head"),
    [
        pytest.param([float(step) for step in range(60)], 60.0, id="less than most is eaten"),
        pytest.param([0.0] * 30 + [9.0] * 30, 1.0, id="one rise"),
        pytest.param([0.0] * 20 + [1.0] * 10 + [2.0] * 10 + [9.0] * 20, 1.0, id="one rise makes up most"),
        pytest.param([float(min(step, 20)) for step in range(60)], 1.0, id="it has stopped"),
        pytest.param([float(step % 12) for step in range(60)], 1.0, id="a saw-tooth"),
        pytest.param([9.0] * 30 + [float(step) for step in range(10)], 1.0, id="it was as high before"),
        pytest.param([1.0, 2.0, 3.0, 4.0], 0.1, id="too few"),
    ],
)
def test_the_net_lets_through_what_is_no_danger(mins: list[float], head: float) -> None:
    assert net(mins, head, DEFAULT) is None


def test_rates_of_a_line_are_exact_and_the_band_holds_them() -> None:
    pace = pace_of([3.0 * at for at in range(24)]).per(range(0, 240, 10))
    assert pace is not None
    assert pace.rate.likely == pytest.approx(0.3)
    assert pace.rate.low < 0.3 < pace.rate.high
    assert pace.acceleration == 0


def test_a_rate_per_unit_that_stands_still_is_not_known() -> None:
    assert pace_of([1.0, 2.0, 3.0]).per([7.0, 7.0, 7.0]) is None


def test_growth_that_speeds_up_meets_the_limit_sooner_than_its_mean_rate_says() -> None:
    levels = [float(at * at) for at in range(24)]
    pace = pace_of(levels)
    assert pace.acceleration == pytest.approx(2.0, rel=0.4)
    head = 90.0 * 90 - levels[-1]
    soonest = until(Band(head, head, head), pace).low
    assert 0.4 * (90 - 23) <= soonest <= 90 - 23


def test_growth_that_may_have_stopped_has_no_latest_end() -> None:
    pace = Pace(Band(0.0, 1.0, 2.0), 1.0, 0.0, 10)
    assert until(Band(10, 10, 10), pace) == Band(5.0, 10.0, math.inf)


def test_cached_blocks_are_head_room_for_tensors_alone() -> None:
    for signal, expected in ((Signal.ALLOCATED, 6), (Signal.RESERVED, 2), (Signal.NONTORCH, 2)):
        room = head_room(signal, 10 * GIB, peak=3 * GIB, next_peak=3 * GIB, pieces=None, reserved=7 * GIB, nontorch=GIB)
        assert room.likely == expected * GIB
        assert room.low <= room.likely


def test_pieces_between_kept_tensors_are_no_head_room() -> None:
    room = head_room(
        Signal.ALLOCATED, 10 * GIB, peak=3 * GIB, next_peak=4 * GIB, pieces=GIB, reserved=7 * GIB, nontorch=GIB
    )
    assert (room.likely, room.high) == (5 * GIB, 6 * GIB)
    assert 0.98 * 4 * GIB < room.low < 4 * GIB


def test_an_unknown_limit_is_taken_as_a_typical_card_or_a_little_more_than_is_used() -> None:
    assert assumed_limit(DEFAULT, reserved=GIB, nontorch=GIB) == 80 * GIB
    assert assumed_limit(DEFAULT, reserved=100 * GIB, nontorch=0) > 100 * GIB


@pytest.mark.parametrize(
    ("seconds_left", "seconds_seen", "gained", "expected"),
    [
        (30 * DAY_S, DAY_S, 1, Severity.NOTE),
        (30 * DAY_S, DAY_S, 301, Severity.NOTE),
        (3 * DAY_S, DAY_S, 1, Severity.WARNING),
        (600.0, 120.0, 90, Severity.WARNING),
        (600.0, 120.0, 100, Severity.CRITICAL),
        (5.0, 5.0, 100, Severity.WARNING),
        (5.0, 5.0, 300, Severity.CRITICAL),
        (None, DAY_S, 301, Severity.NOTE),
    ],
)
def test_severity_follows_time_left_and_share_eaten(
    seconds_left: float | None, seconds_seen: float, gained: int, expected: Severity
) -> None:
    verdict = severity_of(
        gained=gained, head=100, seconds_seen=seconds_seen, seconds_left=seconds_left,
        bytes_per_step=1e9, limit_known=True, params=DEFAULT,
    )  # fmt: skip
    assert verdict is expected


def test_losses_kept_are_a_note_however_fast_the_steps() -> None:
    severity = severity_of(
        gained=512_000, head=80 * GIB, seconds_seen=1.0, seconds_left=DAY_S,
        bytes_per_step=512, limit_known=False, params=DEFAULT,
    )  # fmt: skip
    assert severity is Severity.NOTE


def leaking(
    rate: float,
    *,
    state: LeakState = LeakState.LEAK,
    severity: Severity = Severity.WARNING,
    signal: Signal = Signal.ALLOCATED,
) -> Verdict:
    return Verdict(state, severity, signal, "tensors_kept", bytes_per_step=Band(0.8 * rate, rate, 1.2 * rate))


def test_a_quiet_job_is_ok() -> None:
    verdict = judge_job({0: OK, 1: OK})
    assert verdict.state is LeakState.OK
    assert verdict.suspects == ()


def test_the_one_rank_that_leaks_is_odd() -> None:
    verdict = judge_job({0: OK, 1: leaking(1000), 2: OK, 3: OK})
    assert [(suspect.rank, suspect.odd) for suspect in verdict.suspects] == [(1, True)]
    assert not verdict.common


def test_a_rise_of_all_ranks_is_common() -> None:
    verdict = judge_job({rank: leaking(1000 + rank) for rank in range(4)})
    assert verdict.common
    assert not any(suspect.odd for suspect in verdict.suspects)


def test_a_rank_that_leaks_much_faster_than_the_rest_is_named_first() -> None:
    verdict = judge_job({0: leaking(100), 1: leaking(110), 2: leaking(5000), 3: leaking(90)})
    assert verdict.suspects[0].rank == 2
    assert verdict.suspects[0].odd
    assert verdict.common


def test_a_rank_that_grows_on_another_signal_is_odd() -> None:
    verdict = judge_job({0: leaking(100), 1: leaking(100), 2: leaking(100, signal=Signal.NONTORCH)})
    assert [suspect.rank for suspect in verdict.suspects if suspect.odd] == [2]


def test_judge_job_suspects_a_single_rank_of_many() -> None:
    """The more ranks are looked at, the more likely one of them wanders."""
    suspected = leaking(1000, state=LeakState.SUSPECTED)
    assert judge_job({1: suspected, **dict.fromkeys(range(2, 4096), OK)}).state is LeakState.SUSPECTED


@pytest.mark.parametrize(
    ("ranks", "eaten", "grown", "state"),
    [
        (4096, 0.2, GIB, LeakState.SUSPECTED),
        (4096, 0.3, GIB, LeakState.LEAK),
        (8, 0.1, GIB, LeakState.LEAK),
        (8, 0.04, GIB, LeakState.SUSPECTED),
        (8, 0.1, 44 * MIB, LeakState.SUSPECTED),
        (1, 0.01, MIB, LeakState.LEAK),
    ],
)
def test_growth_of_one_rank_counts_against_the_number_of_ranks_looked_at(
    ranks: int, eaten: float, grown: int, state: LeakState
) -> None:
    one = leaking(1000)._replace(headroom_eaten=eaten, grown_bytes=grown)
    assert judge_job({0: one, **dict.fromkeys(range(1, ranks), OK)}).state is state


def test_a_dangerous_rank_makes_the_job_dangerous_whatever_the_number_of_ranks() -> None:
    one = leaking(1000)._replace(headroom_eaten=0.2, grown_bytes=MIB, severity=Severity.CRITICAL)
    assert judge_job({0: one, **dict.fromkeys(range(1, 4096), OK)}).state is LeakState.LEAK


def test_the_surest_rank_comes_first() -> None:
    verdict = judge_job({0: leaking(9000, state=LeakState.SUSPECTED), 1: leaking(10)})
    assert [suspect.rank for suspect in verdict.suspects] == [1, 0]
    assert verdict.state is LeakState.LEAK


def test_the_page_lists_every_parameter_with_its_value_and_every_cause() -> None:
    page = DOCS.read_text()
    for field in dataclasses.fields(Params):
        assert f"| `{field.name}` | {getattr(DEFAULT, field.name):g} |" in page
    for cause, meaning in CAUSES.items():
        assert f"| `{cause}` | {meaning} |" in page
