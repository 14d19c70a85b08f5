"""The brakes hold a decision back although it is due on the ladder. ``held_back`` walks their table.

Each is asked anew whenever the decision would be due, so the decision is made once the brake lets go. docs/policy.md is
made from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidegauge.core.ids import OwnedJob
from tidegauge.core.incidents import IncidentCause, IncidentState
from tidegauge.core.incidents.actions import BREAKER, USER_BREAKER, ActionKind
from tidegauge.core.incidents.evidence import shows_cuda_graphs
from tidegauge.core.incidents.wording import name_ranks
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge.core.units import format_duration
from tidegauge_scheduler_hooks.policy.allocator_settings import EXPANDABLE, too_new
from tidegauge_scheduler_hooks.policy.conditions import settings_in_force
from tidegauge_scheduler_hooks.policy.due_decision import (
    Case,
    exemption,
    requeues_used,
    wants_new_checkpoint,
    warnings_given,
)
from tidegauge_scheduler_hooks.policy.ladder import checkpoint_before, stop_after
from tidegauge_scheduler_hooks.policy.rungs import RequeueRung
from tidegauge_scheduler_hooks.policy.state import PolicyMark


class HeldBack(NamedTuple):
    """A brake and its reason, for people."""

    brake: str
    reason: str


class Brake(NamedTuple):
    """One row. ``holds`` returns the reason, or ``None``."""

    name: str
    actions: frozenset[ActionKind]
    meaning: str
    holds: Callable[[Case], str | None]


def held_back(case: Case) -> HeldBack | None:
    """The first brake that holds."""
    for brake in BRAKES:
        if case.action in brake.actions and (reason := brake.holds(case)) is not None:
            return HeldBack(brake.name, reason)
    return None


def _paused(case: Case) -> str | None:
    return None if case.state.paused is None else f"actions are paused: {case.state.paused}"


def _recovering(case: Case) -> str | None:
    return "the condition has cleared for now" if case.incident.state is IncidentState.RECOVERING else None


def _exempt(case: Case) -> str | None:
    return exemption(case.facts, case.policy.brakes.exempt)


def _no_adapter(case: Case) -> str | None:
    if case.facts.scheduler_facts is not None or _needs_no_scheduler(case):
        return None
    return f"no scheduler adapter knows this job (scheduler {case.facts.target.scheduler})"


def _unsupported(case: Case) -> str | None:
    scheduler = case.facts.scheduler_facts
    if scheduler is None or case.action in scheduler.can or _needs_no_scheduler(case):
        return None
    return f"{case.facts.target.scheduler} cannot {case.action.value} this job"


def _needs_no_scheduler(case: Case) -> bool:
    """A message has another way to the owner, and the rank itself is asked for evidence."""
    return case.action is ActionKind.SNAPSHOT or (case.action is ActionKind.NOTIFY and case.facts.owner_reachable)


def _not_running(case: Case) -> str | None:
    scheduler = case.facts.scheduler_facts
    if case.facts.target.job != case.incident.key.job:
        return "the job is already in another attempt"
    running = case.facts.running and scheduler is not None and scheduler.running
    return None if running else "the job is no longer running"


def _stale(case: Case) -> str | None:
    stale = case.incident.stale or case.facts.stale
    return "not all ranks are reporting: a node has not reported recently, or is not monitored" if stale else None


def _no_living_culprit(case: Case) -> str | None:
    culprits, incident = case.facts.culprits, case.incident
    if culprits is None or culprits or incident.key.cause is IncidentCause.OUT_OF_MEMORY:
        return None
    return (
        f"{name_ranks(incident.ranks, left_out=incident.ranks_left_out)} ended or recovered, and no other rank is "
        "affected"
    )


def _severity(case: Case) -> str | None:
    severity, said = case.incident.severity, case.facts.scheduler_facts
    if not case.incident.key.cause.is_growth:
        return None
    if severity.level < case.policy.brakes.min_severity.level:
        return f"severity is {severity.value}, actions require {case.policy.brakes.min_severity.value}"
    if said is None or said.min_severity is None or severity.level >= said.min_severity.level:
        return None
    return f"severity is {severity.value}, its team requires {said.min_severity.value}"


def _min_age(case: Case) -> str | None:
    age_s = max(case.now_s - case.incident.opened_unix_s, 0.0)
    said = case.facts.scheduler_facts
    asked_s = 0.0 if said is None else said.min_age_s or 0.0
    least_s = max(case.policy.brakes.min_age, asked_s)
    if age_s >= least_s:
        return None
    who = "its team requires" if asked_s > case.policy.brakes.min_age else "actions require"
    return f"the incident has been open for {format_duration(age_s)}, {who} {format_duration(least_s)}"


def _not_requeueable(case: Case) -> str | None:
    scheduler = case.facts.scheduler_facts
    allowed = scheduler is not None and scheduler.requeueable
    return None if allowed else "the owner has not allowed a requeue of this job"


def _no_checkpoint(case: Case) -> str | None:
    if case.facts.checkpoint is not None:
        return None
    groups = case.facts.groups_without_checkpoint
    who = f"the job (group{'s' if len(groups) > 1 else ''} of ranks {' and '.join(groups)})" if groups else "the job"
    return f"{who} has no way to checkpoint on request that can be verified"


def _no_fraction(case: Case) -> str | None:
    if case.facts.cap_fraction is not None:
        return None
    return "the cap cannot be computed" + (f": {case.facts.cap_explanation}" if case.facts.cap_explanation else "")


def _no_change(case: Case) -> str | None:
    facts, rung = case.facts, case.rung
    if case.action is ActionKind.CAP:
        in_force = facts.limit_fraction
        is_tight = in_force is not None and facts.cap_fraction is not None and in_force <= facts.cap_fraction
        return f"a cap of {in_force:.3g} is already in force" if is_tight else None
    changes_nothing = (
        isinstance(rung, RequeueRung)
        and rung.alloc_conf
        and not rung.environ
        and settings_in_force(facts, rung.alloc_conf)
    )
    return (
        f"the job already runs with {facts.alloc_conf}: a restart with it would change nothing"
        if changes_nothing
        else None
    )


def _allocator_setting(case: Case) -> str | None:
    rung, version = case.rung, case.facts.torch_version
    unknown = too_new(rung.alloc_conf, version) if isinstance(rung, RequeueRung) else ()
    if not unknown:
        return None
    torch = "the job's torch version is unknown, and an older one" if version is None else f"torch {version}"
    return f"{torch} does not support {', '.join(unknown)}: the job would not start"


def _cuda_graphs(case: Case) -> str | None:
    rung, incident = case.rung, case.incident
    if not (isinstance(rung, RequeueRung) and rung.sets(EXPANDABLE)):
        return None
    pools_grow = incident.key.cause is IncidentCause.CUDA_GRAPHS or shows_cuda_graphs(incident.evidence)
    return "CUDA graph private pools are growing, and expandable_segments does not fix that" if pools_grow else None


def _requeues(case: Case) -> str | None:
    used = requeues_used(case)
    return f"Tidegauge has already requeued it {used} times" if used >= case.policy.brakes.requeues_per_job else None


def _tries(case: Case) -> str | None:
    failures, most = case.step.failures, case.rung.tries
    return f"{failures} of {most} tries failed" if failures >= most else None


def _warnings(case: Case) -> str | None:
    brakes, given = case.policy.brakes, warnings_given(case)
    if len(given) < brakes.warnings_before_stop:
        return f"{len(given)} of {brakes.warnings_before_stop} required warnings delivered"
    if not brakes.warnings_before_stop:
        return None
    since_s = max(case.now_s - given[brakes.warnings_before_stop - 1], 0.0)
    if since_s >= brakes.warning_interval:
        return None
    wanted = format_duration(brakes.warning_interval)
    return f"the last counted warning was {format_duration(since_s)} ago, a stop requires {wanted}"


def _proof(case: Case) -> str | None:
    if not wants_new_checkpoint(case) or checkpoint_before(case.rule, case.step.rung) is not None:
        return None
    if case.facts.target.others:
        return "other groups of ranks are running, and the rule has no checkpoint before this rung"
    return "the rule has no checkpoint before this rung and does not set without_checkpoint"


def _per_hour(case: Case) -> str | None:
    return _over(case, case.policy.brakes.actions_per_hour, "on all jobs", lambda _: True)


def _per_user(case: Case) -> str | None:
    tenant, limit = tenant_of(case.facts.target.job), case.policy.brakes.actions_per_user_per_hour
    return _over(case, limit, f"on jobs of {_name(case)}", lambda mark: mark.tenant == tenant)


def _per_job(case: Case) -> str | None:
    job = case.incident.key.job.owned
    return _over(case, case.policy.brakes.actions_per_job_per_hour, "on this job", lambda mark: mark.job.owned == job)


def _over(case: Case, limit: int, what: str, is_counted: Callable[[PolicyMark], bool]) -> str | None:
    """Why no more actions are allowed within an hour. A checkpoint before a stop needs room for both: saving in vain is
    worse than saving later."""
    recent = case.state.acting(since_s=case.now_s - 3600.0, real=case.real)
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


def _user_breaker(case: Case) -> str | None:
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


def _breaker(case: Case) -> str | None:
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


_ALL = frozenset(ActionKind)
_ACTING = frozenset(kind for kind in ActionKind if kind.is_acting)
_STOPS = frozenset(kind for kind in ActionKind if kind.is_stop)
_CAP = frozenset({ActionKind.CAP})
_CHECKPOINT = frozenset({ActionKind.CHECKPOINT})
_REQUEUE = frozenset({ActionKind.REQUEUE})

BRAKES = (
    Brake("paused", _ALL, "A person paused all actions, messages included (`tidegauge policy pause`).", _paused),
    Brake("recovering", _ALL, "The incident's condition has cleared for now.", _recovering),
    Brake(
        "exempt",
        _ACTING,
        "The owner, an admin or the policy exempts the job, or it is a server; it still gets messages and evidence.",
        _exempt,
    ),
    Brake(
        "no_adapter",
        _ALL,
        "No scheduler adapter knows the job: it cannot be acted on, and only Slack and mail reach its owner. "
        "Evidence needs no adapter.",
        _no_adapter,
    ),
    Brake(
        "unsupported",
        _ALL,
        "The adapter cannot do this to this job. Notify, annotate and cap are skipped then.",
        _unsupported,
    ),
    Brake("not_running", _ACTING, "The job has ended or is already in another attempt.", _not_running),
    Brake(
        "stale",
        _ACTING,
        "Not all ranks of the job are reporting: Tidegauge does not act on old or partial figures.",
        _stale,
    ),
    Brake(
        "no_living_culprit",
        _ACTING,
        "No rank of the incident is both running and affected. An out-of-memory error, which may have ended its "
        "rank, is acted on all the same.",
        _no_living_culprit,
    ),
    Brake("severity", _ACTING, "Growth is less severe than `min_severity`, or than its team asks.", _severity),
    Brake("min_age", _ACTING, "The incident has been open for less than `min_age`, or than its team asks.", _min_age),
    Brake("not_requeueable", _REQUEUE, "The owner has not allowed a requeue of the job.", _not_requeueable),
    Brake(
        "no_checkpoint",
        _CHECKPOINT,
        "The job, or one of its running groups of ranks, has no way to checkpoint on request that can be verified.",
        _no_checkpoint,
    ),
    Brake(
        "no_fraction",
        _CAP,
        "The cap cannot be computed, usually because the job's share is unknown. The cap is skipped.",
        _no_fraction,
    ),
    Brake(
        "no_change",
        _CAP | _REQUEUE,
        "The cap, or all of `alloc_conf`, is already in force. The cap is skipped; the requeue is not done.",
        _no_change,
    ),
    Brake(
        "allocator_setting",
        _REQUEUE,
        "The job's torch does not support, or may not support, a key of `alloc_conf`: it would not start.",
        _allocator_setting,
    ),
    Brake(
        "cuda_graphs",
        _REQUEUE,
        "Evidence shows growing private pools of CUDA graphs, and `alloc_conf` has `expandable_segments: True`, "
        "which does not fix that.",
        _cuda_graphs,
    ),
    Brake("requeues", _REQUEUE, "`requeues_per_job` is used up, and the rung says `when_used_up: leave`.", _requeues),
    Brake("tries", _ALL, "The rung has failed `tries` times: the ladder ends here.", _tries),
    Brake(
        "warnings",
        _STOPS,
        "Fewer than `warnings_before_stop` warnings were delivered, or the last of them too recently.",
        _warnings,
    ),
    Brake(
        "proof",
        _STOPS,
        "The ladder has no checkpoint before this rung and the rung no `without_checkpoint`; or other groups of "
        "ranks are running, for which that does not count.",
        _proof,
    ),
    Brake("actions_per_hour", _ACTING, "This many actions were started within the last hour, on all jobs.", _per_hour),
    Brake(
        "actions_per_user_per_hour",
        _ACTING,
        "The same, on the jobs of this user (Kubernetes: of this namespace).",
        _per_user,
    ),
    Brake("actions_per_job_per_hour", _ACTING, "The same, on this job.", _per_job),
    Brake(
        USER_BREAKER,
        _ACTING,
        "The circuit breaker for this user's jobs is open, or this action would open it.",
        _user_breaker,
    ),
    Brake(
        BREAKER, _ACTING, "The circuit breaker for the whole cluster is open, or this action would open it.", _breaker
    ),
)
"""In the order in which they are asked: passing ones after final ones, and limits last, so that a breaker opens for
nothing that would not have been done anyway; the cluster's for nothing that the user's own holds back."""
PASSING = frozenset(
    {
        "min_age", "requeues", "warnings",
        "actions_per_hour", "actions_per_user_per_hour", "actions_per_job_per_hour",
    }
)  # fmt: skip
"""Brakes that may let go by time alone; the others wait for the job, a person or the policy to change."""
