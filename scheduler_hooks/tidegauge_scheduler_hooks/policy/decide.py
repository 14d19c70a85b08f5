"""Decides what is done about an incident now: rule, rung, brakes. Pure and deterministic.

Asked about once a second for every open incident, it nearly always decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import BREAKERS, ActionKind, Decision, Disposition, JobFacts
from tidegauge_scheduler_hooks.policy import texts
from tidegauge_scheduler_hooks.policy.brakes import PASSING, HeldBack, held_back
from tidegauge_scheduler_hooks.policy.due_decision import Case, requeues_used, wants_new_checkpoint
from tidegauge_scheduler_hooks.policy.ladder import LadderStep, again, checkpoint_before, next_step
from tidegauge_scheduler_hooks.policy.models import Policy, Rule, carries_out
from tidegauge_scheduler_hooks.policy.rungs import CheckpointRung, RequeueRung
from tidegauge_scheduler_hooks.policy.state import PolicyState

LOOK_AGAIN_S = 60.0
"""The interval at which ``next_look_s`` asks again about a decision that a brake holds back."""


def decide(
    incident: Incident, facts: JobFacts, policy: Policy, state: PolicyState, *, now_s: float
) -> tuple[tuple[Decision, ...], PolicyState]:
    """The decisions to write down now, and the state after them.

    At most one of them is to be carried out: the next waits until it is finished. A decision that only would be done is
    taken as done at once, so that ``observe`` may walk several rungs. With the new state there is nothing more to
    decide."""
    made: list[Decision] = []
    while (decision := _next_decision(incident, facts, policy, state, now_s)) is not None:
        made.append(decision)
        state = state.with_decisions([decision])
    return tuple(made), state


def next_look_s(incident: Incident, facts: JobFacts, policy: Policy, state: PolicyState, *, now_s: float) -> float:
    """The time at which ``decide``, just asked, may decide anew though only time passes; infinite: never."""
    looks: list[float] = []
    if incident.seconds_to_oom is not None:
        oom_s = incident.updated_unix_s + incident.seconds_to_oom.low
        looks += [oom_s - rule.when.oom_within for rule in policy.rules if rule.when.oom_within is not None]
    look = _look(incident, facts, policy, state, now_s)
    if look.case is None:
        looks.append(look.due_s)
    elif look.held is not None and look.held.brake in PASSING:
        looks.append(now_s + LOOK_AGAIN_S)
    return min((at_s for at_s in looks if at_s > now_s), default=math.inf)


class _Situation(NamedTuple):
    """The situation on the ladder."""

    due_s: float
    """The time of the next decision, if nothing changes; infinite: never."""
    case: Case | None = None
    """The due decision."""
    held: HeldBack | None = None
    """The brake that holds it back."""


def _look(incident: Incident, facts: JobFacts, policy: Policy, state: PolicyState, now_s: float) -> _Situation:
    rule = _rule_for(incident, facts, policy, state, now_s)
    if not incident.is_open or rule is None or state.is_busy(incident.key.job):
        return _Situation(math.inf)
    marks = state.of_incident(incident.number)
    step = next_step(rule, marks, incident, mode=policy.mode)
    if step is None:
        return _Situation(math.inf)
    case = _case(incident, facts, policy, state, now_s, rule, step)
    if state.is_over(incident.key.job, facts.target.incarnation, real=case.real):
        return _Situation(math.inf)
    if now_s < step.due_s:
        return _Situation(step.due_s)
    held = held_back(case)
    if held is None and wants_new_checkpoint(case):
        checkpoint = checkpoint_before(rule, step.rung)
        assert checkpoint is not None, "the brake `proof` holds a stop that has none before it"
        step = again(rule, checkpoint, marks, mode=policy.mode)
        if now_s < step.due_s:
            return _Situation(step.due_s)
        case = _case(incident, facts, policy, state, now_s, rule, step)
        held = held_back(case)
    return _Situation(now_s, case, held)


def _next_decision(
    incident: Incident, facts: JobFacts, policy: Policy, state: PolicyState, now_s: float
) -> Decision | None:
    look = _look(incident, facts, policy, state, now_s)
    if look.case is None:
        return None
    decision_id = _decision_id(look.case, look.held)
    return None if decision_id in state.marks else _decision(look.case, look.held, decision_id)


def _rule_for(incident: Incident, facts: JobFacts, policy: Policy, state: PolicyState, now_s: float) -> Rule | None:
    requeues = state.requeues(
        incident.key.job, since_s=now_s - policy.brakes.requeues_within, real=policy.mode == "act"
    )
    return next(
        (rule for rule in policy.rules if rule.when.matches(incident, facts, requeues=requeues, now_s=now_s)), None
    )


def _case(
    incident: Incident, facts: JobFacts, policy: Policy, state: PolicyState, now_s: float, rule: Rule, step: LadderStep
) -> Case:
    rung = rule.ladder[step.rung]
    case = Case(incident, facts, policy, state, now_s, rule, step, rung.kind, real=carries_out(policy.mode, rung.kind))
    if not isinstance(rung, RequeueRung) or rung.when_used_up == "leave":
        return case
    used_up = requeues_used(case) >= policy.brakes.requeues_per_job
    return replace(case, action=ActionKind(rung.when_used_up)) if used_up else case


def _decision_id(case: Case, held: HeldBack | None) -> str:
    """The id, the same for the same situation. A decision that only would be done has another id, so that a policy
    whose mode changes can still do it."""
    parts = [str(case.incident.number), case.rule.name, str(case.step.rung), str(case.step.attempt)]
    if not case.real:
        parts.append("would")
    if held is not None:
        parts += ["withheld", held.brake]
        if held.brake in BREAKERS:
            # One opening is told from the next, or a breaker that was reset could never open again at this rung.
            parts.append("never-reset" if case.state.breaker_reset_s is None else str(case.state.breaker_reset_s))
    return ":".join(parts)


def _decision(case: Case, held: HeldBack | None, decision_id: str) -> Decision:
    unheld = Disposition.DO if case.real else Disposition.WOULD
    return Decision(
        decision_id=decision_id,
        decided_s=case.now_s,
        action=case.action,
        disposition=unheld if held is None else Disposition.WITHHELD,
        target=case.facts.target,
        incident=case.incident,
        facts=case.facts,
        rule=case.rule.name,
        rung=case.step.rung,
        attempt=case.step.attempt,
        reason=texts.reason(case) if held is None else held.reason,
        parameters=_parameters(case) if held is None else {"breaker_reset_s": case.state.breaker_reset_s},
        brake=None if held is None else held.brake,
        mode=case.policy.mode,
    )


def _parameters(case: Case) -> dict[str, Any]:
    """The parameters of the action; JSON. notify, annotate: ``text``. cap: ``fraction``, ``explanation``. checkpoint:
    ``grace_s``, ``way``. requeue: ``alloc_conf``, ``environ``, ``reason``. snapshot, hold, cancel: ``reason``.

    Of a withheld decision: ``breaker_reset_s``, the time at which the breakers had last been reset."""
    rung, facts = case.rung, case.facts
    if case.action.is_words:
        return {"text": texts.message(case)}
    if case.action is ActionKind.CAP:
        return {"fraction": facts.cap_fraction, "explanation": facts.cap_explanation}
    if isinstance(rung, CheckpointRung):
        return {"grace_s": rung.grace, "way": None if facts.checkpoint is None else facts.checkpoint.value}
    why = texts.reason(case)
    if isinstance(rung, RequeueRung) and case.action is ActionKind.REQUEUE:
        return {"alloc_conf": dict(rung.alloc_conf), "environ": dict(rung.environ), "reason": why}
    return {"reason": why}
