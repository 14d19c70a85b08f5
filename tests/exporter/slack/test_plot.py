"""The forecast plot: what is drawn, and that anything can be."""

from __future__ import annotations

import gc
import io
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from examples import fewer
from sample_views import GIB, NOW_S
from scheduler_values import died_of_oom
from slack_stories import ALL, closed, fragmentation, leak, out_of_memory, outside, recovering
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import Band
from tidegauge_exporter.messages.plot_values import Plot, plot_values
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.slack.plot import ALARM, HEIGHT_PX, WIDTH_PX, forecast_png


def values(story: Story, *, now_unix_s: float = NOW_S) -> Plot:
    plot = plot_values(story, now_unix_s=now_unix_s)
    assert plot is not None
    return plot


def drawn(story: Story) -> bytes:
    png = forecast_png(story, now_unix_s=NOW_S)
    assert png is not None
    return png


drawn_once = cache(lambda make: drawn(make()))
"""The picture of a story of ``slack_stories``, by the function that makes the story."""


def pixels(png: bytes) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Red, green and blue of each pixel."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.int16)


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_picture_is_small_and_of_a_telephones_width(make: Callable[[], Story]) -> None:
    png = drawn_once(make)
    assert len(png) < 60_000
    assert Image.open(io.BytesIO(png)).size == (WIDTH_PX, HEIGHT_PX)


def test_limit_and_forecast_are_in_the_picture() -> None:
    red = tuple(int(ALARM[place : place + 2], 16) for place in (1, 3, 5))

    def reddish(png: bytes) -> int:
        return int((abs(pixels(png) - red) < 25).all(axis=-1).sum())

    without_forecast = replace(leak(), incident=replace(leak().incident, seconds_to_oom=None))
    assert reddish(drawn_once(leak)) > reddish(drawn(without_forecast)) + 300 > 2_000


def test_slack_plot_frees_its_figure_without_garbage_collection() -> None:
    gc.collect()
    gc.disable()
    try:
        forecast_png(leak(), now_unix_s=NOW_S)
        assert sum(isinstance(one, Figure) for one in gc.get_objects()) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_points_are_no_picture(count: int) -> None:
    story = replace(leak(), memory=leak().memory[:count])
    assert forecast_png(story, now_unix_s=NOW_S) is None


def test_points_of_one_moment_are_no_picture() -> None:
    assert forecast_png(replace(leak(), memory=[leak().memory[0]] * 5), now_unix_s=NOW_S) is None


def test_host_memory_is_not_in_these_points() -> None:
    one = leak().incident
    host = replace(one, key=one.key._replace(cause=IncidentCause.HOST_MEMORY))
    assert forecast_png(replace(leak(), incident=host), now_unix_s=NOW_S) is None


def of_graphs() -> Story:
    """The same growth, once evidence has found it in private pools."""
    one = fragmentation().incident
    return replace(fragmentation(), incident=replace(one, key=one.key._replace(cause=IncidentCause.CUDA_GRAPHS)))


@pytest.mark.parametrize(
    ("story", "kinds", "growing"),
    [
        (leak(), ["nontorch", "allocated", "cached"], "allocated"),
        (fragmentation(), ["nontorch", "allocated", "cached"], "cached"),
        (of_graphs(), ["nontorch", "allocated", "cached"], "cached"),
        (outside(), ["allocated", "cached", "nontorch"], "nontorch"),
        (out_of_memory(), ["nontorch", "allocated", "cached"], None),
    ],
)
def test_slack_plot_stacks_growing_layers_above_others(story: Story, kinds: list[str], growing: str | None) -> None:
    layers = values(story).layers
    assert [layer.kind for layer in layers] == kinds
    assert [layer.kind for layer in layers if layer.grows] == ([] if growing is None else [growing])


def test_layers_add_up_to_what_the_rank_takes() -> None:
    story = outside()
    totals = [sum(each) for each in zip(*(layer.bytes_each for layer in values(story).layers))]
    assert totals == [point.used_bytes for point in story.memory]


def test_slack_plot_omits_a_layer_of_unknown_values() -> None:
    story = leak()
    unknown = tuple(point._replace(nontorch_bytes=None) for point in story.memory)
    assert "nontorch" not in [layer.kind for layer in values(replace(story, memory=unknown)).layers]


