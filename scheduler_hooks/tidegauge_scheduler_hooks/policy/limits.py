"""How much is done to a cluster, a user and a job within a time, and the circuit breaker. ``None``: within bounds."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.core.actions import ActionKind
from tidegauge.core.units import format_duration
from tidegauge_scheduler_hooks.policy.case import Case, wants_new_checkpoint
from tidegauge_scheduler_hooks.policy.ladder import stop_after
from tidegauge_scheduler_hooks.policy.state import Mark, job_name, user_of

HOUR_S = 3600.0


def per_hour(case: Case) -> str | None:
    return _over(case, case.policy.brakes.actions_per_hour, "in all", lambda _: True)


def per_user(case: Case) -> str | None:
    user = user_of(case.facts.target, case.facts.user_name)
    limit = case.policy.brakes.actions_per_user_per_hour
    return _over(case, limit, f"on jobs of {case.facts.user_name}", lambda mark: mark.user == user)


def per_job(case: Case) -> str | None:
    job = job_name(case.incident.key.job)
    return _over(
        case, case.policy.brakes.actions_per_job_per_hour, "on this job", lambda mark: job_name(mark.job) == job
    )


def _over(case: Case, limit: int, what: str, is_counted: Callable[[Mark], bool]) -> str | None:
    """Why no more may be done within an hour. A checkpoint that a stop follows needs room for both: saved for nothing
    is worse than not saved yet."""
    recent = case.state.acting(since_s=case.now_s - HOUR_S, real=case.real)
    count = sum(map(is_counted, recent))
    needed = 2 if _begins_two(case) else 1
    if count + needed <= limit:
        return None
    room = " (this needs room for two)" if needed > 1 else ""
    return f"{count} actions {what} within an hour, at most {limit} are allowed{room}"


def _begins_two(case: Case) -> bool:
    if case.action is ActionKind.CHECKPOINT:
        return stop_after(case.rule, case.step.rung + 1) is not None
    return wants_new_checkpoint(case)


def breaker(case: Case) -> str | None:
    opening = case.state.breaker_opening(real=case.real)
    if opening is not None:
        return opening.reason
    rules, reset_s = case.policy.brakes.breaker, case.state.breaker_reset_s
    since_s = case.now_s - rules.window
    touched = {
        job_name(mark.job)
        for mark in case.state.acting(since_s=since_s, real=case.real)
        if reset_s is None or mark.decided_s >= min(reset_s, case.now_s)
    }
    count = len(touched | {job_name(case.incident.key.job)})
    allowed = max(rules.min_jobs, int(rules.share * case.facts.jobs_running + 1e-9))
    if count <= allowed:
        return None
    return (
        f"the circuit breaker opened: {count} jobs would have been acted on within {format_duration(rules.window)}, "
        f"at most {allowed} of {case.facts.jobs_running} running ones may be"
    )
