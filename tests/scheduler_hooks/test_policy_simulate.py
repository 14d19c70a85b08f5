"""What a policy would have done to the incidents of the past."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sample_views import NOW_S
from scheduler_values import facts, incident
from tidegauge.core.ids import JobKey, OwnedJob
from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import ActionKind, Disposition
from tidegauge.core.verdicts import Band, Severity
from tidegauge_scheduler_hooks.policy.files import load_policy
from tidegauge_scheduler_hooks.policy.simulate import Simulation, simulate

POLICY = load_policy(None)
HOUR = 3600.0


def opened(number: int = 1, at: float = 0.0, **changes: Any) -> IncidentChange:
    """A leak in a job of its own, with 5 to 7 hours to its end."""
    known = {
        "job": JobKey(f"job{number}", 0, 1000 + number),
        "number": number,
        "opened_unix_s": NOW_S + at,
        "updated_unix_s": NOW_S + at,
        "seconds_to_oom": Band(5 * HOUR, 6 * HOUR, 7 * HOUR),
    }
    return IncidentChange(ChangeKind.OPENED, NOW_S + at, incident(**{**known, **changes}))


def later(change: IncidentChange, kind: ChangeKind, at: float, **changes: Any) -> IncidentChange:
    moved: Incident = replace(change.incident, updated_unix_s=NOW_S + at, **changes)
    return IncidentChange(kind, NOW_S + at, moved)


def done(result: Simulation) -> list[tuple[float, str]]:
    return [
        (one.decided_s - NOW_S, one.action.value) for one in result.decisions if one.disposition is Disposition.WOULD
    ]


def test_an_incident_is_followed_through_the_times_at_which_nothing_was_recorded() -> None:
    change = opened()
    result = simulate([change], {1: facts(change.incident.key.job)}, POLICY, until_s=NOW_S + 6 * HOUR)
    assert done(result) == [
        (0.0, "notify"), (300.0, "notify"), (4.5 * HOUR, "checkpoint"), (4.5 * HOUR, "requeue"),
    ]  # fmt: skip
    assert result.totals == {ActionKind.NOTIFY: 2, ActionKind.CHECKPOINT: 1, ActionKind.REQUEUE: 1}
    assert result.jobs_touched == result.jobs_told == {OwnedJob("job1", 1001)}
    assert (result.incidents, result.assumed, result.breaker) == (1, (), None)
    assert (result.from_s, result.until_s) == (NOW_S, NOW_S + 6 * HOUR)


def test_an_incident_that_closed_is_left_alone_from_then_on() -> None:
    change = opened()
    closed = later(change, ChangeKind.CLOSED, HOUR, state=IncidentState.CLOSED)
    result = simulate([closed, change], {1: facts(change.incident.key.job)}, POLICY, until_s=NOW_S + 6 * HOUR)
    assert done(result) == [(0.0, "notify"), (300.0, "notify")]


def test_simulation_counts_a_later_change_from_its_time() -> None:
    mild = opened(severity=Severity.WARNING)
    severe = later(mild, ChangeKind.ESCALATED, HOUR, severity=Severity.CRITICAL)
    result = simulate([mild, severe], {1: facts(mild.incident.key.job)}, POLICY, until_s=NOW_S + 2 * HOUR)
    assert [one.rule for one in result.decisions] == ["leak", "leak-requeue", "leak-requeue"]


def test_without_recorded_facts_a_job_is_taken_as_one_that_can_only_be_told() -> None:
    result = simulate([opened()], {}, POLICY, until_s=NOW_S + 6 * HOUR)
    assert result.assumed == (1,)
    assert set(result.totals) == {ActionKind.NOTIFY}
    assert result.jobs_touched == frozenset()


def test_the_mode_of_the_policy_does_not_matter() -> None:
    change = opened()
    of_job = {1: facts(change.incident.key.job)}
    results = [
        simulate([change], of_job, POLICY.model_copy(update={"mode": mode}), until_s=NOW_S + 6 * HOUR)
        for mode in ("observe", "warn", "act")
    ]
    assert results[0] == results[1] == results[2]


def test_brakes_and_breaker_hold_as_they_would_have() -> None:
    changes = [opened(number) for number in range(1, 7)]
    of_jobs = {one.incident.number: facts(one.incident.key.job, jobs_running=20) for one in changes}
    result = simulate(changes, of_jobs, POLICY, until_s=NOW_S + 5 * HOUR)
    assert len(result.jobs_touched) == 3
    assert result.brakes == {"breaker": 3}
    assert result.breaker is not None
    assert "4 jobs would have been acted on" in result.breaker


def test_the_breaker_of_one_users_jobs_is_told_apart() -> None:
    changes = [opened(number, job=JobKey(f"job{number}", 0, 1000)) for number in range(1, 7)]
    of_jobs = {one.incident.number: facts(one.incident.key.job, jobs_running=20) for one in changes}
    result = simulate(changes, of_jobs, POLICY, until_s=NOW_S + 5 * HOUR)
    assert (result.brakes, result.breaker) == ({"user_breaker": 3}, None)
    assert [why.partition(":")[0] for why in result.user_breakers] == ["the circuit breaker of ada opened"]


def test_simulation_carries_out_an_action_once_its_limit_lets_go() -> None:
    policy = POLICY.model_copy(update={"brakes": POLICY.brakes.model_copy(update={"actions_per_hour": 2})})
    changes = [opened(number) for number in (1, 2)]
    of_jobs = {one.incident.number: facts(one.incident.key.job) for one in changes}
    result = simulate(changes, of_jobs, policy, until_s=NOW_S + 6 * HOUR)
    assert [at for at, what in done(result) if what == "requeue"] == [4.5 * HOUR, 5.5 * HOUR]
    assert result.brakes == {"actions_per_hour": 1}


def test_without_a_history_there_is_nothing_to_say() -> None:
    result = simulate([], {}, POLICY)
    assert (result.decisions, result.incidents) == ((), 0)
