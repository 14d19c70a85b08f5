from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.units import (
    IEC_UNITS,
    format_band,
    format_bytes,
    format_bytes_apart,
    format_count,
    format_duration,
    format_last,
)
from tidegauge.core.verdicts import Band

MIB = 1024**2


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (12 * MIB, "12.0 MiB"),
        (-1.5 * 1024**3, "-1.5 GiB"),
        (-0.2, "0 B"),
        (1024**2 - 1, "1.0 MiB"),
        (1023.6, "1.0 KiB"),
        (139.8 * 1024**3, "139.8 GiB"),
        (2**80, "over 1024 EiB"),
        (-1.15e251, "under -1024 EiB"),
    ],
)
def test_bytes_are_written_with_an_iec_unit(count: float, text: str) -> None:
    assert format_bytes(count) == text


@given(st.floats(min_value=-1e20, max_value=1e20))
def test_bytes_never_show_a_number_that_belongs_to_the_next_unit(count: float) -> None:
    number, unit = format_bytes(count).split(" ")
    assert abs(float(number)) < 1024
    scale = 1024 ** IEC_UNITS.index(unit)
    assert abs(float(number) * scale - count) <= 0.051 * max(scale, 10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.34, "0.3 s"),
        (3, "3 s"),
        (42.4, "42 s"),
        (89.6, "1.5 min"),
        (14 * 60, "14 min"),
        (5.3 * 3600, "5.3 h"),
        (30 * 3600, "30 h"),
        (2 * 86400, "2 days"),
        (12.4 * 86400, "12 days"),
        (400 * 86400, "400 days"),
        (3 * 365.25 * 86400, "3 years"),
        (1e12, "over 100 years"),
        (math.inf, "never"),
    ],
)
def test_a_duration_is_said_in_the_unit_a_person_would_use(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(7 * 86400, "7 days"), (1e12, "100 years")])
def test_a_time_that_is_looked_back_reads_well_after_the_last(seconds: float, text: str) -> None:
    assert format_last(seconds) == text


@pytest.mark.parametrize("seconds", [-1.0, math.nan, -math.inf])
def test_format_duration_refuses_an_invalid_value(seconds: float) -> None:
    with pytest.raises(ValueError, match="duration"):
        format_duration(seconds)


@pytest.mark.parametrize(
    ("band", "text"),
    [
        (Band(14 * 60, 18 * 60, 22 * 60), "14\u201322 min"),
        (Band(50, 80, 180), "0.8\u20133 min"),
        (Band(59 * 60, 80 * 60, 1.7 * 3600), "1.0\u20131.7 h"),
        (Band(89 * 60, 90 * 60, 1.5 * 3600), "1.5 h"),
        (Band(12 * 60, 3600, 3 * 3600), "12 min \u2013 3 h"),
        (Band(14 * 60, 14 * 60, 14 * 60 + 5), "14 min"),
        (Band(14 * 60, 18 * 60, math.inf), "14 min or more"),
        (Band(math.inf, math.inf, math.inf), "never"),
        (Band(1e10, 1e11, 1e12), "over 100 years"),
        (Band(50 * 365.25 * 86400, 1e11, 1e12), "50 years \u2013 over 100 years"),
    ],
)
def test_a_band_of_durations_says_its_unit_once(band: Band, text: str) -> None:
    assert format_band(band) == text


def test_a_band_of_bytes_uses_the_given_form() -> None:
    assert format_band(Band(11.5 * MIB, 12 * MIB, 12.5 * MIB), format_bytes) == "11.5\u201312.5 MiB"


@pytest.mark.parametrize(("count", "said"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (1024, "1,024 ranks")])
def test_a_count_has_the_plural_of_its_number(count: int, said: str) -> None:
    assert format_count(count, "rank") == said


@pytest.mark.parametrize(
    ("first", "second", "pair"),
    [
        (2 * MIB, 1 * MIB, ("2.0 MiB", "1.0 MiB")),
        (1540 * MIB, 1524 * MIB, ("1.50 GiB", "1.49 GiB")),
        (1540 * MIB, 1540 * MIB, ("1.5 GiB", "1.5 GiB")),
        (1540 * MIB, 1540 * MIB + 512, ("1.504 GiB", "1.504 GiB")),
        (1000, 999, ("1000 B", "999 B")),
    ],
)
def test_two_counts_have_the_decimals_that_tell_them_apart(first: int, second: int, pair: tuple[str, str]) -> None:
    assert format_bytes_apart(first, second) == pair


@given(st.integers(1, 1 << 50))
def test_a_hundredth_less_is_told_apart(count: int) -> None:
    less = count - max(1, -(-count // 100))
    first, second = format_bytes_apart(count, less)
    assert first != second
