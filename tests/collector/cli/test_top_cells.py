"""Columns, cells and pictures of ``tidegauge top``: what fits is shown, and nothing moves the cursor."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sample_views import GIB, MIB
from tidegauge.cli.top.columns import (
    BLOCKS,
    LUXURY,
    Cell,
    Column,
    Tone,
    bars,
    cut,
    fit,
    header,
    line,
    scaled_sparkline,
    sparkline,
)
from tidegauge.core.memory_history import ChartScale

amounts = st.lists(st.integers(0, 10**12), max_size=200)
columns = st.lists(
    st.builds(
        lambda least, more, rank, right: Column("c" * least, _says_too_much, least, least + more, rank, right),
        st.integers(1, 30),
        st.integers(0, 30),
        st.sampled_from([0, 1, 2, LUXURY]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def _says_too_much(row: str, width: int) -> Cell:
    return Cell(row)


def column(title: str, least: int, most: int = 0, rank: int = 0) -> Column[str]:
    return Column(title, lambda row, _: Cell(row, Tone.STRONG), least, most, rank)


@given(columns, st.integers(1, 300), st.text(max_size=80))
def test_a_line_is_as_wide_as_its_header_and_fits_if_its_first_column_does(
    given_columns: list[Column[str]], width: int, row: str
) -> None:
    fitted = fit(given_columns, width)
    text = "".join(cell.text for cell in line(fitted, row))
    assert cell_len(text) == cell_len(header(fitted))
    first = min(given_columns, key=lambda each: each.rank)
    assert cell_len(text) <= max(width, first.least)
    assert text.isprintable()


@given(columns, st.integers(1, 300))
def test_a_column_of_a_lower_rank_never_gives_way_to_a_higher_one(given_columns: list[Column[str]], width: int) -> None:
    taken = [each for each, _ in fit(given_columns, width)]
    left_out = [each.rank for each in given_columns if each not in taken]
    assert max(each.rank for each in taken) <= min(left_out, default=LUXURY)


@given(columns, st.integers(1, 300))
def test_a_wider_line_shows_no_less(given_columns: list[Column[str]], width: int) -> None:
    assert len(fit(given_columns, width)) <= len(fit(given_columns, width + 1))


def test_columns_keep_their_order_whoever_came_first() -> None:
    chosen = fit([column("last", 5, rank=2), column("name", 5), column("also", 5, rank=1)], 11)
    assert [each.title for each, _ in chosen] == ["name", "also"]


def test_top_cells_widen_columns_into_spare_width_up_to_their_preference() -> None:
    chosen = fit([column("a", 5, 8), column("b", 5), column("c", 5, 30)], 28)
    assert [width for _, width in chosen] == [8, 5, 13]


def test_a_luxury_comes_when_all_others_are_as_wide_as_they_like() -> None:
    chosen = [column("a", 5, 10), column("rare", 5, rank=LUXURY)]
    assert [each.title for each, _ in fit(chosen, 15)] == ["a"]
    assert [each.title for each, _ in fit(chosen, 16)] == ["a", "rare"]


@given(st.text(), st.integers(0, 40))
def test_no_name_is_longer_than_its_cell_or_moves_the_cursor(name: str, width: int) -> None:
    shown = cut(name, width)
    assert cell_len(shown) <= width
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long\u2026"),
        ("a b c", 3, "a\u2026"),
        ("\x1b]0;owned\x07", 20, "?]0;owned?"),
        ("two\nlines", 20, "two?lines"),
        ("\u202egnp.exe", 20, "?gnp.exe"),
        ("\u6f22\u5b57\u6f22\u5b57", 5, "\u6f22\u5b57\u2026"),
    ],
)
def test_top_cells_mark_truncated_text_and_replace_control_characters(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown


@given(amounts, st.integers(0, 60))
def test_a_sparkline_is_no_longer_than_its_cell(given_amounts: list[int], width: int) -> None:
    drawn = sparkline(given_amounts, width)
    assert len(drawn) <= min(width, len(given_amounts))
    assert set(drawn) <= set(BLOCKS)
    assert len(scaled_sparkline(given_amounts, width)) <= width


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=100), st.integers(1, 40))
def test_the_highest_is_seen_however_narrow_the_line(given_amounts: list[int], width: int) -> None:
    assert "\u2588" in sparkline([*given_amounts, 2 * max(given_amounts)], width)


def test_a_sparkline_goes_from_its_lowest_to_its_highest() -> None:
    assert sparkline([0, 10, 40, 80], 10) == " \u2582\u2585\u2588"
    assert sparkline([100 * GIB, 101 * GIB, 102 * GIB], 3) == "\u2581\u2585\u2588", "a leak of 2 % is seen"
    assert sparkline([10_000, 10_001, 10_000], 3) == "\u2581\u2582\u2581", "noise is no mountain"
    assert sparkline([5, 5], 2) == "\u2581\u2581", "something is never drawn as nothing"
    assert sparkline([0, 0], 2) == "  "
    assert sparkline([], 10) == ""


def test_the_scale_stands_beside_the_bars_where_there_is_room() -> None:
    grown = [400 * MIB + n * 10 * MIB for n in range(30)]
    assert scaled_sparkline(grown, 32).endswith("\u2588 470.0\u2013690.0 MiB"), "without the first quarter"
    assert len(scaled_sparkline(grown, 32)) == 32
    assert scaled_sparkline([900 * MIB, 3 * GIB], 32).endswith(" 900.0 MiB\u20133.0 GiB")
    assert scaled_sparkline([3 * GIB, 3 * GIB], 32).endswith("\u2581 3.0 GiB")
    assert scaled_sparkline(grown, 12) == sparkline(grown, 6) + " +220M", "on a narrow line it is how much that is"
    assert scaled_sparkline([1 * GIB, 2 * GIB + 100 * MIB], 12).endswith(" +1.1G")
    assert scaled_sparkline(grown, 8) == sparkline(grown, 8), "too narrow"
    assert scaled_sparkline([], 32) == ""


def test_a_leak_of_374_mib_on_a_gpu_of_80_gib_is_seen_with_its_size_also_after_the_model_was_loaded() -> None:
    loading = [n * 9 * GIB for n in range(8)]
    leaking = [78 * GIB + n * 374 * MIB // 23 for n in range(24)]
    drawn = scaled_sparkline([*loading, *leaking], 45)
    assert drawn.endswith("\u2588 78.0\u201378.4 GiB")
    assert set(BLOCKS[2:]) <= set(drawn), "it rises in small steps"
    narrow = scaled_sparkline([*loading, *leaking], 12)
    assert (narrow[5], narrow[6:]) == ("\u2588", " +374M")


def test_a_chart_takes_its_range_from_its_figures_but_not_from_the_first_quarter_of_a_life() -> None:
    assert ChartScale.of([3, 5]) == (3, 5)
    assert ChartScale.of([1, 1, 5, 6, 7, 8, 9, 9]) == (5, 9)
    assert ChartScale(5, 9).share(1) == 0.0
    assert ChartScale(0, 0).share(0) == 0.0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.integers(1, 10))
def test_bars_stand_on_the_ground(heights: list[int], lines: int) -> None:
    drawn = bars(heights, ChartScale(0, 1000), lines)
    assert [len(text) for text in drawn] == [len(heights)] * lines
    for stack in zip(*drawn):
        filled = [BLOCKS.index(block) for block in stack]
        assert all(above == 0 or below == 8 for above, below in pairwise(filled))


def test_bars_are_as_high_as_their_amount() -> None:
    assert bars([0, 25, 50, 100], ChartScale(0, 100), 2) == ["   \u2588", " \u2584\u2588\u2588"]
