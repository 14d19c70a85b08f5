"""What holds for any policy and any course of events: the reasons why an admin may switch it on."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given

from policy_worlds import EDITS, JOBS, MODES, Turn, World, ask_again, courses, hasty_policies, play, policies
from tidegauge.core.incidents.actions import ActionKind, Decision, Disposition, Outcome
from tidegauge_scheduler_hooks.policy.models import Policy
from tidegauge_scheduler_hooks.policy.state import PolicyState

HOUR_S = 3600.0

DO, WOULD, WITHHELD = Disposition.DO, Disposition.WOULD, Disposition.WITHHELD


def delivered(world: World, decision: Decision, action: ActionKind) -> list[float]:
    """When decisions of this kind on the same incident were done before ``decision`` was made."""
    times: list[float] = []
    for record in world.records.values():
        if record.decision is decision:
            return sorted(times)
        same = record.decision.incident.number == decision.incident.number and record.decision.action is action
        if same and record.decision.disposition is DO and record.outcome is Outcome.DONE:
            assert record.finished_s is not None
            if record.finished_s <= decision.decided_s:
                times.append(record.finished_s)
    raise AssertionError("the decision is not in the audit")


def at_most(decisions: Iterable[Decision], limit: int, window_s: float = HOUR_S) -> bool:
    """Whether there are never more than ``limit`` of them within a window."""
    times = [one.decided_s for one in decisions]
    return all(sum(end - window_s < at <= end for at in times) <= limit for end in times)


@given(policies("act") | hasty_policies(), courses())
def test_limits_are_never_exceeded(policy: Policy, course: list[Turn]) -> None:
    done = play(policy, course).decisions(DO, acting=True)
    brakes = policy.brakes
    assert at_most(done, brakes.actions_per_hour)
    for uid in {one.target.job.uid for one in done}:
        assert at_most((one for one in done if one.target.job.uid == uid), brakes.actions_per_user_per_hour)
    for job in range(JOBS):
        of_job = [one for one in done if one.target.job.job_id == f"job{job}"]
        assert at_most(of_job, brakes.actions_per_job_per_hour)


@given(policies("observe"), courses())
def test_policy_in_observe_keeps_to_the_limits(policy: Policy, course: list[Turn]) -> None:
    would = play(policy, course).decisions(WOULD, acting=True)
    assert at_most(would, policy.brakes.actions_per_hour)
    for job in range(JOBS):
        of_job = [one for one in would if one.target.job.job_id == f"job{job}"]
        assert at_most(of_job, policy.brakes.actions_per_job_per_hour)


@given(policies("act") | hasty_policies(), courses())
def test_a_job_is_requeued_no_more_often_than_it_may_be(policy: Policy, course: list[Turn]) -> None:
    world = play(policy, course)
    requeues = [
        one
        for one in world.decisions(DO)
        if one.action is ActionKind.REQUEUE
        and world.records[one.decision_id].outcome not in (Outcome.SUPERSEDED, Outcome.STOPPED)
    ]
    for job in range(JOBS):
        of_job = [one for one in requeues if one.target.job.job_id == f"job{job}"]
        assert at_most(of_job, policy.brakes.requeues_per_job, policy.brakes.requeues_within)


@given(policies("act"), courses(*MODES))
def test_an_exempt_job_is_never_acted_on(policy: Policy, course: list[Turn]) -> None:
    for one in play(policy, course).decisions(DO, acting=True):
        assert one.facts.scheduler_facts is not None
        assert not one.facts.scheduler_facts.exempt
        assert one.facts.user_name not in policy.brakes.exempt.users


@given(policies("act"), courses(*MODES))
def test_policy_never_acts_on_stale_recovering_or_paused_jobs(policy: Policy, course: list[Turn]) -> None:
    world = play(policy, course)
    for one in world.decisions(DO, acting=True):
        assert one.facts.running
        assert not one.facts.stale
        assert one.incident.severity.level >= policy.brakes.min_severity.level
        assert one.decided_s - one.incident.opened_unix_s >= policy.brakes.min_age
    for one in world.decisions(DO):
        assert one.incident.state.value == "open"
        assert world.states_when_decided[one.decision_id].paused is None


@given(policies("observe", "warn", "act"), courses(*MODES, *EDITS))
def test_observe_does_nothing_and_warn_only_talks(policy: Policy, course: list[Turn]) -> None:
    for one in play(policy, course).decisions(DO):
        assert one.mode == "act" or (one.mode == "warn" and not one.action.is_acting)


@given(policies("act"), courses(*MODES))
def test_no_job_is_ended_without_its_warnings(policy: Policy, course: list[Turn]) -> None:
    world = play(policy, course)
    interval_s, wanted = policy.brakes.warning_interval, policy.brakes.warnings_before_stop
    for stop in world.decisions(DO):
        if stop.action.is_stop and wanted:
            counted: list[float] = []
            for at_s in delivered(world, stop, ActionKind.NOTIFY):
                if not counted or at_s - counted[-1] >= interval_s:
                    counted.append(at_s)
            assert len(counted) >= wanted
            assert stop.decided_s - counted[wanted - 1] >= interval_s


@given(policies("act"), courses(*MODES))
def test_no_job_is_ended_without_a_fresh_proven_checkpoint_unless_that_is_allowed(
    policy: Policy, course: list[Turn]
) -> None:
    world = play(policy, course)
    ladders = {rule.name: rule.ladder for rule in policy.rules}
    for stop in world.decisions(DO):
        if stop.action.is_stop and not ladders[stop.rule][stop.rung].model_dump()["without_checkpoint"]:
            proven = delivered(world, stop, ActionKind.CHECKPOINT)
            assert proven
            assert stop.decided_s - proven[-1] <= policy.brakes.proof_max_age


@given(policies("act"), courses(*MODES))
def test_no_job_is_started_again_that_may_not_be(policy: Policy, course: list[Turn]) -> None:
    for one in play(policy, course).decisions(DO):
        if one.action is ActionKind.REQUEUE:
            assert one.facts.scheduler_facts is not None
            assert one.facts.scheduler_facts.requeueable


@given(policies("act") | hasty_policies(), courses(*MODES))
def test_the_breakers_open_in_time_and_stay_open_until_they_are_reset(policy: Policy, course: list[Turn]) -> None:
    world = play(policy, course)
    rules = policy.brakes.breaker
    allowed = max(rules.min_jobs, int(rules.share * JOBS + 1e-9))
    opened: set[tuple[float | None, int | None]] = set()
    touched: list[tuple[float, int, str]] = []
    for one in world.decisions(DO, WITHHELD, acting=True):
        reset_s, uid = world.states_when_decided[one.decision_id].breaker_reset_s, one.target.job.uid
        if one.disposition is WITHHELD:
            if one.mode == "act" and one.brake in ("breaker", "user_breaker"):
                opened.add((reset_s, uid if one.brake == "user_breaker" else None))
            continue
        assert not opened & {(reset_s, None), (reset_s, uid)}, "it was open"
        touched.append((one.decided_s, uid, one.target.job.job_id))
        since_s = max(one.decided_s - rules.window, -1.0 if reset_s is None else reset_s - 1e-6)
        recent = {(of, job) for at_s, of, job in touched if at_s > since_s}
        counts = [sum(of == each for of, _ in recent) for each in (1000, 1001)]
        assert max(counts) <= allowed
        assert sum(min(count, allowed // 2 + 1) for count in counts) <= allowed


@given(policies("observe", "warn", "act"), courses(*MODES, *EDITS))
def test_the_audit_alone_gives_the_same_state(policy: Policy, course: list[Turn]) -> None:
    world = play(policy, course)
    folded = PolicyState().with_records(world.records.values())
    assert folded.marks == world.state.marks
    assert PolicyState().with_records(reversed(world.records.values())) == folded


@given(policies("observe", "warn", "act"), courses(*MODES, *EDITS))
def test_asked_again_it_decides_nothing_new(policy: Policy, course: list[Turn]) -> None:
    assert ask_again(play(policy, course)) == []


@given(policies("act"), courses(*MODES, *EDITS))
def test_policy_has_one_action_of_a_job_under_way_at_most(policy: Policy, course: list[Turn]) -> None:
    assert play(policy, course).most_under_way <= 1
