from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_views import NOW_S
from tidegauge_exporter.reports.chart import MAX_TICKS, byte_ticks, step_ticks, time_ticks

DAY_S = 86_400.0


@given(st.floats(0, 2**50), st.floats(0, 2**50))
def test_byte_ticks_enclose_the_range_with_a_readable_number_of_lines(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    ticks = byte_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 9


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 200.0, [0, 50, 100, 150, 200]), (7.0, 7.0, [7]), (0.0, 3.0, [0, 1, 2, 3]), (995.0, 1005.0, None)],
)
def test_step_ticks_are_round_and_inside(low: float, high: float, ticks: list[float] | None) -> None:
    made = [tick.x for tick in step_ticks(low, high)]
    assert made == ticks if ticks is not None else all(low <= tick <= high and tick % 2 == 0 for tick in made)


def test_steps_are_written_in_groups_of_three_digits() -> None:
    assert [tick.text for tick in step_ticks(0.0, 4000.0)][:3] == ["0", "500", "1,000"]


@given(st.integers(0, 4 * 10**9), st.integers(1, 4 * 10**9))
def test_time_ticks_are_inside_and_few_enough_to_be_read(low: int, span: int) -> None:
    ticks = time_ticks(low, low + span)
    assert len(ticks) <= MAX_TICKS
    assert all(low <= tick.x <= low + span for tick in ticks)
    assert len({after.x - before.x for before, after in zip(ticks, ticks[1:], strict=False)}) <= 1
    assert len(ticks) >= 2 or span < 3 or span > 30 * DAY_S


@pytest.mark.parametrize(
    ("span_s", "texts"),
    [
        (30.0, ["08:00:05", "08:00:10"]),
        (1800.0, ["08:05", "08:10"]),
        (4 * 3600.0, ["08:30", "09:00"]),
        (DAY_S, ["09:00", "12:00"]),
        (6 * DAY_S, ["01-16", "01-17"]),
        (60 * DAY_S, ["01-28", "02-11"]),
    ],
)
def test_times_are_round_and_written_as_finely_as_needed(span_s: float, texts: list[str]) -> None:
    assert [tick.text for tick in time_ticks(NOW_S, NOW_S + span_s)][:2] == texts


def test_a_day_begins_with_its_date() -> None:
    assert "01-16" in [tick.text for tick in time_ticks(NOW_S, NOW_S + DAY_S)]