def test_the_fan_goes_from_now_to_the_limit_at_the_times_that_are_told() -> None:
    story = leak()
    fan = values(story).fan
    assert fan is not None
    last = story.memory[-1]
    assert fan.from_unix_s == last.at_unix_s
    assert fan.from_bytes == last.allocated_bytes + (last.nontorch_bytes or 0)
    assert fan.ends_unix_s == Band(NOW_S + 840.0, NOW_S + 1_080.0, NOW_S + 1_320.0)


@pytest.mark.parametrize("story", [recovering(), closed(), out_of_memory()], ids=["recovering", "closed", "oom"])
def test_there_is_no_forecast_of_what_does_not_grow_now(story: Story) -> None:
    assert values(story).fan is None


def test_onset_end_and_out_of_memory_are_marked() -> None:
    assert values(leak()).onset_unix_s == pytest.approx(NOW_S - 79 * 16.0, abs=16.0)
    assert values(recovering()).stopped_unix_s == NOW_S - 180.0
    assert values(closed()).stopped_unix_s == NOW_S
    assert values(out_of_memory()).oom_unix_s == NOW_S - 60.0


def test_growth_that_ended_in_an_error_did_not_stop_but_ran_out_of_memory() -> None:
    died = died_of_oom()
    assert died.ran_out is not None
    assert died.findings[0].oom is None, "the ranks as of the last alarm"
    plot = values(replace(leak(), incident=died))
    assert (plot.stopped_unix_s, plot.oom_unix_s) == (None, died.ran_out.oom.at_unix_s)


def test_a_long_past_leaves_the_forecast_its_room() -> None:
    story = leak()
    long = tuple(
        point._replace(at_unix_s=NOW_S - (len(story.memory) - 1 - number) * 6_000.0)
        for number, point in enumerate(story.memory)
    )
    plot = values(replace(story, memory=long))
    assert (plot.to_unix_s - NOW_S) / (plot.to_unix_s - plot.from_unix_s) > 0.15


def test_a_far_future_leaves_the_past_its_room() -> None:
    story = leak()
    far = replace(story, incident=replace(story.incident, seconds_to_oom=Band(1e6, 2e6, math.inf)))
    plot = values(far)
    assert (NOW_S - plot.from_unix_s) / (plot.to_unix_s - plot.from_unix_s) > 0.35
    assert forecast_png(far, now_unix_s=NOW_S)


@pytest.mark.slow
def test_hostile_names_are_only_written() -> None:
    one = leak().incident
    for text in ("$\\frac{1}{", "$x$ $", "\N{GRINNING FACE}\u202e\u65e5\u672c", "x" * 100_000, "\x00\n"):
        job = one.key.job._replace(job_id=text)
        odd = replace(
            one, key=one.key._replace(job=job), findings=tuple(replace(each, hostname=text) for each in one.findings)
        )
        assert forecast_png(replace(leak(), incident=odd), now_unix_s=NOW_S)


@pytest.mark.slow
def test_threads_may_draw_at_once() -> None:
    pictures: list[bytes] = []
    threads = [threading.Thread(target=lambda make=make: pictures.append(drawn(make()))) for make in ALL]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, pictures)) == sorted(len(drawn_once(make)) for make in ALL)


points = st.builds(
    MemoryPoint,
    st.floats(NOW_S - 1e6, NOW_S + 10.0),
    st.integers(0, 10**9),
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    st.none() | st.integers(0, 2**50),
)


@pytest.mark.slow
@given(
    memory=st.lists(points, max_size=12),
    seconds=st.tuples(*[st.floats(0.0, allow_nan=False)] * 3),
    limit_bytes=st.none() | st.integers(0, 2**50),
    cause=st.sampled_from(IncidentCause),
)
@fewer(2)
def test_any_story_has_a_picture_or_none(
    memory: list[MemoryPoint], seconds: tuple[float, float, float], limit_bytes: int | None, cause: IncidentCause
) -> None:
    one = leak().incident
    low, likely, high = sorted(seconds)
    odd = replace(
        one,
        key=one.key._replace(cause=cause),
        seconds_to_oom=Band(low, likely, high),
        findings=tuple(replace(each, limit_bytes=limit_bytes) for each in one.findings),
    )
    png = forecast_png(Story(odd, memory=tuple(memory)), now_unix_s=NOW_S)
    assert png is None or png.startswith(b"\x89PNG")


def test_used_bytes_may_be_above_the_limit() -> None:
    over = replace(leak().incident.findings[0], limit_bytes=10 * GIB)
    assert forecast_png(replace(leak(), incident=replace(leak().incident, findings=(over,))), now_unix_s=NOW_S)
