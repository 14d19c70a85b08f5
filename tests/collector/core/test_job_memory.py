"""What is kept of the memory of a job's ranks, from look to look."""

from __future__ import annotations

import pytest

from sample_views import GIB, NOW_S, job_view, rank_summary
from tidegauge.core.job_records.memory import (
    MAX_JOB_CURVES,
    MAX_PEAKS,
    JobMemory,
    MemorySoFar,
    RankMemory,
    step_time_s,
)
from tidegauge.core.job_records.record import RankPeak, highest
from tidegauge.core.memory_history import BUCKETS, MemoryHistory, MemoryPoint, joined
from tidegauge.core.views import JobView, RankSummary


def view(*ranks: RankSummary, host: str = "node7", group: str = "") -> JobView:
    return job_view(
        ranks=ranks, rank_nodes=(f"id of {host}",) * len(ranks), rank_hostnames=(host,) * len(ranks), group=group
    )


def history(*gib: float, began_s: float = NOW_S, step: int = 0) -> MemoryHistory:
    """One reading a second, each of another step."""
    made = MemoryHistory()
    for place, count in enumerate(gib):
        made.add(point(began_s + place, count, step=step + place))
    return made


def point(at_s: float, gib: float, *, step: int = 0) -> MemoryPoint:
    return MemoryPoint(at_s, step, int(gib * GIB), int(gib * GIB), None)


def nothing(node_id: str, rank: RankSummary) -> MemoryHistory:
    return MemoryHistory()


def gib_of(memory: JobMemory) -> dict[int, list[float]]:
    return {curve.rank: [one.reserved_bytes / GIB for one in curve.points] for curve in memory.curves}


def test_a_program_that_resets_its_peaks_does_not_lower_them() -> None:
    memory = MemorySoFar()
    memory.look([view(rank_summary(0, allocated_peak_bytes=30 * GIB, reserved_peak_bytes=40 * GIB, step=7))])
    memory.look([view(rank_summary(0, allocated_peak_bytes=1, reserved_peak_bytes=1, host_rss_bytes=9 * GIB, step=8))])
    (peak,) = memory.memory().peaks
    assert (peak.allocated_bytes, peak.reserved_bytes, peak.host_bytes) == (30 * GIB, 40 * GIB, 9 * GIB)
    assert (peak.steps, peak.limit_bytes, peak.hostname) == (8, 80 * GIB, "node7")


def test_what_is_no_peak_is_the_latest_that_is_known() -> None:
    before = RankPeak(0, "a", 1, 1, 80, nontorch_bytes=None, inactive_split_bytes=5, ooms=2, step_s=0.5)
    seen = RankPeak(0, "a", 1, 1, 40, nontorch_bytes=3, inactive_split_bytes=1, ooms=None)
    assert highest(before, seen) == seen._replace(ooms=2, step_s=0.5)


def test_peaks_of_ranks_that_are_forgotten_stay_the_fullest_first() -> None:
    memory = MemorySoFar()
    memory.look([view(rank_summary(0), rank_summary(1, reserved_bytes=70 * GIB), rank_summary(2))])
    memory.look([view(rank_summary(2))])
    memory.take([view(rank_summary(2))], nothing)
    assert [peak.rank for peak in memory.memory().peaks] == [1, 0, 2]


def test_peaks_and_curves_are_those_of_the_fullest_ranks() -> None:
    ranks = [
        rank_summary(number, reserved_bytes=number * GIB, limit_bytes=2048 * GIB) for number in range(MAX_PEAKS + 10)
    ]
    memory = MemorySoFar()
    memory.look([view(*ranks)])
    memory.take([view(*ranks)], lambda _, rank: history(int(rank.identity.rank)))
    kept = memory.memory()
    assert [peak.rank for peak in kept.peaks] == list(range(MAX_PEAKS + 9, 9, -1))
    assert [curve.rank for curve in kept.curves] == [peak.rank for peak in kept.peaks[:MAX_JOB_CURVES]]


