from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge_exporter.chart import HEIGHT, LABEL_HEIGHT, WIDTH, Line, Mark, Point, byte_ticks, draw, step_ticks, thin

GIB = 1024.0**3
RISING: list[Point] = [(float(step), GIB + step * 1e6) for step in range(200)]


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("text")]


def test_the_drawing_is_well_formed_whatever_it_is_called() -> None:
    svg = draw([Line(RISING, "bad", title="<b>&\"'", label="rank <1>")], description='"><script>')
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == '"><script>'
    assert "rank <1>" in texts(svg)


def test_nothing_to_draw_is_said_in_words() -> None:
    assert draw([], description="x") == '<p class="muted">No readings.</p>'
    assert draw([Line([], "bad", title="x")], description="x") == '<p class="muted">No readings.</p>'


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 2**50)), min_size=1, max_size=50),
    st.none() | st.integers(1, 2**50),
)
def test_every_curve_stays_inside_the_drawing(raw: list[tuple[int, int]], limit: int | None) -> None:
    points = sorted((float(step), float(count)) for step, count in raw)
    svg = draw([Line(points, "bad", title="x", label="x", shaded_from=points[0][0])], limit=limit, description="x")
    for element in ElementTree.fromstring(svg).iter():
        for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", element.attrib.get("points", "")):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT


def test_the_limit_is_drawn_only_where_the_curves_come_near_it() -> None:
    line = Line(RISING, "bad", title="x")
    assert "limit 1.5 GiB" in texts(draw([line], limit=1.5 * GIB, description="x"))
    assert not any("limit" in text for text in texts(draw([line], limit=140 * GIB, description="x")))


def test_marks_say_what_happened_when() -> None:
    svg = draw([Line(RISING, "bad", title="x")], marks=[Mark(40, "growth begins, step 40", "onset")], description="x")
    assert "growth begins, step 40" in texts(svg)


def test_names_of_curves_that_end_together_do_not_cover_each_other() -> None:
    lines = [Line(RISING, "calm", title="x", label=f"rank {rank}") for rank in range(6)]
    root = ElementTree.fromstring(draw(lines, description="x"))
    heights = sorted(float(text.attrib["y"]) for text in root.iter("text") if "name" in text.attrib["class"])
    assert len(heights) == 6
    assert all(below - above >= LABEL_HEIGHT - 0.2 for above, below in zip(heights, heights[1:], strict=False))
    assert heights[-1] <= HEIGHT


def test_names_that_do_not_fit_are_left_out_from_the_bottom_of_the_pile() -> None:
    lines = [Line(RISING, "bad", title="x", label=f"rank {rank}") for rank in range(60)]
    root = ElementTree.fromstring(draw(lines, description="x"))
    names = [text for text in root.iter("text") if "name" in text.attrib["class"]]
    assert {"rank 59", "rank 58"} <= {text.text for text in names}
    assert all(0 < float(text.attrib["y"]) < HEIGHT for text in names)


def test_thinning_keeps_both_ends_and_every_spike() -> None:
    points = [(float(step), 1.0) for step in range(10_000)]
    points[4321] = (4321.0, 9.0)
    points[777] = (777.0, -9.0)
    kept = thin(points, 100)
    assert len(kept) <= 102
    assert {points[0], points[-1], points[777], points[4321]} <= set(kept)
    assert kept == sorted(kept)


def test_a_short_series_is_not_thinned() -> None:
    assert thin(RISING, 480) == RISING


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
    made = step_ticks(low, high)
    assert made == ticks if ticks is not None else all(low <= tick <= high and tick % 2 == 0 for tick in made)
