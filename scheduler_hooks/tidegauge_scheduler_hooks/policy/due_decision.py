"""A due decision, with all inputs of brakes and texts."""

from __future__ import annotations

from dataclasses import dataclass

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import ActionKind, JobFacts
from tidegauge_scheduler_hooks.policy.conditions import matches_any
from tidegauge_scheduler_hooks.policy.ladder import LadderStep
from tidegauge_scheduler_hooks.policy.models import Exempt, Policy, Rule
from tidegauge_scheduler_hooks.policy.rungs import Rung, stops
from tidegauge_scheduler_hooks.policy.state import PolicyState


@dataclass(frozen=True)
class Case:
    """A decision that is due, before the brakes have been asked."""

    incident: Incident
    facts: JobFacts
    policy: Policy
    state: PolicyState
    now_s: float
    rule: Rule
    step: LadderStep
    action: ActionKind
    """The rung's action, or its replacement once the job's requeues are used up."""
    real: bool
    """Whether the policy's mode lets it be carried out."""

    @property
    def rung(self) -> Rung:
        return self.rule.ladder[self.step.rung]


def exemption(facts: JobFacts, exempt: Exempt) -> str | None:
    """Why a job is not to be acted on: by its kind, by its owner or another person, then by the site; ``None``: it is
    not exempt."""
    scheduler = facts.scheduler_facts
    if scheduler is not None and scheduler.only_told is not None:
        return scheduler.only_told
    if facts.exempted is not None:
        return facts.exempted
    if scheduler is not None and scheduler.exempt:
        return "the owner opted out of actions"
    rows = [("user", facts.user_name, exempt.users), ("job name", facts.job_name, exempt.job_names)]
    if scheduler is not None:
        rows += [
            ("account", scheduler.account, exempt.accounts),
            ("partition", scheduler.partition, exempt.partitions),
            ("namespace", scheduler.namespace, exempt.namespaces),
            ("QOS", scheduler.qos, exempt.qos),
        ]
    return next((f"{what} {value} is exempt" for what, value, globs in rows if matches_any(value, globs)), None)


def warnings_given(case: Case) -> list[float]:
    """The times of delivered warnings: messages in this incident, ``warning_interval`` apart or more."""
    marks = case.state.of_incident(case.incident.number)
    delivered = sorted(
        mark.done_s
        for mark in marks
        if mark.action is ActionKind.NOTIFY and mark.done_s is not None and mark.counts(real=case.real)
    )
    counted: list[float] = []
    for at_s in delivered:
        if not counted or at_s - counted[-1] >= case.policy.brakes.warning_interval:
            counted.append(at_s)
    return counted


def wants_new_checkpoint(case: Case) -> bool:
    """Whether a stop needs a proven checkpoint and has none, or one that is too old or does not cover all living
    ranks."""
    if not stops(case.rung) or may_lose_work(case):
        return False
    proven = [
        mark.done_s
        for mark in case.state.of_incident(case.incident.number)
        if mark.action is ActionKind.CHECKPOINT
        and (mark.rule, mark.incarnation) == (case.rule.name, case.facts.target.incarnation)
        and mark.done_s is not None
        and mark.counts(real=case.real)
        and mark.covers >= case.facts.target.processes
    ]
    return not proven or case.now_s - max(proven) > case.policy.brakes.proof_max_age


def may_lose_work(case: Case) -> bool:
    """Whether the rung ends the job without a checkpoint. That holds for the group of ranks that the incident is about;
    other groups of the job have done nothing."""
    return stops(case.rung) and case.rung.without_checkpoint and not case.facts.target.others


def requeues_used(case: Case) -> int:
    """The number of times that Tidegauge requeued the job within ``requeues_within``."""
    since_s = case.now_s - case.policy.brakes.requeues_within
    return case.state.requeues(case.incident.key.job, since_s=since_s, real=case.real)
