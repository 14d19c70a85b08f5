from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.cli.memory_chart import ASCII, ROWS, memory_chart
from whatif_worlds import GIB


def test_allocated_is_solid_and_reserved_beyond_it_is_shaded() -> None:
    allocated, reserved = [0, GIB, 2 * GIB, GIB], [0, GIB, 3 * GIB, 3 * GIB]
    assert memory_chart(allocated, reserved, columns=40, highest_bytes=3 * GIB) == [
        "3.0 GiB   ░░",
        "          ░░",
        "          █░",
        "          █░",
        "         ███",
        "      0  ███",
    ]


def test_a_terminal_without_block_characters_gets_plain_ones() -> None:
    lines = memory_chart([GIB], [2 * GIB], columns=40, highest_bytes=2 * GIB, marks=ASCII)
    assert [line[-1] for line in lines] == [".", ".", ".", "#", "#", "#"]


def test_a_peak_between_two_columns_is_not_lost() -> None:
    reserved = [0] * 1000
    reserved[501] = GIB
    lines = memory_chart([0] * 1000, reserved, columns=30, highest_bytes=GIB)
    assert all(line.count("░") == 1 for line in lines)


@given(st.lists(st.integers(0, GIB), min_size=1, max_size=300), st.integers(1, 120))
def test_a_chart_is_as_wide_as_it_may_be_at_most(values: list[int], columns: int) -> None:
    lines = memory_chart(values, values, columns=columns, highest_bytes=max(*values, 1))
    assert len(lines) == ROWS
    assert all(len(line) <= max(columns, 11) for line in lines)
