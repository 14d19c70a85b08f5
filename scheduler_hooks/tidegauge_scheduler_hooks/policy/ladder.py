"""Computes how far an incident is on a rule's ladder, from the decisions made so far. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import ActionKind, Disposition, Outcome
from tidegauge_scheduler_hooks.policy.models import Mode, Rule, carries_out
from tidegauge_scheduler_hooks.policy.rungs import Rung, StopRung, stops
from tidegauge_scheduler_hooks.policy.state import PolicyMark

PASSED_OVER = frozenset(
    {
        (ActionKind.NOTIFY, "unsupported"),
        (ActionKind.ANNOTATE, "unsupported"),
        (ActionKind.CAP, "unsupported"),
        (ActionKind.CAP, "no_fraction"),
        (ActionKind.CAP, "no_change"),
    }
)
"""Rungs that are skipped where the brake shows that there is nothing to do. The following rungs do not rest on them: a
stop demands its warnings and its proof itself."""
BEST_EFFORT = frozenset({(ActionKind.CHECKPOINT, "unsupported"), (ActionKind.CHECKPOINT, "no_checkpoint")})
"""The same before a stop that may be done without a checkpoint."""


class LadderStep(NamedTuple):
    """The next rung."""

    rung: int
    attempt: int
    """The number of this try, from 1."""
    failures: int
    """Failed tries since it was last done."""
    due_s: float
    """The earliest time; infinite while the time to out-of-memory that it waits for is not known."""


def next_step(rule: Rule, marks: Iterable[PolicyMark], incident: Incident, *, mode: Mode) -> LadderStep | None:
    """The first rung that is not finished; ``None`` at the end of the ladder. ``marks`` are those of the incident."""
    mine = [mark for mark in marks if mark.rule == rule.name]
    since_s = incident.opened_unix_s
    for index, rung in enumerate(rule.ladder):
        tries = _tries(index, rung, mine, mode)
        finished_s = _finished_s(rule, index, tries)
        if finished_s is None:
            return _step(index, rung, tries, max(since_s + rung.after, _near_enough_s(rung, incident)))
        since_s = finished_s
    return None


def again(rule: Rule, index: int, marks: Iterable[PolicyMark], *, mode: Mode) -> LadderStep:
    """Rung ``index`` once more, though it is finished: due at once, unless a try has just failed."""
    mine = [mark for mark in marks if mark.rule == rule.name]
    rung = rule.ladder[index]
    return _step(index, rung, _tries(index, rung, mine, mode), -math.inf)


def checkpoint_before(rule: Rule, index: int) -> int | None:
    """The last rung before ``index`` that asks for a checkpoint."""
    return next((one for one in range(index - 1, -1, -1) if rule.ladder[one].kind is ActionKind.CHECKPOINT), None)


def stop_after(rule: Rule, index: int) -> StopRung | None:
    """The first rung from ``index`` on that ends the job."""
    return next((rung for rung in rule.ladder[index:] if stops(rung)), None)


def _tries(index: int, rung: Rung, marks: Sequence[PolicyMark], mode: Mode) -> list[PolicyMark]:
    """The decisions on this rung that count in this mode, and those that were held back; in order of time."""
    real = carries_out(mode, rung.kind)
    mine = [
        mark
        for mark in marks
        if mark.rung == index and (mark.disposition is Disposition.WITHHELD or mark.counts(real=real))
    ]
    return sorted(mine, key=lambda mark: mark.ended_s)


def _is_of(rung: Rung, mark: PolicyMark) -> bool:
    """Whether the mark is of this rung's action, not of one that stood here before the policy was edited."""
    return mark.action is rung.kind or (stops(rung) and mark.action.is_stop)


def _finished_s(rule: Rule, index: int, tries: Sequence[PolicyMark]) -> float | None:
    """The time from which the ladder could go on after this rung."""
    rung = rule.ladder[index]
    tries = [mark for mark in tries if _is_of(rung, mark)]
    done = [mark.done_s for mark in tries if mark.done_s is not None]
    if done:
        return max(done)
    stop = stop_after(rule, index + 1)
    best_effort = rung.kind is ActionKind.CHECKPOINT and stop is not None and stop.without_checkpoint
    may_pass = PASSED_OVER | BEST_EFFORT if best_effort else PASSED_OVER
    passed = [mark.decided_s for mark in tries if (mark.action, mark.brake) in may_pass]
    if passed:
        return min(passed)
    failed = [mark.ended_s for mark in tries if _failed(mark)]
    goes_on = best_effort or not rung.kind.is_acting or rung.kind is ActionKind.CAP
    return failed[rung.tries - 1] if goes_on and len(failed) >= rung.tries else None


def _step(index: int, rung: Rung, tries: Sequence[PolicyMark], due_s: float) -> LadderStep:
    tried = [mark for mark in tries if mark.disposition is not Disposition.WITHHELD]
    mine = [mark for mark in tried if _is_of(rung, mark)]
    done_s = max((mark.done_s for mark in mine if mark.done_s is not None), default=-math.inf)
    since_done = [mark for mark in mine if mark.done_s is None and mark.ended_s >= done_s]
    retry_s = max((mark.ended_s + rung.retry_after for mark in since_done), default=-math.inf)
    return LadderStep(index, len(tried) + 1, sum(map(_failed, since_done)), max(due_s, retry_s))


def _failed(mark: PolicyMark) -> bool:
    """Whether it was tried in vain. A decision that a pause or the breaker stopped was not tried."""
    return mark.outcome not in (None, Outcome.DONE, Outcome.STOPPED)


def _near_enough_s(rung: Rung, incident: Incident) -> float:
    """The time at which the out-of-memory is as near as the rung demands; infinite while that is unknown."""
    if rung.before_oom is None:
        return -math.inf
    if incident.seconds_to_oom is None:
        return math.inf
    return incident.updated_unix_s + incident.seconds_to_oom.low - rung.before_oom