def test_a_curve_goes_on_after_a_restart_of_the_coordinator_and_of_the_rank_on_another_host() -> None:
    stored = JobMemory((RankPeak(0, "node7", 9 * GIB, 9 * GIB, 80 * GIB, step_s=3.0),), (
        RankMemory(0, history(1, 9, 2).points()),
    ))  # fmt: skip
    memory, there = MemorySoFar(), [view(rank_summary(0, reserved_bytes=3 * GIB), host="node8")]
    memory.look(there)
    memory.take(there, lambda *_: history(3, 4, began_s=NOW_S + 100, step=5))
    memory.go_on_from(stored)
    assert gib_of(memory.memory()) == {0: [1, 9, 2, 3, 4]}
    memory.take(there, lambda *_: history(3, 4, 5, began_s=NOW_S + 100, step=5))
    memory.take([], nothing)
    kept = memory.memory()
    assert gib_of(kept) == {0: [1, 9, 2, 3, 4, 5]}
    assert [(peak.hostname, peak.step_s) for peak in kept.peaks] == [("node7", 3.0), ("node8", 1.0)]


def test_of_two_groups_with_a_rank_of_the_same_number_the_fuller_living_one_has_the_curve() -> None:
    ended = view(rank_summary(0, reserved_bytes=70 * GIB, alive=False), host="a")
    full, empty = view(rank_summary(0, reserved_bytes=60 * GIB), host="b", group="x"), view(rank_summary(0), host="c")
    memory = MemorySoFar()
    memory.look([ended, full, empty])
    memory.take([ended, full, empty], lambda node_id, _: history({"id of a": 1, "id of b": 2, "id of c": 3}[node_id]))
    assert gib_of(memory.memory()) == {0: [2]}
    assert [peak.hostname for peak in memory.memory().peaks] == ["a", "b", "c"]


def test_a_curve_that_is_joined_every_minute_for_days_keeps_its_peaks_and_its_beginning() -> None:
    live, kept, spike_s = MemoryHistory(), tuple[MemoryPoint, ...](), NOW_S + 1000
    for second in range(0, 200_000, 10):
        live.add(point(NOW_S + second, 50 if NOW_S + second == spike_s else 10 + second / 1e5))
        if second % 60 == 0:
            kept = joined(kept, live.points())
    assert BUCKETS / 3 < len(kept) <= BUCKETS
    assert max(one.reserved_bytes for one in kept) == 50 * GIB
    gaps_s = [later.at_unix_s - one.at_unix_s for one, later in zip(kept, kept[1:])]
    assert max(gaps_s) <= 2 * 2048 + 60, "an even grid: nothing is swallowed at the beginning"


def test_joining_nothing_changes_nothing() -> None:
    points = history(*range(100)).points()
    assert joined(points, ()) == joined((), points) == joined(points, points) == points


def test_after_a_clock_was_set_back_a_curve_goes_on_without_its_future() -> None:
    wrong = history(1, 2, 3, began_s=NOW_S + 7200)
    assert joined(wrong.points(), history(4, 5).points()) == history(4, 5).points()


def test_an_unknown_figure_stays_unknown_when_points_are_joined() -> None:
    many = [MemoryPoint(NOW_S + place / 2, place, 1, 1, None if place < 200 else 7) for place in range(300)]
    assert {one.nontorch_bytes for one in joined((), many)} == {None, 7}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((), None),
        ((5,), None),
        ((5, 5, 5), None),
        ((0, 2, 4, 6), 0.5),
        ((0, 0, 0, 1, 1, 1, 2), 3.0),
        ((0, 10, 20, 21, 21, 21, 21, 22), 0.1),
        ((50, 60, 0, 1, 2), 0.1),
        ((0, 0, 0, 0, 60), None),  # start-up, and 60 steps at some time in the last second
        ((0, 0, 0, 3, 23, 43, 63, 64), 0.05),  # loading is in the first stretch, the rest of the process in the last
        ((0, 0, 0, 20, 60), None),  # the last stretch alone tells nothing
    ],
)
def test_the_time_of_a_step_is_the_median_over_the_steps_of_a_curve(steps: tuple[int, ...], expected: float) -> None:
    assert step_time_s([point(NOW_S + place, 1, step=step) for place, step in enumerate(steps)]) == expected
