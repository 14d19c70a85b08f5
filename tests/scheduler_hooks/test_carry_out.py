"""How a decision is carried out when nothing is in its way but policy, people and time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_hooks.carry_out_bench import GRACE_S, START_S, TURN_S, Bench, of_user, wanted
from scheduler_hooks.fake_scheduler import FakeJob, raising
from scheduler_values import target
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import ActionKind, Outcome
from tidegauge_scheduler_hooks.ports import TemporaryError

NOTIFY, CHECKPOINT, CAP = wanted(ActionKind.NOTIFY), wanted(ActionKind.CHECKPOINT), wanted(ActionKind.CAP)
REQUEUE = wanted(ActionKind.REQUEUE)
STOPS = [ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL]
ACTING = [*STOPS, ActionKind.CAP, ActionKind.CHECKPOINT]


@pytest.mark.parametrize("action", [ActionKind.NOTIFY, ActionKind.ANNOTATE])
def test_telling_somebody_is_done_at_once(action: ActionKind) -> None:
    bench = Bench()
    told = wanted(action)
    bench.decide(told)
    bench.tick()
    assert bench.outcome(told) is Outcome.DONE
    assert bench.world.jobs["4711"].messages == [told.parameters["text"]]


@pytest.mark.parametrize("action", STOPS)
def test_a_run_is_ended_between_two_looks(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    bench.decide(made)
    bench.finish()
    assert bench.outcome(made) is Outcome.DONE
    assert bench.scheduler.calls == ["presence", action.value, "presence"]


def test_a_requeue_hands_over_the_changes() -> None:
    bench = Bench()
    bench.decide(
        wanted(ActionKind.REQUEUE, parameters={"alloc_conf": {"expandable_segments": "True"}, "environ": {"A": "b"}})
    )
    bench.finish()
    assert bench.world.jobs["4711"].environ == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "A": "b"}


def test_a_cap_says_what_was_set() -> None:
    bench = Bench()
    bench.decide(CAP)
    bench.tick()
    assert bench.outcome(CAP) is Outcome.DONE
    assert bench.detail(CAP) == "fraction 0.5 on 1 rank"


@pytest.mark.parametrize("action", ACTING)
@pytest.mark.parametrize("presence", ["replaced", "held", "gone", "stopping"])
def test_a_run_that_is_over_is_left_alone(action: ActionKind, presence: str) -> None:
    bench = Bench(FakeJob("4711", can_save=True, presence=presence))
    made = wanted(action)
    bench.decide(made)
    bench.tick()
    assert bench.outcome(made) is Outcome.SUPERSEDED
    assert "job 4711 attempt 0" in bench.detail(made)
    assert bench.scheduler.calls == ["presence"]


def test_a_run_that_ends_between_look_and_call_is_left_alone() -> None:
    bench = Bench()
    bench.scheduler.before["requeue"] = [lambda: setattr(bench.world.jobs["4711"], "starts", 2)]
    bench.decide(REQUEUE)
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.SUPERSEDED
    assert bench.world.effects == []


def test_a_decision_for_a_scheduler_without_adapter_fails() -> None:
    bench = Bench()
    stranger = replace(REQUEUE, target=target(scheduler="pbs"))
    bench.decide(stranger)
    bench.tick()
    assert bench.outcome(stranger) is Outcome.FAILED
    assert "'pbs'" in bench.detail(stranger)


# Checkpoints


def test_a_checkpoint_is_asked_for_and_then_looked_at_until_it_is_proven() -> None:
    bench = Bench()
    bench.world.looks_to_proof = 3
    bench.decide(CHECKPOINT)
    bench.finish()
    assert bench.outcome(CHECKPOINT) is Outcome.DONE
    assert bench.detail(CHECKPOINT) == "1 of 1 ranks saved at step 412"
    assert bench.scheduler.calls == ["presence", *["checkpoint"] * 4]
    assert bench.audit.kept[CHECKPOINT.decision_id].starts == 1


def test_a_job_that_cannot_save_fails_the_checkpoint() -> None:
    bench = Bench(FakeJob("4711", can_save=False))
    bench.decide(CHECKPOINT)
    bench.tick()
    assert bench.outcome(CHECKPOINT) is Outcome.FAILED
    assert bench.detail(CHECKPOINT) == "no rank has a callback"


def test_without_proof_within_the_grace_there_is_none() -> None:
    bench = Bench()
    bench.world.looks_to_proof = 10_000
    bench.decide(CHECKPOINT)
    bench.finish()
    assert bench.outcome(CHECKPOINT) is Outcome.NO_PROOF
    assert bench.audit.kept[CHECKPOINT.decision_id].finished_s == START_S + GRACE_S
    assert "0 of 1 ranks saved" in bench.detail(CHECKPOINT)


def test_a_proof_at_the_last_moment_counts() -> None:
    bench = Bench()
    bench.world.looks_to_proof = int(GRACE_S / TURN_S)
    bench.decide(CHECKPOINT)
    bench.finish()
    assert bench.outcome(CHECKPOINT) is Outcome.DONE


def test_the_deadline_that_a_job_is_told_is_on_its_own_clock_and_survives_a_restart() -> None:
    bench = Bench()
    bench.wall_ahead_s = 1_000.0
    bench.world.looks_to_proof = 10_000
    bench.decide(CHECKPOINT)
    bench.tick(5)
    bench.restart()
    bench.finish()
    assert bench.outcome(CHECKPOINT) is Outcome.NO_PROOF
    assert bench.audit.kept[CHECKPOINT.decision_id].finished_s == START_S + GRACE_S
    assert set(bench.scheduler.deadlines) == {START_S + GRACE_S + 1_000.0}


def test_no_answer_to_a_look_is_not_the_end_of_a_checkpoint() -> None:
    bench = Bench()
    bench.world.looks_to_proof = 2
    bench.decide(CHECKPOINT)
    bench.tick()
    bench.scheduler.before["checkpoint"] = [raising(TemporaryError("no answer", retry_after_s=4.0))]
    bench.finish()
    assert bench.outcome(CHECKPOINT) is Outcome.DONE
    assert bench.audit.kept[CHECKPOINT.decision_id].starts == 1


def test_a_rank_that_never_answers_leaves_no_proof() -> None:
    bench = Bench()
    bench.decide(CHECKPOINT)
    bench.scheduler.before["checkpoint"] = [raising(TemporaryError("no answer", retry_after_s=45.0)) for _ in range(5)]
    bench.finish()
    assert bench.outcome(CHECKPOINT) is Outcome.NO_PROOF
    assert bench.audit.kept[CHECKPOINT.decision_id].finished_s == START_S + GRACE_S


@pytest.mark.parametrize("restarts", [False, True])
def test_a_run_that_ends_while_it_saves_leaves_no_proof(restarts: bool) -> None:
    bench = Bench()
    bench.world.looks_to_proof = 10_000
    bench.decide(CHECKPOINT)
    bench.tick(3)
    bench.world.jobs["4711"].presence = "gone"
    if restarts:
        bench.restart()
    bench.tick()
    assert bench.outcome(CHECKPOINT) is Outcome.NO_PROOF


def test_a_run_that_ends_while_a_cap_is_left_begun_leaves_it_unverified() -> None:
    bench = Bench()
    bench.decide(CAP)
    bench.scheduler.before["cap"] = [raising(TemporaryError("no answer in time"))]
    bench.tick()
    bench.world.jobs["4711"].presence = "gone"
    bench.finish()
    assert bench.outcome(CAP) is Outcome.UNVERIFIED
    assert bench.detail(CAP) == "already started, but job 4711 attempt 0 has ended"


# Brakes between the decision and its turn


@pytest.mark.parametrize("action", ACTING)
def test_carry_out_stops_a_held_action_before_any_call(action: ActionKind) -> None:
    bench = Bench()
    bench.held = "actions are paused"
    made = wanted(action)
    bench.decide(made)
    bench.tick()
    assert bench.outcome(made) is Outcome.STOPPED
    assert bench.detail(made) == "actions are paused"
    assert bench.scheduler.calls == []


def test_a_pause_that_comes_during_the_look_still_holds() -> None:
    bench = Bench()
    bench.scheduler.before["presence"] = [lambda: setattr(bench, "held", "actions are paused")]
    bench.decide(REQUEUE)
    bench.tick()
    assert bench.outcome(REQUEUE) is Outcome.STOPPED
    assert bench.world.effects == []


def test_a_pause_does_not_hide_what_was_done_before_it() -> None:
    bench = Bench()
    bench.decide(REQUEUE)
    bench.tick()
    bench.held = "actions are paused"
    bench.restart()
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.DONE


def test_a_pause_keeps_what_a_crash_left_from_being_asked_for_again() -> None:
    bench = Bench()
    bench.scheduler.lies = frozenset({ActionKind.REQUEUE})
    bench.decide(REQUEUE)
    bench.tick()
    bench.held = "actions are paused"
    bench.restart()
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.UNVERIFIED
    assert "may still take effect" in bench.detail(REQUEUE)
    assert "actions are paused" in bench.detail(REQUEUE)
    assert bench.scheduler.calls.count("requeue") == 1


def test_a_pause_does_not_end_the_wait_for_a_proof() -> None:
    bench = Bench()
    bench.world.looks_to_proof = 3
    bench.decide(CHECKPOINT)
    bench.tick()
    bench.held = "actions are paused"
    bench.finish()
    assert bench.outcome(CHECKPOINT) is Outcome.DONE


# Age


@pytest.mark.parametrize("action", [ActionKind.NOTIFY, *ACTING])
def test_a_decision_whose_turn_comes_too_late_is_not_begun(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    bench.decide(made)
    bench.now_s += 3_600.0
    bench.tick()
    assert bench.outcome(made) is Outcome.SUPERSEDED
    assert "too old to act on" in bench.detail(made)
    assert bench.scheduler.calls == []


def test_a_checkpoint_whose_grace_is_over_is_not_asked_for() -> None:
    bench = Bench()
    bench.decide(CHECKPOINT)
    bench.now_s += GRACE_S + 1.0
    bench.tick()
    assert bench.outcome(CHECKPOINT) is Outcome.SUPERSEDED
    assert bench.world.effects == []


def test_carry_out_finishes_a_started_action_at_any_age() -> None:
    bench = Bench()
    bench.decide(REQUEUE)
    bench.tick()
    bench.now_s += 86_400.0
    bench.restart()
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.DONE


# Several at once


def test_carry_out_does_one_action_of_a_job_at_a_time_oldest_first() -> None:
    bench = Bench()
    bench.world.looks_to_proof = 4
    late = wanted(ActionKind.CAP, number=2, decided_s=START_S + 1.0)
    bench.decide(late, CHECKPOINT)
    bench.tick(3)
    assert "cap" not in bench.scheduler.calls
    bench.finish()
    assert [action for _, action in bench.world.effects] == ["checkpoint", "cap"]


def test_carry_out_finishes_started_actions_before_older_ones() -> None:
    bench = Bench()
    bench.world.looks_to_proof = 4
    bench.decide(CHECKPOINT)
    bench.tick()
    bench.restart()
    bench.decide(wanted(ActionKind.HOLD, number=2, decided_s=START_S - 1.0))
    bench.tick()
    assert "hold" not in bench.scheduler.calls
    bench.finish()
    assert [action for _, action in bench.world.effects] == ["checkpoint", "hold"]


def test_telling_the_owner_and_other_jobs_do_not_wait() -> None:
    bench = Bench(FakeJob("4711", can_save=True), FakeJob("4712"))
    bench.world.looks_to_proof = 10_000
    other = wanted(ActionKind.CAP, "4712", number=2)
    bench.decide(CHECKPOINT, NOTIFY, other)
    bench.tick()
    assert bench.outcome(CHECKPOINT) is None
    assert bench.outcome(NOTIFY) is Outcome.DONE
    assert bench.outcome(other) is Outcome.DONE


def test_another_attempt_of_a_job_is_the_same_job() -> None:
    bench = Bench()
    bench.world.looks_to_proof = 10_000
    later = replace(wanted(ActionKind.HOLD, number=2), target=target(JobKey("4711", 1, 1001), incarnation="1@x"))
    bench.decide(CHECKPOINT, later)
    bench.tick(2)
    assert bench.outcome(later) is None
    bench.finish()
    assert bench.outcome(later) is Outcome.SUPERSEDED


# What people see


def test_carry_out_under_way_describes_the_progress() -> None:
    bench = Bench(FakeJob("4711", can_save=True), FakeJob("4712"), FakeJob("4713"))
    bench.world.looks_to_proof = 10_000
    bench.scheduler.lies = frozenset({ActionKind.HOLD})
    bench.scheduler.before["cap"] = [raising(TemporaryError("busy", retry_after_s=10.0))]
    hold = wanted(ActionKind.HOLD, "4712", number=2)
    cap = of_user(wanted(ActionKind.CAP, "4713", number=3), 2001)
    bench.decide(CHECKPOINT, hold, cap)
    bench.tick()
    assert {one.decision_id: one.what for one in bench.carry_out.under_way()} == {
        CHECKPOINT.decision_id: "waiting for proof of a checkpoint, 58 s left: 0 of 1 ranks saved",
        hold.decision_id: (
            "accepted, not yet confirmed, 28 s left: hold of job 4712 attempt 0 accepted by the scheduler"
        ),
        cap.decision_id: "retry in 8 s: busy",
    }
    assert {one.since_s for one in bench.carry_out.under_way()} == {START_S}
    bench.finish()
    assert bench.carry_out.under_way() == ()
