"""When old incidents go: by the time that really passed, not by what the clock of the head is set to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from still_service import StillLoop
from store_contract import closed, opened
from tidegauge.cli.policy.status import in_one_line, is_well, lines
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_loop import DAY_S, ActionLoop, Opened, open_actions
from tidegauge.cluster.service_record import StateFiles
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.settings import Settings

NOW_S = 1.8e9
YEAR_S = 365 * DAY_S


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """With one incident that was closed a week ago."""
    store = open_store(sqlite_url(tmp_path))
    told = opened(1, at_s=NOW_S - 8 * DAY_S)
    store.incidents.save([told, closed(told, NOW_S - 7 * DAY_S)])
    return store


def turned(store: Store, *, loop_s: float, ages_s: float) -> list[int]:
    """The incidents that a coordinator leaves that keeps them for thirty days."""
    action_loop = ActionLoop(
        lambda: Opened(store, StillLoop(), lambda: loop_s, lambda: ages_s), keep_incidents_s=30 * DAY_S
    )  # fmt: skip
    action_loop.turn()
    return [one.number for one in store.incidents.incidents()]


def test_a_coordinator_that_starts_with_the_clock_a_year_ahead_deletes_nothing(store: Store) -> None:
    assert turned(store, loop_s=NOW_S + YEAR_S, ages_s=NOW_S) == [1]


def test_action_loop_prunes_records_old_by_both_clocks(store: Store) -> None:
    assert turned(store, loop_s=NOW_S + 24 * DAY_S, ages_s=NOW_S + 24 * DAY_S) == []


def test_a_clock_that_was_behind_deletes_nothing_either(store: Store) -> None:
    assert turned(store, loop_s=NOW_S, ages_s=NOW_S + YEAR_S) == [1]


@dataclass
class Recorder:
    problem: str | None
    ticks: int = 0

    def tick(self) -> None:
        self.ticks += 1


def test_records_that_cannot_be_written_are_a_problem_of_the_status(store: Store) -> None:
    recorder = Recorder("the database is read-only")
    action_loop = ActionLoop(
        lambda: Opened(store, StillLoop(), lambda: NOW_S, recorders=(recorder,)), keep_incidents_s=30 * DAY_S
    )
    action_loop.turn()
    assert action_loop.status().records_problem == "the database is read-only"
    recorder.problem = None
    assert action_loop.status().records_problem is None


def test_what_cannot_be_shown_in_a_scheduler_is_a_problem_of_that_scheduler_and_not_of_the_records(
    store: Store,
) -> None:
    view = Recorder("GpuMemoryUnheld is not written: may not patch nodes/status")
    action_loop = ActionLoop(
        lambda: Opened(store, StillLoop(), lambda: NOW_S, views={"kubernetes nodes": view}), keep_incidents_s=30 * DAY_S
    )
    action_loop.turn()
    assert view.ticks == 1
    status = action_loop.status()
    assert (status.records_problem, status.scheduler_problems) == (None, {"kubernetes nodes": view.problem})
    assert not is_well(status)
    assert "PROBLEMS, see `tidegauge policy status`" in in_one_line(status)
    assert ("kubernetes nodes", f"PROBLEM: {view.problem}") in lines(status)
    view.problem = None
    assert action_loop.status().scheduler_problems == {}


def test_the_time_that_passed_is_kept_with_the_state(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    coordinator = Coordinator(wall_s=lambda: NOW_S, monotonic_s=lambda: 1.0, incarnation="c")
    made = open_actions(Settings(state_dir=tmp_path), coordinator, files)
    assert made.ages_s is not None
    assert made.ages_s() == pytest.approx(made.now_s(), abs=60.0)
    action_loop = ActionLoop(lambda: made, keep_incidents_s=30 * DAY_S)
    action_loop.turn()
    assert action_loop.status().records_problem is None
    assert files.clock.is_file()
    made.store.close()
