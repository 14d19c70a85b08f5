"""Limits on the actions per cluster, user and job, and the circuit breakers. ``None``: within limits."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.core.ids import OwnedJob
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge.core.units import format_duration
from tidegauge_scheduler_hooks.policy.case import Case, wants_new_checkpoint
from tidegauge_scheduler_hooks.policy.ladder import stop_after
from tidegauge_scheduler_hooks.policy.marks import PolicyMark

HOUR_S = 3600.0


def per_hour(case: Case) -> str | None:
    return _over(case, case.policy.brakes.actions_per_hour, "on all jobs", lambda _: True)


def per_user(case: Case) -> str | None:
    tenant, limit = tenant_of(case.facts.target.job), case.policy.brakes.actions_per_user_per_hour
    return _over(case, limit, f"on jobs of {_name(case)}", lambda mark: mark.tenant == tenant)


def per_job(case: Case) -> str | None:
    job = case.incident.key.job.owned
    return _over(case, case.policy.brakes.actions_per_job_per_hour, "on this job", lambda mark: mark.job.owned == job)


def _over(case: Case, limit: int, what: str, is_counted: Callable[[PolicyMark], bool]) -> str | None:
    """Why no more actions are allowed within an hour. A checkpoint before a stop needs room for both: saving in vain is
    worse than saving later."""
    recent = case.state.acting(since_s=case.now_s - HOUR_S, real=case.real)
    count = sum(map(is_counted, recent))
    needed = 2 if _begins_two(case) else 1
    if count + needed <= limit:
        return None
    room = " (this one needs two)" if needed > 1 else ""
    return f"{count} actions {what} in the last hour, the limit is {limit}{room}"


def _begins_two(case: Case) -> bool:
    if case.action is ActionKind.CHECKPOINT:
        return stop_after(case.rule, case.step.rung + 1) is not None
    return wants_new_checkpoint(case)


def user_breaker(case: Case) -> str | None:
    """The breaker of one user's jobs, counted apart so that they never hold up actions on other users' jobs."""
    tenant = tenant_of(case.facts.target.job)
    opening = case.state.breaker_opening(real=case.real, tenant=tenant)
    if opening is not None:
        return opening.reason
    count, allowed = len(_touched(case)[tenant]), _allowed(case)
    if count <= allowed:
        return None
    return f"the circuit breaker of {_name(case)} opened: {count} of their jobs {_too_many(case, allowed)}"


def _name(case: Case) -> str:
    """The tenant's name, for people."""
    namespace = tenant_of(case.facts.target.job).namespace
    return case.facts.user_name if namespace is None else f"namespace {namespace}"


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
    capped = f" (one user counts for at most {most_of_one})" if max(jobs) > most_of_one else ""
    return f"the circuit breaker opened: {sum(jobs)} jobs {_too_many(case, allowed)}{capped}"


def _touched(case: Case) -> dict[Tenant, set[OwnedJob]]:
    """Jobs acted on within the breaker's window or since it was reset, and this one, by tenant."""
    rules, reset_s = case.policy.brakes.breaker, case.state.breaker_reset_s
    touched = {tenant_of(case.facts.target.job): {case.incident.key.job.owned}}
    for mark in case.state.acting(since_s=case.now_s - rules.window, real=case.real):
        if reset_s is None or mark.decided_s >= min(reset_s, case.now_s):
            touched.setdefault(mark.tenant, set()).add(mark.job.owned)
    return touched


def _allowed(case: Case) -> int:
    rules = case.policy.brakes.breaker
    return max(rules.min_jobs, int(rules.share * case.facts.jobs_running + 1e-9))


def _too_many(case: Case, allowed: int) -> str:
    window = format_duration(case.policy.brakes.breaker.window)
    running = case.facts.jobs_running
    return f"would have been acted on within {window}, the limit is {allowed} of {running} running"
