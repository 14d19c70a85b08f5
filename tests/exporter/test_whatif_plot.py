from __future__ import annotations

import xml.etree.ElementTree as ET

from tidegauge_exporter.reports.whatif_plot import Moments, PlottedCourse, clock, plot_page, plot_svg
from whatif_worlds import GIB, curve_of

TODAY = PlottedCourse("today", "torch's defaults", curve_of([GIB, 2 * GIB, GIB], [2 * GIB, 4 * GIB, 4 * GIB]))
BEST = PlottedCourse("best", "expandable_segments:True", curve_of([GIB, 2 * GIB, GIB], [2 * GIB, 2 * GIB, 2 * GIB]))
ROUNDED = PlottedCourse(
    "next", "roundup_power2_divisions:2", curve_of([GIB, 3 * GIB, GIB], [2 * GIB, 3 * GIB, 3 * GIB])
)
HOSTILE = PlottedCourse("best", "</title><script>alert(1)</script>&", BEST.curve)


def svg(*courses: PlottedCourse) -> str:
    return plot_svg(courses, moments=Moments(), limit_bytes=None, heading="memory")


def test_the_picture_is_xml_that_stands_alone() -> None:
    root = ET.fromstring(svg(TODAY, BEST, ROUNDED))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "--card" in "".join(root.itertext())


def test_every_curve_is_named_in_picture_and_page() -> None:
    page = plot_page((TODAY, BEST), moments=Moments(), limit_bytes=None, heading="memory", sentences=["It is <so>."])
    for text in (page, svg(TODAY, BEST)):
        assert "reserved, today: torch&#x27;s defaults" in text
        assert "reserved, best: expandable_segments:True" in text
    assert "It is &lt;so&gt;." in page


def test_reserved_has_a_curve_for_each_setting_over_one_area_of_allocated_memory() -> None:
    text = svg(TODAY, BEST)
    assert text.count("<polyline") == 2
    assert text.count("<polygon") == 1


def test_a_setting_that_changes_sizes_shows_its_own_allocated_memory() -> None:
    assert svg(TODAY, BEST, ROUNDED).count("<polyline") == 4


def test_a_limit_that_is_met_is_drawn() -> None:
    text = plot_svg((TODAY, BEST), moments=Moments(), limit_bytes=4 * GIB, heading="memory")
    assert "limit 4.0 GiB" in text


def test_the_axis_follows_the_recording_s_clock_if_it_has_one() -> None:
    assert clock(TODAY.curve, Moments()).axis.name == "allocator event"
    assert clock(TODAY.curve, Moments(time_us=[7_000_000, 7_500_000, 8_000_000])).at == [0.0, 500.0, 1000.0]
    minutes = clock(TODAY.curve, Moments(time_us=[0, 60_000_000, 120_000_000]))
    assert minutes.axis.name.startswith("seconds")
    assert minutes.at == [0.0, 60.0, 120.0]


def test_training_steps_come_before_the_clock_and_an_event_between_two_stands_between_them() -> None:
    found = clock(TODAY.curve, Moments(steps=[2], time_us=[0, 1, 2]))
    assert found.axis.name == "training step"
    assert found.at == [0.0, 0.5, 1.0]


def test_whatif_plot_escapes_recorded_settings() -> None:
    page = plot_page((TODAY, HOSTILE), moments=Moments(), limit_bytes=None, heading="memory", sentences=[HOSTILE.title])
    assert "<script" not in page
    ET.fromstring(svg(TODAY, HOSTILE))
