"""How much is done to a cluster, a user and a job within a time, and the circuit breakers. ``None``: within bounds."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.core.actions import ActionKind
from tidegauge.core.units import format_duration
from tidegauge_scheduler_hooks.policy.case import Case, wants_new_checkpoint
from tidegauge_scheduler_hooks.policy.ladder import stop_after
from tidegauge_scheduler_hooks.policy.marks import JobName, Mark, User, job_name, user_of, who_answers

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


def user_breaker(case: Case) -> str | None:
    """Nobody's jobs may hold up what is done about other people's: those of one user are counted by themselves."""
    user = user_of(case.facts.target, case.facts.user_name)
    opening = case.state.breaker_opening(real=case.real, user=user)
    if opening is not None:
        return opening.reason
    count, allowed = len(_touched(case)[who_answers(user)]), _allowed(case)
    if count <= allowed:
        return None
    who = case.facts.user_name if user.namespace is None else f"namespace {user.namespace}"
    return f"the circuit breaker of {who} opened: {count} of their jobs {_too_many(case, allowed)}"


def breaker(case: Case) -> str | None:
    opening = case.state.breaker_opening(real=case.real)
    if opening is not None:
        return opening.reason
    jobs, allowed = [len(jobs) for jobs in _touched(case).values()], _allowed(case)
    # More than half, so that any two are enough: a detector gone mad is stopped after half as many jobs again. Not all,
    # or one alone would hold up what is done about the others' jobs.
    most_of_one = allowed // 2 + 1
    if sum(min(count, most_of_one) for count in jobs) <= allowed:
        return None
    capped = f" (one user's count as {most_of_one} at most)" if max(jobs) > most_of_one else ""
    return f"the circuit breaker opened: {sum(jobs)} jobs {_too_many(case, allowed)}{capped}"


def _touched(case: Case) -> dict[User, set[JobName]]:
    """Jobs acted on within the breaker's window or since it was reset, and this one, by user."""
    rules, reset_s = case.policy.brakes.breaker, case.state.breaker_reset_s
    user = user_of(case.facts.target, case.facts.user_name)
    touched = {who_answers(user): {job_name(case.incident.key.job)}}
    for mark in case.state.acting(since_s=case.now_s - rules.window, real=case.real):
        if reset_s is None or mark.decided_s >= min(reset_s, case.now_s):
            touched.setdefault(who_answers(mark.user), set()).add(job_name(mark.job))
    return touched


def _allowed(case: Case) -> int:
    rules = case.policy.brakes.breaker
    return max(rules.min_jobs, int(rules.share * case.facts.jobs_running + 1e-9))


def _too_many(case: Case, allowed: int) -> str:
    window = format_duration(case.policy.brakes.breaker.window)
    running = case.facts.jobs_running
    return f"would have been acted on within {window}, at most {allowed} of {running} running ones may be"
