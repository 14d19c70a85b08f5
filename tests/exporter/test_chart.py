from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from tidegauge_exporter.reports.chart import (
    HEIGHT,
    LABEL_HEIGHT,
    RIGHT,
    TIME,
    WIDTH,
    ChartLine,
    ChartMark,
    ChartSpan,
    Forecast,
    Point,
    Readout,
    draw,
    thin,
)

GIB = 1024.0**3
RISING: list[Point] = [(float(step), GIB + step * 1e6) for step in range(200)]


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("text")]


def test_the_drawing_is_well_formed_whatever_it_is_called() -> None:
    svg = draw([ChartLine(RISING, "bad", title="<b>&\"'", label="rank <1>")], description='"><script>')
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == '"><script>'
    assert "rank <1>" in texts(svg)


def test_chart_without_readings_says_so() -> None:
    assert draw([], description="x") == '<p class="muted">No readings.</p>'
    assert draw([ChartLine([], "bad", title="x")], description="x") == '<p class="muted">No readings.</p>'


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 2**50)), min_size=1, max_size=50),
    st.none() | st.integers(1, 2**50),
)
def test_every_curve_stays_inside_the_drawing(raw: list[tuple[int, int]], limit: int | None) -> None:
    points = sorted((float(step), float(count)) for step, count in raw)
    svg = draw([ChartLine(points, "bad", title="x", label="x")], limit=limit, description="x")
    for element in ElementTree.fromstring(svg).iter():
        for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", element.attrib.get("points", "")):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT


def test_the_limit_is_drawn_only_where_the_curves_come_near_it() -> None:
    line = ChartLine(RISING, "bad", title="x")
    assert "limit 1.5 GiB" in texts(draw([line], limit=1.5 * GIB, description="x"))
    assert not any("limit" in text for text in texts(draw([line], limit=140 * GIB, description="x")))


def test_marks_say_what_happened_when() -> None:
    svg = draw(
        [ChartLine(RISING, "bad", title="x")], marks=[ChartMark(40, "growth begins, step 40", "onset")], description="x"
    )
    assert "growth begins, step 40" in texts(svg)


def test_names_of_curves_that_end_together_do_not_cover_each_other() -> None:
    lines = [ChartLine(RISING, "calm", title="x", label=f"rank {rank}") for rank in range(6)]
    root = ElementTree.fromstring(draw(lines, description="x"))
    heights = sorted(float(text.attrib["y"]) for text in root.iter("text") if "name" in text.attrib["class"])
    assert len(heights) == 6
    assert all(below - above >= LABEL_HEIGHT - 0.2 for above, below in zip(heights, heights[1:], strict=False))
    assert heights[-1] <= HEIGHT


def test_names_that_do_not_fit_are_left_out_from_the_bottom_of_the_pile() -> None:
    lines = [ChartLine(RISING, "bad", title="x", label=f"rank {rank}") for rank in range(60)]
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


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 2**49)), min_size=1, max_size=50),
    st.integers(1, 2**50),
    st.tuples(st.floats(0, 1e7), st.floats(0, 1e7), st.floats(0, 1e7) | st.just(math.inf)),
    st.floats(1, 1e6),
)
def test_a_forecast_stays_inside_the_drawing(
    raw: list[tuple[int, int]], limit: int, ends: tuple[float, float, float], room: float
) -> None:
    points = sorted((float(at), float(count)) for at, count in raw)
    last, held = points[-1]
    earliest, likely, latest = sorted(last + end for end in ends)
    forecast = Forecast((last, min(held, limit)), earliest, likely, latest, until=last + room)
    svg = draw(
        [ChartLine(points, "area", title="x", filled=True)],
        marks=[ChartMark(last, "one", "onset"), ChartMark(last, "two", "alarm"), ChartMark(last, "three", "onset")],
        spans=[ChartSpan(points[0][0] - room, last + 2 * room, "compared"), ChartSpan(last + 3 * room, 2e9, "later")],
        readouts=[Readout(x, "figures") for x, _ in points],
        limit=limit,
        forecast=forecast,
        until=last + room,
        axis=TIME,
        description="x",
    )
    for element in ElementTree.fromstring(svg).iter():
        pairs = re.findall(r"(-?[\d.]+),(-?[\d.]+)", element.attrib.get("points", ""))
        pairs += _corners(element)
        pairs += [(element.attrib[f"x{end}"], element.attrib[f"y{end}"]) for end in "12" if f"x{end}" in element.attrib]
        for x, y in pairs:
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT


