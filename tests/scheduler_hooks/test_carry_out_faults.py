"""Schedulers that fail, cannot say where a job is, and lie: no double action, no lost decision, a clear state."""

from __future__ import annotations

import pytest

from scheduler_hooks.carry_out_bench import (
    START_S,
    TIMES,
    Bench,
    wanted,
)
from scheduler_hooks.fake_scheduler import FakeJob, raising
from tidegauge.core.incidents.actions import ActionKind, Outcome
from tidegauge_scheduler_hooks.ports import ChangedError, PermanentError, TemporaryError

REQUEUE = wanted(ActionKind.REQUEUE)
STOPS = [ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL]


# A scheduler that fails


@pytest.mark.parametrize("action", list(ActionKind))
def test_a_temporary_failure_is_tried_again(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    bench.scheduler.before[action.value] = [raising(TemporaryError("busy", retry_after_s=10.0))]
    bench.decide(made)
    bench.tick(5)
    assert bench.outcome(made) is None
    assert bench.world.effects == []
    bench.finish()
    assert bench.outcome(made) is Outcome.DONE
    assert bench.audit.kept[made.decision_id].starts == 2
    assert bench.effects(made) == 1


def test_no_adapter_makes_it_wait_for_ever() -> None:
    bench = Bench()
    bench.scheduler.before["requeue"] = [raising(TemporaryError("later", retry_after_s=1e9))]
    bench.decide(REQUEUE)
    bench.tick()
    bench.now_s += TIMES.longest_retry_s
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.DONE


@pytest.mark.parametrize("action", [action for action in ActionKind if action is not ActionKind.CHECKPOINT])
def test_carry_out_gives_up_after_three_temporary_failures(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    bench.scheduler.before[action.value] = [raising(TemporaryError("slurmctld is away")) for _ in range(10)]
    bench.decide(made)
    bench.finish()
    assert bench.outcome(made) is Outcome.FAILED
    assert bench.detail(made).startswith("started 3 times without success; last error: ")
    assert bench.detail(made).endswith("slurmctld is away")
    assert bench.world.effects == []


def test_beginnings_before_a_restart_count() -> None:
    bench = Bench()
    bench.scheduler.before["requeue"] = [raising(TemporaryError("busy")) for _ in range(10)]
    bench.decide(REQUEUE)
    for _ in range(3):
        bench.tick()
        bench.restart()
    bench.tick()
    assert bench.outcome(REQUEUE) is Outcome.FAILED
    assert bench.scheduler.calls.count("requeue") == 3


@pytest.mark.parametrize("action", STOPS)
def test_a_failure_after_it_happened_is_no_failure(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    bench.scheduler.after[action.value] = [raising(TemporaryError("no answer in time"))]
    bench.decide(made)
    bench.finish()
    assert bench.outcome(made) is Outcome.DONE
    assert bench.scheduler.calls.count(action.value) == 1


@pytest.mark.parametrize("action", STOPS)
def test_a_late_effect_of_the_last_attempt_is_seen(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    bench.scheduler.delayed = True
    bench.scheduler.after[action.value] = [
        raising(TemporaryError("no answer in time", retry_after_s=6.0)) for _ in "123"
    ]
    bench.decide(made)
    while len(bench.scheduler.after[action.value]) > 0:
        bench.tick()
    bench.scheduler.settle()
    bench.finish()
    assert bench.outcome(made) is Outcome.DONE
    assert bench.effects(made) == 1


def test_a_run_that_changed_in_the_midst_of_a_retry_may_be_our_own_doing() -> None:
    bench = Bench()

    def accepted_meanwhile() -> None:
        bench.scheduler.settle()
        raise ChangedError("job 4711 is in run 1 by now")

    bench.scheduler.delayed = True
    bench.scheduler.after["requeue"] = [raising(TemporaryError("no answer in time"))]
    bench.decide(REQUEUE)
    bench.tick()
    bench.scheduler.before["requeue"] = [accepted_meanwhile]
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.DONE
    assert bench.effects(REQUEUE) == 1


@pytest.mark.parametrize("action", list(ActionKind))
def test_carry_out_fails_at_once_on_a_permanent_error(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    bench.scheduler.before[action.value] = [raising(PermanentError("user ada may not do that"))]
    bench.decide(made)
    bench.tick()
    assert bench.outcome(made) is Outcome.FAILED
    assert bench.detail(made).endswith("user ada may not do that")


@pytest.mark.parametrize("method", ["presence", "requeue"])
def test_a_defect_in_an_adapter_ends_its_decision_and_no_other(method: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(FakeJob("4711"), FakeJob("4712"))
    bench.scheduler.before[method] = [raising(KeyError("JobState"))]
    other = wanted(ActionKind.CAP, "4712", number=2)
    bench.decide(REQUEUE, other)
    bench.tick()
    assert bench.outcome(REQUEUE) is Outcome.FAILED
    assert "KeyError: 'JobState'" in bench.detail(REQUEUE)
    assert bench.outcome(other) is Outcome.DONE
    assert [entry.exc_info is not None for entry in caplog.records] == [True]


# A scheduler that cannot be asked where a job is


def test_while_the_job_cannot_be_seen_nothing_is_begun() -> None:
    bench = Bench()
    bench.world.jobs["4711"].presence = "unknown"
    bench.decide(REQUEUE)
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.FAILED
    assert "does not report the state of job 4711 attempt 0" in bench.detail(REQUEUE)
    assert "requeue" not in bench.scheduler.calls
    assert bench.now_s > START_S + TIMES.expires_after_s


def test_carry_out_marks_a_started_action_unverified_if_its_run_is_not_visible() -> None:
    bench = Bench()
    bench.decide(REQUEUE)
    bench.tick()
    bench.restart()
    bench.scheduler.before["presence"] = [raising(TemporaryError("no answer", retry_after_s=5.0)) for _ in range(100)]
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.UNVERIFIED
    assert "no answer" in bench.detail(REQUEUE)
    assert bench.scheduler.calls.count("requeue") == 1


def test_an_accepted_action_outlives_a_scheduler_that_is_away_for_a_while() -> None:
    bench = Bench()
    bench.decide(REQUEUE)
    bench.tick()
    bench.scheduler.before["presence"] = [raising(TemporaryError("no answer")) for _ in range(5)]
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.DONE


# A scheduler that lies


@pytest.mark.parametrize("action", STOPS)
def test_a_yes_that_nothing_follows_is_unverified(action: ActionKind) -> None:
    bench = Bench()
    bench.scheduler.lies = frozenset({action})
    made = wanted(action)
    bench.decide(made)
    bench.finish()
    assert bench.outcome(made) is Outcome.UNVERIFIED
    assert bench.detail(made) == "accepted 30 s ago, but job 4711 attempt 0 is still running"
    assert bench.audit.kept[made.decision_id].finished_s == START_S + TIMES.verify_within_s
    assert bench.scheduler.calls.count(action.value) == 1


@pytest.mark.parametrize(("action", "presence"), [(ActionKind.REQUEUE, "gone"), (ActionKind.CANCEL, "replaced")])
def test_an_end_that_was_not_asked_for_is_not_called_done(action: ActionKind, presence: str) -> None:
    bench = Bench()
    bench.scheduler.lies = frozenset({action})
    made = wanted(action)
    bench.decide(made)
    bench.tick()
    bench.world.jobs["4711"].presence = presence
    bench.finish()
    assert bench.outcome(made) is Outcome.UNVERIFIED


def test_a_crash_and_an_end_that_was_not_asked_for_are_not_called_done() -> None:
    bench = Bench()
    bench.scheduler.lies = frozenset({ActionKind.REQUEUE})
    bench.decide(REQUEUE)
    bench.tick()
    bench.restart()
    bench.world.jobs["4711"].presence = "gone"
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.UNVERIFIED
    assert bench.detail(REQUEUE) == "already started, but job 4711 attempt 0 has ended"


def test_a_run_that_takes_long_to_end_is_waited_for_also_after_a_crash() -> None:
    bench = Bench()
    bench.scheduler.delayed = True
    bench.decide(REQUEUE)
    bench.tick()
    bench.world.jobs["4711"].presence = "stopping"
    bench.restart()
    bench.tick(3)
    assert bench.outcome(REQUEUE) is None
    bench.world.jobs["4711"].presence = "running"
    bench.scheduler.settle()
    bench.finish()
    assert bench.outcome(REQUEUE) is Outcome.DONE
