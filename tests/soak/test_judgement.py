"""The soak's judgement on series whose truth is known: it can fail, and it does not cry wolf."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from soak.judgement import COUNT_SLACK, MIB, MIN_GROWTH_BYTES, BoundWatch, CountWatch, MemoryWatch, Verdict

HOUR_S = 3600.0
LOOKS = 1000


def memory(held_bytes: Callable[[float], float], run_s: float = HOUR_S, *, seed: int = 1) -> Verdict:
    """Of a process that holds this much after so many seconds, give or take a hundred kB."""
    watch, noise = MemoryWatch(run_s), random.Random(seed)
    for look in range(LOOKS):
        at_s = look * run_s / LOOKS
        watch.take(at_s, int(held_bytes(at_s)) + noise.randrange(25) * 4096)
    return watch.verdict()


def counts(counted: Callable[[float], float], *, seed: int = 1) -> Verdict:
    watch, noise = CountWatch(HOUR_S), random.Random(seed)
    for look in range(LOOKS):
        at_s = look * HOUR_S / LOOKS
        watch.take(at_s, int(counted(at_s)) + noise.randrange(20))
    return watch.verdict()


@pytest.mark.parametrize("kb_per_s", [2.5, 10, 50, 200])
def test_a_steady_leak_is_one(kb_per_s: float) -> None:
    assert memory(lambda s: 50 * MIB + 1000 * kb_per_s * s).grows


def test_fifty_kb_a_second_are_seen_within_two_minutes() -> None:
    assert memory(lambda s: 50 * MIB + 50_000 * s, run_s=120.0).grows


def test_a_leak_with_every_tenth_job_is_one() -> None:
    assert memory(lambda s: 50 * MIB + 300_000 * (s // 60)).grows


@pytest.mark.parametrize("seed", range(10))
def test_a_flat_process_is_flat(seed: int) -> None:
    assert memory(lambda _: 50 * MIB, seed=seed) == Verdict(False, "flat")


@pytest.mark.parametrize("minutes", [2, 6, 60])
def test_warming_up_is_no_leak(minutes: int) -> None:
    run_s = 60.0 * minutes
    assert not memory(lambda s: 50 * MIB + 40 * MIB * min(1.0, 5 * s / run_s), run_s=run_s).grows


def test_soak_memory_judge_tolerates_one_more_arena() -> None:
    assert not memory(lambda s: 50 * MIB + (MIB if s > 2000 else 0)).grows


def test_a_saw_tooth_is_no_leak() -> None:
    assert not memory(lambda s: 50 * MIB + 20_000 * (s % 300)).grows


@pytest.mark.parametrize("each_s", [2.0, 60.0, 300.0])
def test_a_descriptor_lost_now_and_then_is_growth(each_s: float) -> None:
    assert counts(lambda s: 80 + s // each_s).grows


@pytest.mark.parametrize("seed", range(10))
def test_churn_is_no_growth(seed: int) -> None:
    assert counts(lambda _: 80, seed=seed) == Verdict(False, "flat")


def test_soak_count_judge_tolerates_objects_opened_once() -> None:
    assert not counts(lambda s: 80 + (COUNT_SLACK if s > 2500 else 0)).grows


def test_soak_bound_watch_allows_growth_by_design_up_to_its_price() -> None:
    watch = BoundWatch(most_bytes_each=1000.0, most_bytes=1e9)
    watch.take(100, MIN_GROWTH_BYTES + 90_000)
    assert not watch.verdict().grows
    watch.take(100, MIN_GROWTH_BYTES + 110_000)
    assert watch.verdict().grows
