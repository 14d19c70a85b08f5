"""A crash at any line never does a thing twice and never forgets it.

Between two calls of a port ``CarryOut`` only changes its own memory, which a crash takes with it: so killing it right
before and right after every call is killing it at every line.
"""

from __future__ import annotations

from itertools import combinations, count
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_hooks.carry_out_bench import (
    TURN_S,
    Bench,
    Boundaries,
    Killed,
    Plan,
    at_once,
    begun_before_done,
    in_turn,
    run_with_kills,
    wanted,
)
from scheduler_hooks.fake_scheduler import FakeJob, raising
from tidegauge.core.incidents.actions import ActionKind, Decision, Outcome
from tidegauge_scheduler_hooks.ports import TemporaryError

NOTIFY, CAP, CHECKPOINT = wanted(ActionKind.NOTIFY), wanted(ActionKind.CAP), wanted(ActionKind.CHECKPOINT)
REQUEUE, HOLD, CANCEL = wanted(ActionKind.REQUEUE), wanted(ActionKind.HOLD), wanted(ActionKind.CANCEL)
OTHER_JOB = wanted(ActionKind.HOLD, "4712", number=2)
OTHER_INCIDENT = wanted(ActionKind.REQUEUE, number=3)


class Scenario(NamedTuple):
    """What is wanted, and what is to happen of it, whatever is killed on the way."""

    plan: Plan
    happen: tuple[Decision, ...]
    superseded: tuple[Decision, ...] = ()


SCENARIOS = {
    "notify": Scenario(at_once(NOTIFY), (NOTIFY,)),
    "checkpoint, then requeue": Scenario(in_turn(CHECKPOINT, REQUEUE), (CHECKPOINT, REQUEUE)),
    "cap": Scenario(at_once(CAP), (CAP,)),
    "hold": Scenario(at_once(HOLD), (HOLD,)),
    "cancel": Scenario(at_once(CANCEL), (CANCEL,)),
    "two jobs at once": Scenario(at_once(NOTIFY, CHECKPOINT, OTHER_JOB), (NOTIFY, CHECKPOINT, OTHER_JOB)),
    "two incidents of one job": Scenario(at_once(REQUEUE, OTHER_INCIDENT), (REQUEUE,), (OTHER_INCIDENT,)),
}


def bench() -> Bench:
    made = Bench(FakeJob("4711", can_save=True), FakeJob("4712"))
    made.world.looks_to_proof = 2
    return made


def boundaries(on: Bench, *kill_at: int) -> Boundaries:
    return Boundaries(kill_at, look=lambda: begun_before_done(on))


def run(scenario: Scenario, *kill_at: int, delayed: bool = False) -> Boundaries:
    """The scenario, killed at these boundaries, with everything that must hold at its end."""
    on = bench()
    on.scheduler.delayed = delayed
    crossed = boundaries(on, *kill_at)
    run_with_kills(on, scenario.plan, crossed)
    begun_before_done(on)
    assert {one.decision_id: on.outcome(one) for one in scenario.happen} == {
        one.decision_id: Outcome.DONE for one in scenario.happen
    }
    assert all(on.outcome(one) is Outcome.SUPERSEDED for one in scenario.superseded)
    assert sorted(name for name, _ in on.world.effects) == sorted(one.decision_id for one in scenario.happen)
    return crossed


@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_killed_at_any_one_boundary_everything_happens_once(scenario: Scenario, delayed: bool) -> None:
    for boundary in count(1):
        if run(scenario, boundary, delayed=delayed).kills == 0:
            break
    assert boundary > 8, "it was killed at too few boundaries to mean anything"


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_killed_at_any_two_boundaries_everything_happens_once(scenario: Scenario) -> None:
    last = run(scenario).passed
    for pair in combinations(range(1, last + 6), 2):
        run(scenario, *pair)


def test_carry_out_gives_up_an_action_that_crashes_the_process_each_time() -> None:
    on = bench()
    on.scheduler.before["requeue"] = [raising(Killed()) for _ in range(10)]
    run_with_kills(on, at_once(REQUEUE), boundaries(on))
    assert on.outcome(REQUEUE) is Outcome.FAILED
    assert "started 3 times" in on.detail(REQUEUE)
    assert on.effects(REQUEUE) == 0


ACTIONS = [NOTIFY, CAP, CHECKPOINT, REQUEUE, HOLD, CANCEL, OTHER_JOB, OTHER_INCIDENT]
FAULTS = st.fixed_dictionaries(
    {}, optional={action.value: st.lists(st.booleans(), max_size=3) for action in ActionKind}
)  # fmt: skip


@given(
    decisions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4, unique_by=lambda one: one.decision_id),
    kill_at=st.sets(st.integers(1, 80), max_size=5),
    faults=FAULTS,
    delayed=st.booleans(),
    paused_after=st.integers(0, 12),
)
def test_whatever_is_killed_or_fails_nothing_happens_twice_and_nothing_is_forgotten(
    decisions: list[Decision], kill_at: set[int], faults: dict[str, list[bool]], delayed: bool, paused_after: int
) -> None:
    on = bench()
    on.pause_s = on.now_s + paused_after * TURN_S
    on.scheduler.delayed = delayed
    for method, came_first in faults.items():
        on.scheduler.before[method] = [raising(TemporaryError("busy")) for first in came_first if not first]
        on.scheduler.after[method] = [raising(TemporaryError("no answer in time")) for first in came_first if first]
    run_with_kills(on, at_once(*decisions), boundaries(on, *kill_at))
    begun_before_done(on)
    assert all(on.outcome(one) is not None for one in decisions)
    stops = [name for name, action in on.world.effects if ActionKind(action).is_stop]
    assert sum("4711" in name for name in stops) <= 1, "one run is ended by one decision"
