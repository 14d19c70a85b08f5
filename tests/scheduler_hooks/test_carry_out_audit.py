"""An audit that is locked, full or away, and clocks that jump: no double action, no lost decision."""

from __future__ import annotations

import logging

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fake_node import FakeClock
from scheduler_hooks.carry_out_bench import (
    GRACE_S,
    TIMES,
    TURN_S,
    Bench,
    begun_before_done,
    wanted,
)
from scheduler_hooks.fake_scheduler import FakeJob
from tidegauge.core.incidents.actions import ActionKind, Outcome
from tidegauge.steady_clock import PolicyClock
from tidegauge_scheduler_hooks.carry_out import CarryOut
from tidegauge_scheduler_hooks.carry_out_steps import Steps

CAP = wanted(ActionKind.CAP)
REQUEUE = wanted(ActionKind.REQUEUE)


# An audit that is locked, full, or away


@pytest.mark.parametrize("action", list(ActionKind))
@pytest.mark.parametrize("method", ["unfinished", "begin"])
def test_carry_out_does_nothing_the_audit_cannot_record(action: ActionKind, method: str) -> None:
    bench = Bench()
    made = wanted(action)
    bench.decide(made)
    bench.audit.failing = {method}
    bench.tick(4)
    assert action.value not in bench.scheduler.calls
    bench.audit.failing = set()
    bench.finish()
    assert bench.outcome(made) is Outcome.DONE
    assert bench.effects(made) == 1


@pytest.mark.parametrize("action", list(ActionKind))
@pytest.mark.parametrize("after", [False, True], ids=["not written", "answer lost"])
def test_an_outcome_that_cannot_be_written_is_kept_and_the_scheduler_left_alone(
    action: ActionKind, after: bool
) -> None:
    bench = Bench()
    made = wanted(action)
    bench.decide(made)
    (bench.audit.failing_after if after else bench.audit.failing).add("finish")
    bench.tick(3)
    calls = list(bench.scheduler.calls)
    bench.tick(20)
    assert bench.scheduler.calls == calls
    assert bench.scheduler.calls.count(action.value) == 1
    if not after:
        (under_way,) = bench.carry_out.under_way()
        assert "not yet written to the audit: database is locked" in under_way.what
    bench.audit.failing, bench.audit.failing_after = set(), set()
    bench.finish()
    bench.tick()
    assert bench.outcome(made) is Outcome.DONE
    assert bench.carry_out.under_way() == ()
    assert bench.effects(made) == 1