def _corners(element: ElementTree.Element) -> list[tuple[str, str]]:
    """Of a rectangle."""
    if element.tag != "rect":
        return []
    left, top, width, height = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
    assert width >= 0
    return [(str(left), str(top)), (str(left + width), str(top + height))]


def test_a_forecast_is_a_fan_from_the_curve_to_the_limit() -> None:
    forecast = Forecast((0.0, 10.0), 10.0, 20.0, math.inf, until=40.0)
    assert forecast.ends(limit=50.0) == ((10.0, 50.0), (20.0, 50.0), (40.0, 10.0))
    assert forecast._replace(until=5.0).ends(limit=50.0) == ((5.0, 30.0), (5.0, 20.0), (5.0, 10.0))
    assert forecast._replace(earliest=-5.0).ends(limit=50.0)[0] == (0.0, 50.0), "what should have been is now"


def test_a_forecast_that_reaches_the_limit_shows_it_however_far_the_curves_are() -> None:
    line = ChartLine(RISING, "bad", title="x")
    reaches = Forecast(RISING[-1], 250.0, 300.0, 350.0, until=400.0)
    shown = draw([line], limit=140 * GIB, forecast=reaches, description="x")
    assert "limit 140.0 GiB" in texts(shown)
    assert 'class="fan"' in shown
    hidden = draw([line], limit=140 * GIB, forecast=reaches._replace(until=210.0), description="x")
    assert not any("limit" in text for text in texts(hidden))
    assert 'class="fan"' not in draw([line], forecast=reaches, description="x")


def test_a_filled_curve_stands_on_zero() -> None:
    high = [(float(at), 100 * GIB) for at in range(10)]
    assert "0 GiB" not in texts(draw([ChartLine(high, "bad", title="x")], description="x"))
    assert "0 GiB" in texts(draw([ChartLine(high, "area", title="x", filled=True)], description="x"))


def test_words_of_marks_and_the_limit_do_not_cover_each_other() -> None:
    marks = [ChartMark(199.0, text, "onset") for text in ("one", "two", "three")]
    svg = draw([ChartLine(RISING, "bad", title="x")], marks=marks, limit=RISING[-1][1], description="x")
    heights = {text.text: float(text.attrib["y"]) for text in ElementTree.fromstring(svg).iter("text")}
    limit = next(y for text, y in heights.items() if text is not None and text.startswith("limit"))
    assert heights["one"] + 12 <= heights["two"]
    assert heights["two"] + 12 <= heights["three"]
    assert heights["three"] + 12 <= limit


def test_the_axis_can_go_on_beyond_the_curves() -> None:
    mark = ChartMark(300.0, "it stopped", "onset")
    root = ElementTree.fromstring(
        draw([ChartLine(RISING, "bad", title="x")], marks=[mark], until=400.0, description="x")
    )
    [line] = [element for element in root.iter("line") if element.attrib["class"] == "mark onset"]
    [curve] = root.iter("polyline")
    end = float(curve.attrib["points"].split()[-1].partition(",")[0])
    assert end < float(line.attrib["x1"]) < WIDTH - RIGHT


def test_the_axis_is_named() -> None:
    assert "training step" in texts(draw([ChartLine(RISING, "bad", title="x")], description="x"))
    assert "time, UTC" in texts(draw([ChartLine(RISING, "bad", title="x")], axis=TIME, description="x"))
