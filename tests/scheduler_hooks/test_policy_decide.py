"""How an incident is walked up a ladder: what waits for what, what is tried again, what a change in between does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from policy_runs import Run, policy
from sample_views import NOW_S
from scheduler_values import JOB, facts, incident, target
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents import Closure, IncidentState
from tidegauge.core.incidents.actions import CheckpointWay, GroupTarget, Outcome, RankTarget
from tidegauge.core.verdicts import Band, Severity
from tidegauge_scheduler_hooks.policy.decide import next_look_s
from tidegauge_scheduler_hooks.policy.models import Policy

LEAK = "[{action: notify}, {action: checkpoint, after: 1m}, {action: requeue}]"


def test_a_rung_waits_until_the_one_before_it_is_finished_and_its_time_has_passed() -> None:
    run = Run(policy(LEAK))
    assert run.at(0) == ["do notify"]
    assert run.at(500) == []
    run.finish(510)
    assert run.at(569) == []
    assert run.at(570) == ["do checkpoint"]
    assert run.at(571) == []
    run.finish(600)
    assert run.at(600) == ["do requeue"]


def test_a_ladder_that_is_walked_to_its_end_says_no_more() -> None:
    run = Run(policy("[{action: notify}, {action: cap}]"), of_job=facts(cap_fraction=0.5))
    assert run.until(300) == [(0, "do notify"), (0, "do cap")]


def test_decisions_are_named_after_incident_rule_rung_and_try() -> None:
    run = Run(policy("[{action: checkpoint, tries: 3}]"), number=12)
    run.at(0)
    run.finish(1, Outcome.NO_PROOF)
    run.at(100)
    assert [one.decision_id for one in run.decisions] == ["12:rule:0:1", "12:rule:0:2"]
    assert run.last.attempt == 2


def test_observe_walks_the_whole_ladder_and_does_nothing() -> None:
    run = Run(policy(LEAK, mode="observe"))
    assert run.at(0) == ["would notify"]
    assert run.at(60) == ["would checkpoint", "would requeue"]
    assert run.until(3600) == []


def test_warn_carries_out_words_and_says_what_else_would_be_done() -> None:
    run = Run(policy(LEAK, mode="warn"))
    assert run.at(0) == ["do notify"]
    assert run.at(300) == []
    run.finish(300)
    assert run.at(360) == ["would checkpoint", "would requeue"]


def test_policy_acts_on_observed_steps_once_its_mode_is_act() -> None:
    run = Run(policy(LEAK, mode="observe", warnings_before_stop=1))
    run.until(120)
    run.policy = policy(LEAK, warnings_before_stop=1)
    assert run.until(600) == [(0, "do notify"), (60, "do checkpoint"), (60, "do requeue")]
    assert len({one.decision_id for one in run.decisions}) == len(run.decisions)


def test_a_message_of_observe_is_no_warning_in_act() -> None:
    ladder = "[{action: notify}, {action: cancel, without_checkpoint: true}]"
    run = Run(policy(ladder, mode="observe", warnings_before_stop=1))
    assert run.until(60) == [(0, "would notify"), (0, "withheld cancel: warnings"), (60, "would cancel")]
    run.policy = policy("[{action: cancel, without_checkpoint: true}]", warnings_before_stop=1)
    assert run.at(120) == ["withheld cancel: warnings"]


def test_a_rung_before_the_oom_waits_until_that_is_near() -> None:
    run = Run(policy("[{action: cap, before_oom: 10m}]"), of_job=facts(cap_fraction=0.5))
    assert run.at(239) == []  # not before 840 s from the start
    assert run.at(240) == ["do cap"]


def test_a_rung_before_the_oom_is_not_due_while_that_is_not_known() -> None:
    run = Run(policy("[{action: cap, before_oom: 10m}]"), of_job=facts(cap_fraction=0.5), seconds_to_oom=None)
    assert run.until(36_000, step=3600) == []


def test_a_failed_try_is_repeated_after_a_while_and_then_given_up() -> None:
    run = Run(policy("[{action: checkpoint, tries: 2, retry_after: 5m}, {action: requeue}]"))
    assert run.until(3600, outcome=Outcome.NO_PROOF) == [
        (0, "do checkpoint"), (300, "do checkpoint"), (600, "withheld checkpoint: tries"),
    ]  # fmt: skip
    assert run.last.reason == "2 of 2 tries failed"


def test_without_proof_there_is_no_requeue() -> None:
    run = Run(policy("[{action: checkpoint, tries: 1}, {action: requeue}]"))
    run.at(0)
    run.finish(1, Outcome.FAILED)
    assert run.until(3600) == [(120, "withheld checkpoint: tries")]


def test_a_requeue_that_wants_no_checkpoint_comes_after_one_that_failed_or_cannot_be_asked() -> None:
    ladder = "[{action: checkpoint, tries: 1}, {action: requeue, without_checkpoint: true}]"
    run = Run(policy(ladder))
    run.at(0)
    run.finish(1, Outcome.NO_PROOF)
    assert run.at(60) == ["do requeue"]
    run = Run(policy(ladder), of_job=facts(checkpoint=None))
    assert run.at(0) == ["withheld checkpoint: no_checkpoint", "do requeue"]


@pytest.mark.parametrize("action", ["notify", "annotate", "cap"])
def test_a_ladder_goes_on_past_words_and_caps_that_fail(action: str) -> None:
    run = Run(policy(f"[{{action: {action}, tries: 1}}, {{action: notify}}]"), of_job=facts(cap_fraction=0.5))
    run.at(0)
    run.finish(0, Outcome.FAILED)
    assert run.at(0) == ["do notify"]


def test_policy_does_not_count_an_action_stopped_by_a_pause_as_a_try() -> None:
    run = Run(policy("[{action: checkpoint, tries: 1, retry_after: 60}]"))
    run.at(0)
    run.finish(10, Outcome.STOPPED)
    assert run.at(69) == []
    assert run.at(70) == ["do checkpoint"]


def test_an_old_checkpoint_is_asked_for_anew_before_the_job_is_ended() -> None:
    ladder = "[{action: checkpoint}, {action: requeue, before_oom: 5m}]"
    run = Run(policy(ladder, proof_max_age="2m"))
    run.at(0)
    run.finish(10)
    assert run.at(540) == ["do checkpoint"]  # 300 s before the end; the first is 530 s old
    run.finish(560)
    assert run.at(560) == ["do requeue"]
    assert [one.decision_id for one in run.decisions] == ["1:rule:0:1", "1:rule:0:2", "1:rule:1:1"]


def test_a_checkpoint_that_cannot_be_renewed_ends_the_ladder() -> None:
    run = Run(policy("[{action: checkpoint, tries: 1}, {action: requeue, before_oom: 5m}]", proof_max_age="2m"))
    run.at(0)
    run.finish(10)
    run.at(540)
    run.finish(550, Outcome.NO_PROOF)
    assert run.at(620) == ["withheld checkpoint: tries"]


def test_the_checkpoint_of_another_run_of_the_job_is_no_proof() -> None:
    run = Run(policy("[{action: checkpoint}, {action: requeue, after: 1m}]"))
    run.at(0)
    run.finish(10)
    run.facts = replace(run.facts, target=target(incarnation="1@1800000060.0"))
    assert run.at(70) == ["do checkpoint"]


def beside(pid: int) -> GroupTarget:
    return GroupTarget(JOB._replace(group="step 1"), "step 1", (RankTarget(0, "engine-0", ProcessId(pid, 5), 0),))


def test_a_checkpoint_that_is_not_the_state_of_all_ranks_that_live_now_is_no_proof() -> None:
    run = Run(policy("[{action: checkpoint}, {action: requeue, after: 1m}]"))
    run.at(0)
    run.finish(10)
    run.facts = replace(run.facts, target=target(others=(beside(7),)))
    assert run.at(70) == ["do checkpoint"], "another launch began in the job, and has not saved"
    run.finish(80)
    assert run.at(140) == ["do requeue"]


def test_a_launch_that_ended_since_the_checkpoint_does_not_spoil_it() -> None:
    run = Run(policy("[{action: checkpoint}, {action: requeue, after: 1m}]"))
    run.facts = replace(run.facts, target=target(others=(beside(7),)))
    run.at(0)
    run.finish(10)
    run.facts = replace(run.facts, target=target())
    assert run.at(70) == ["do requeue"]


def test_a_job_with_another_launch_is_not_ended_without_a_checkpoint_whatever_the_rung_says() -> None:
    run = Run(policy("[{action: checkpoint, tries: 1}, {action: requeue, without_checkpoint: true}]"))
    run.facts = replace(
        run.facts, checkpoint=None, groups_without_checkpoint=("step 1",), target=target(others=(beside(7),))
    )
    assert run.until(3600) == [(0, "withheld checkpoint: no_checkpoint")]
    run.facts = facts(checkpoint=None)
    assert run.at(3660) == ["do requeue"], "alone it may be"


def test_a_held_back_decision_is_written_once_and_made_when_the_brake_lets_go() -> None:
    run = Run(policy("[{action: cap}]", min_age="5m"), of_job=facts(cap_fraction=0.5))
    assert run.until(600) == [(0, "withheld cap: min_age"), (300, "do cap")]


def test_a_rung_is_written_once_for_each_brake_that_holds_it() -> None:
    run = Run(policy("[{action: cap}]", min_age="5m"), of_job=facts(cap_fraction=0.5))
    run.at(0)
    run.facts = replace(run.facts, stale=True)
    assert run.until(120) == [(0, "withheld cap: stale")]
    run.facts = replace(run.facts, stale=False)
    assert run.until(240) == []


def two_rules(**brakes: object) -> Policy:
    ladder = [{"action": "notify"}, {"action": "cancel", "without_checkpoint": True, "after": "1m"}]
    return Policy.model_validate(
        {
            "version": 1,
            "mode": "act",
            "brakes": {"min_age": 0, "warning_interval": 60, **brakes},
            "rules": [
                {"name": "severe", "when": {"severity": "critical"}, "ladder": ladder},
                {"name": "mild", "ladder": [{"action": "notify"}]},
            ],
        }
    )


def test_a_new_rule_begins_at_its_first_rung_and_warnings_already_given_count() -> None:
    run = Run(two_rules(warnings_before_stop=2), severity=Severity.WARNING)
    assert run.until(60) == [(0, "do notify")]
    run.incident = replace(run.incident, severity=Severity.CRITICAL)
    run.at(120)
    run.finish(120)
    assert run.last.decision_id == "1:severe:0:1"
    assert run.at(180) == ["do cancel"]


def test_a_rule_that_is_left_and_comes_back_goes_on_where_it_was() -> None:
    run = Run(two_rules(warnings_before_stop=1), severity=Severity.CRITICAL)
    run.at(0)
    run.finish(0)
    run.incident = replace(run.incident, severity=Severity.WARNING)
    run.until(60)
    run.incident = replace(run.incident, severity=Severity.CRITICAL)
    assert run.at(120) == ["do cancel"]


def test_a_rung_that_was_edited_meanwhile_is_not_taken_as_done() -> None:
    run = Run(policy("[{action: notify}, {action: notify}, {action: hold, without_checkpoint: true, after: 1h}]"))
    run.until(0)
    run.policy = policy("[{action: notify}, {action: annotate}]")
    assert run.at(60) == ["do annotate"]
    assert run.last.decision_id == "1:rule:1:2", "the first try's name is taken"


def test_policy_decides_nothing_more_for_a_run_that_it_ended() -> None:
    run = Run(policy("[{action: hold, without_checkpoint: true}]"))
    run.until(0)
    run.incident = incident(number=2, opened_unix_s=NOW_S)
    assert run.until(60) == []
    run.facts = replace(run.facts, target=target(incarnation="1@1800000060.0"))
    assert run.at(60) == ["do hold"]


def test_after_a_requeue_that_would_be_a_run_that_goes_on_is_still_told_of_another_incident() -> None:
    run = Run(policy("[{action: notify}, {action: requeue, without_checkpoint: true}]", mode="warn"))
    assert run.until(0) == [(0, "do notify"), (0, "would requeue")]
    run.incident = incident(number=2, opened_unix_s=NOW_S)
    assert run.until(60) == [(0, "do notify")]


def test_another_incident_of_the_job_waits_until_the_first_ones_action_is_over() -> None:
    run = Run(policy("[{action: checkpoint}]"))
    run.at(0)
    run.incident = incident(number=2, opened_unix_s=NOW_S)
    assert run.at(60) == []
    run.finish(60)
    assert run.at(60) == ["do checkpoint"]


def test_a_job_that_was_requeued_too_often_is_held_instead() -> None:
    run = Run(policy("[{action: requeue, without_checkpoint: true}]", requeues_per_job=1))
    run.until(0)
    later = run.incident.key.job._replace(attempt=1)
    run.incident = incident(job=later, number=2, opened_unix_s=NOW_S + 60)
    run.facts = facts(later, target=target(later, incarnation="1@x"))
    assert run.at(60) == ["do hold"]
    assert run.last.decision_id == "2:rule:0:1"
    assert "instead of another requeue: 1 already made" in run.last.reason


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.FAILED, "do hold"), (Outcome.UNVERIFIED, "do hold"),
        (Outcome.SUPERSEDED, "do requeue"), (Outcome.STOPPED, "do requeue"),
    ],
)  # fmt: skip
def test_a_requeue_that_may_have_been_done_counts(outcome: Outcome, expected: str) -> None:
    run = Run(policy("[{action: requeue, without_checkpoint: true}]", requeues_per_job=1))
    run.at(0)
    run.finish(0, outcome)
    assert run.at(60) == [expected]


def test_requeues_of_long_ago_do_not_count() -> None:
    run = Run(policy("[{action: requeue, without_checkpoint: true}]", requeues_per_job=1, requeues_within="1d"))
    run.until(0)
    later = run.incident.key.job._replace(attempt=1)
    run.incident = incident(job=later, number=2, opened_unix_s=NOW_S + 86_400)
    run.facts = facts(later, target=target(later, incarnation="1@x"))
    assert run.at(86_400) == ["do requeue"]


def test_a_closed_incident_is_left_alone() -> None:
    run = Run(policy(LEAK), state=IncidentState.CLOSED, closure=Closure.RECOVERED)
    assert run.until(60) == []


def test_an_incident_that_no_rule_matches_is_left_alone() -> None:
    assert Run(policy(LEAK, when="{cause: fragmentation}")).until(60) == []


def test_a_decision_says_what_carrying_it_out_reads() -> None:
    ladder = (
        "[{action: notify, text: hello}, {action: annotate}, {action: cap}, {action: checkpoint, grace: 90s},"
        " {action: requeue, alloc_conf: {expandable_segments: true}, environ: {A: b}}]"
    )
    of_job = facts(cap_fraction=0.25, cap_explanation="a quarter", checkpoint=CheckpointWay.SIGNAL)
    run = Run(policy(ladder), of_job=of_job)
    run.until(0)
    assert [one.parameters for one in run.decisions[2:4]] == [
        {"fraction": 0.25, "explanation": "a quarter"},
        {"grace_s": 90.0, "way": "signal"},
    ]
    assert run.decisions[1].parameters["text"].startswith("tidegauge incident 1: Rank 1 of job 4711 leaks")
    requeue = run.decisions[4].parameters
    assert requeue["alloc_conf"] == {"expandable_segments": "True"}
    assert requeue["environ"] == {"A": "b"}
    assert requeue["reason"] == run.decisions[4].reason
    run = Run(policy("[{action: hold, without_checkpoint: true}]"))
    run.at(0)
    assert run.last.parameters == {"reason": run.last.reason}


def next_look(run: Run, second: float) -> float:
    """In seconds since the incident was opened."""
    return next_look_s(run.incident, run.facts, run.policy, run.state, now_s=NOW_S + second) - NOW_S


def test_the_next_look_is_when_time_alone_may_change_something() -> None:
    ladder = "[{action: notify}, {action: cap, after: 5m}, {action: notify, before_oom: 10m}]"
    run = Run(policy(ladder, min_age="6m"), of_job=facts(cap_fraction=0.5), seconds_to_oom=Band(1500, 1600, 1700))
    run.until(0)
    assert next_look(run, 0) == 300.0
    run.at(300)
    assert run.last.brake == "min_age"
    assert next_look(run, 300) == 360.0
    run.until(360)
    assert next_look(run, 360) == 900.0


def test_there_is_no_next_look_for_what_only_a_person_or_the_job_can_change() -> None:
    run = Run(policy("[{action: cap}]"), of_job=facts(cap_fraction=0.5, stale=True))
    assert run.at(0) == ["withheld cap: stale"]
    assert math.isinf(next_look(run, 0))


def test_policy_state_forgets_old_incidents_unless_an_action_is_under_way() -> None:
    run = Run(policy("[{action: notify}]"))
    run.until(0)
    assert run.state.forget(NOW_S + 1, open_incidents=[1]) is run.state
    assert run.state.forget(NOW_S + 1, open_incidents=[]).marks == {}
    run = Run(policy("[{action: notify}]"))
    run.at(0)
    assert run.state.forget(NOW_S + 1, open_incidents=[]) is run.state, "it is under way"