@pytest.mark.parametrize("action", list(ActionKind))
def test_a_crash_while_the_outcome_cannot_be_written_does_nothing_twice(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    bench.decide(made)
    bench.audit.failing = {"finish"}
    bench.tick(3)
    bench.audit.failing = set()
    bench.restart()
    bench.finish()
    assert bench.outcome(made) is Outcome.DONE
    assert bench.effects(made) == 1


def test_a_lost_answer_to_begin_only_costs_a_beginning() -> None:
    bench = Bench()
    bench.decide(REQUEUE)
    bench.audit.failing_after = {"begin"}
    bench.tick()
    assert "requeue" not in bench.scheduler.calls
    assert "cannot be written to the audit" in bench.carry_out.under_way()[0].what
    bench.audit.failing_after = set()
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.DONE
    assert bench.audit.kept[REQUEUE.decision_id].starts == 2


def test_an_audit_that_cannot_be_written_is_not_tried_without_a_pause() -> None:
    bench = Bench()
    bench.decide(REQUEUE)
    bench.audit.failing = {"begin"}
    for _ in range(5):
        bench.carry_out.tick()
    assert bench.scheduler.calls == ["presence"]


def test_an_audit_that_is_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.decide(REQUEUE)
    bench.audit.failing = {"begin"}
    bench.tick(6)
    bench.audit.failing = {"unfinished"}
    bench.tick(6)
    assert len([entry for entry in caplog.records if entry.levelno == logging.ERROR]) == 2


def test_a_defect_in_the_audit_does_not_lose_the_outcome(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.decide(CAP)
    bench.audit.failing = {"finish"}
    bench.audit.error = TypeError("Object of type PosixPath is not JSON serializable")
    bench.tick(3)
    assert bench.outcome(CAP) is None
    bench.audit.failing = set()
    bench.finish()
    assert bench.outcome(CAP) is Outcome.DONE
    assert bench.scheduler.calls.count("cap") == 1
    assert len([entry for entry in caplog.records if entry.exc_info is not None]) == 1


METHODS = ["unfinished", "begin", "finish"]


AWAY_AT_EACH_BEGINNING_AND_AT_THE_END: list[tuple[set[str], set[str]]] = [
    (set(), {"begin"}), (set(), {"begin"}), ({"unfinished"}, set()), ({"finish"}, set()), (set(), set()),
]  # fmt: skip


@example(away=AWAY_AT_EACH_BEGINNING_AND_AT_THE_END, restarts={4}, action=ActionKind.NOTIFY)
@given(
    away=st.lists(st.tuples(st.sets(st.sampled_from(METHODS)), st.sets(st.sampled_from(METHODS[1:]))), max_size=12),
    restarts=st.sets(st.integers(0, 12), max_size=1),
    action=st.sampled_from(list(ActionKind)),
)
def test_whenever_the_audit_fails_nothing_happens_twice_and_nothing_is_lost(
    away: list[tuple[set[str], set[str]]], restarts: set[int], action: ActionKind
) -> None:
    bench = Bench()
    made = wanted(action)
    bench.decide(made)
    for turn, (failing, failing_after) in enumerate(away):
        if turn in restarts:
            bench.restart()
        bench.audit.failing, bench.audit.failing_after = failing, failing_after
        bench.tick()
        begun_before_done(bench)
    bench.audit.failing, bench.audit.failing_after = set(), set()
    bench.finish()
    assert bench.outcome(made) in (Outcome.DONE, Outcome.FAILED)
    if bench.outcome(made) is Outcome.DONE:
        assert bench.effects(made) == 1
    else:
        assert bench.effects(made) == 0 or "unknown whether it took effect" in bench.detail(made)
        assert bench.effects(made) <= 1


# Clocks that jump


def test_a_host_clock_that_is_set_neither_hastens_nor_delays_anything() -> None:
    for jump_s in (-86_400.0, 86_400.0):
        bench, host = Bench(), FakeClock()
        clock = PolicyClock(wall_s=host.unix_s, monotonic_s=host.monotonic_s)
        made = wanted(ActionKind.CHECKPOINT, decided_s=clock.now_s())
        bench.decide(made)
        bench.world.looks_to_proof = 10_000
        carry_out = on_clock(bench, clock, host)
        carry_out.tick()
        host.unix_offset_s += jump_s
        for _ in range(int(GRACE_S / TURN_S)):
            assert bench.outcome(made) is None
            host.pass_s(TURN_S)
            carry_out.tick()
        assert bench.outcome(made) is Outcome.NO_PROOF
        told = [deadline - made.decided_s - GRACE_S for deadline in bench.scheduler.deadlines]
        assert told[0] == pytest.approx(0.0)
        assert told[-1] == pytest.approx(jump_s), "the job's own clock was set as well"


def test_a_clock_set_back_over_a_restart_does_not_lengthen_a_grace() -> None:
    bench, host = Bench(), FakeClock()
    clock = PolicyClock(wall_s=host.unix_s, monotonic_s=host.monotonic_s)
    made = wanted(ActionKind.CHECKPOINT, decided_s=clock.now_s())
    bench.decide(made)
    bench.world.looks_to_proof = 10_000
    on_clock(bench, clock, host).tick()
    host.pass_s(40.0)
    newest_s = clock.now_s()
    host.unix_offset_s -= 86_400.0
    clock = PolicyClock(wall_s=host.unix_s, monotonic_s=host.monotonic_s, not_before_s=newest_s)
    carry_out = on_clock(bench, clock, host)
    for _ in range(11):
        assert bench.outcome(made) is None
        carry_out.tick()
        host.pass_s(TURN_S)
    assert bench.outcome(made) is Outcome.NO_PROOF


def test_a_clock_set_forward_over_a_restart_begins_nothing_and_loses_nothing() -> None:
    bench, host = Bench(FakeJob("4711"), FakeJob("4712")), FakeClock()
    clock = PolicyClock(wall_s=host.unix_s, monotonic_s=host.monotonic_s)
    begun = wanted(ActionKind.REQUEUE, decided_s=clock.now_s())
    waiting = wanted(ActionKind.HOLD, "4712", decided_s=clock.now_s())
    bench.decide(begun)
    on_clock(bench, clock, host).tick()
    bench.decide(waiting)
    host.unix_offset_s += 86_400.0
    clock = PolicyClock(wall_s=host.unix_s, monotonic_s=host.monotonic_s, not_before_s=clock.now_s())
    on_clock(bench, clock, host).tick()
    assert bench.outcome(begun) is Outcome.DONE
    assert bench.outcome(waiting) is Outcome.SUPERSEDED
    assert bench.effects(waiting) == 0


def on_clock(bench: Bench, clock: PolicyClock, host: FakeClock) -> CarryOut:
    return CarryOut(
        Steps(
            bench.audit,
            {"local": bench.scheduler},
            now_s=clock.now_s,
            wall_s=host.unix_s,
            held_back=lambda _: None,
            times=TIMES,
        ),
        submit=lambda call: call(),
    )
