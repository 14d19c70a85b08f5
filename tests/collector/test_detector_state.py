"""A detector's state as JSON: whoever goes on from it goes on exactly where the other one was."""

from __future__ import annotations

import json
from collections import deque
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakseries.corpus import make
from leakseries.machine import Row, feed
from tidegauge.core.detector import RankDetector
from tidegauge.core.detector.state_dicts import packed, unpacked
from tidegauge.core.verdicts import LeakState, Verdict

GIB = 1 << 30
FAMILIES = ("late_linear", "staircase", "gc_sawtooth", "curriculum", "random_walk_length", "variable_length")


def taken_up(detector: RankDetector) -> RankDetector:
    """Another one that goes on, by way of text."""
    other = RankDetector()
    other.load_state_dict(json.loads(json.dumps(detector.state_dict())))
    return other


def insides(value: object) -> object:
    """All that an object holds, to compare it with another one."""
    if value is None or isinstance(value, (int, float, str, Enum)):
        return value
    if isinstance(value, (list, tuple, deque)):
        return [insides(part) for part in value]
    if isinstance(value, dict):
        return {name: insides(part) for name, part in value.items()}
    names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", {})]
    return {name: insides(getattr(value, name)) for name in names if name not in ("_known", "_params", "params")}


def judge(detector: RankDetector, rows: list[Row], *, has_host: bool) -> list[Verdict]:
    host_free_bytes = 60 * GIB if has_host else None
    verdicts = []
    for row in rows:
        host_bytes = row.allocated if has_host else None
        feed(detector, row, limit_bytes=80 * GIB, host_bytes=host_bytes, host_free_bytes=host_free_bytes)
        verdicts.append(detector.verdict)
    return verdicts


@given(
    family=st.sampled_from(FAMILIES), seed=st.integers(0, 10_000), cut=st.floats(0, 1), has_host=st.booleans()
)  # fmt: skip
def test_a_series_cut_at_any_point_gets_the_verdicts_of_an_uncut_one(
    family: str, seed: int, cut: float, has_host: bool
) -> None:
    rows = make(family, seed, 400).rows
    at = round(cut * len(rows))
    whole, first = RankDetector(), RankDetector()
    expected = judge(whole, rows, has_host=has_host)
    judge(first, rows[:at], has_host=has_host)
    second = taken_up(first)
    assert insides(second) == insides(first)
    assert judge(second, rows[at:], has_host=has_host) == expected[at:]
    assert second.look_now() == whole.look_now()


def test_a_leak_that_was_found_is_known_again_with_its_onset_and_alarm() -> None:
    detector = RankDetector()
    found = judge(detector, make("late_linear", 1, 500).rows, has_host=False)[-1]
    assert found.state is LeakState.LEAK
    assert taken_up(detector).verdict == found


def test_the_state_of_a_long_run_takes_less_than_100_000_characters() -> None:
    detector = RankDetector()
    judge(detector, make("variable_length", 5, 60_000).rows, has_host=True)
    assert len(json.dumps(detector.state_dict())) < 100_000
    assert insides(taken_up(detector)) == insides(detector)


@given(st.one_of(st.lists(st.integers(-(1 << 60), 1 << 60)), st.lists(st.floats(allow_nan=False))))
def test_packed_numbers_come_back_as_they_were(numbers: list[float]) -> None:
    back = unpacked(packed(numbers))
    assert back == numbers
    assert list(map(type, back)) == list(map(type, numbers))


@pytest.mark.parametrize("state", [{}, {"last": {}, "parts": [], "told": None, "verdict": None}])
def test_what_is_no_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        RankDetector().load_state_dict(state)
