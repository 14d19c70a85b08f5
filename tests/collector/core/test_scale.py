"""The range of a sparkline, and one time axis for many histories."""

from __future__ import annotations

from tidegauge.core.memory_history import MemoryHistory, MemoryPoint

GIB = 1024**3


def history(*readings: tuple[float, int]) -> MemoryHistory:
    made = MemoryHistory()
    for at_s, used in readings:
        made.add(MemoryPoint(at_s, int(at_s), used, used, None))
    return made


def test_histories_are_put_on_one_time_axis_with_gaps_where_a_rank_was_not_seen() -> None:
    late = history((60.0, 3), (70.0, 5), (80.0, 4))
    assert late.used_between(0.0, 100.0, 10) == [None] * 6 + [3, 5, 4, None]


def test_a_stretch_without_a_reading_is_as_the_one_before() -> None:
    assert history((0.0, 1), (50.0, 9)).used_between(0.0, 60.0, 6) == [1, 1, 1, 1, 1, 9]


def test_of_readings_in_one_stretch_the_highest_counts() -> None:
    assert history((0.0, 1), (1.0, 7), (2.0, 2), (9.0, 3)).used_between(0.0, 10.0, 2) == [7, 3]


def test_a_history_from_before_the_axis_begins_with_it() -> None:
    assert history((0.0, 4), (90.0, 6)).used_between(80.0, 100.0, 2) == [4, 6]


def test_no_reading_is_no_row_of_zeros() -> None:
    assert MemoryHistory().used_between(0.0, 10.0, 3) == [None, None, None]


def test_coarse_buckets_fill_the_columns_that_they_span() -> None:
    made = history(*((float(second), second) for second in range(1000)))
    columns = made.used_between(0.0, 1000.0, 200)
    assert None not in columns
    assert columns == sorted(columns, key=lambda one: one or 0)
