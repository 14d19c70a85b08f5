"""Simulates a policy on past incidents: time passes in steps, every action counts as done at once. Pure.

The effects of the actions are unknown: a job that would have been ended is left out from then on, although in the
history it went on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegauge.core.ids import JobKey, OwnedJob
from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge.core.incidents.actions import ActionKind, Decision, Disposition, JobFacts, JobTarget, SchedulerFacts
from tidegauge_scheduler_hooks.policy.decide import decide, next_look_s
from tidegauge_scheduler_hooks.policy.models import Policy
from tidegauge_scheduler_hooks.policy.state import PolicyState


@dataclass(frozen=True)
class Simulation:
    """The decisions that the policy would have made."""

    decisions: tuple[Decision, ...]
    """In order of time; ``would``: it would have been carried out in mode ``act``; ``withheld``: a brake held it."""
    from_s: float
    until_s: float
    incidents: int
    assumed: tuple[int, ...]
    """Incidents without recorded facts: their jobs count as notifiable, and neither saved nor requeued."""
    breaker: str | None
    """Why the circuit breaker would have opened; ``None``: it would not."""
    user_breakers: tuple[str, ...] = ()
    """The reasons of single users' breakers that would have opened."""

    @property
    def totals(self) -> Mapping[ActionKind, int]:
        """The number of times each action would have been carried out; actions that never would are left out."""
        return Counter(one.action for one in self._carried_out())

    @property
    def jobs_told(self) -> frozenset[OwnedJob]:
        return self._jobs(lambda action: action.is_words)

    @property
    def jobs_touched(self) -> frozenset[OwnedJob]:
        return self._jobs(lambda action: action.is_acting)

    @property
    def brakes(self) -> Mapping[str, int]:
        """The number of decisions that each brake held back, for a while or for good."""
        return Counter(one.brake for one in self.decisions if one.brake is not None)

    def _jobs(self, is_meant: Callable[[ActionKind], bool]) -> frozenset[OwnedJob]:
        return frozenset(one.target.job.owned for one in self._carried_out() if is_meant(one.action))

    def _carried_out(self) -> Iterable[Decision]:
        return (one for one in self.decisions if one.disposition is Disposition.WOULD)


def simulate(
    changes: Sequence[IncidentChange], facts: Mapping[int, JobFacts], policy: Policy, *, until_s: float | None = None
) -> Simulation:
    """The decisions of ``policy`` in mode ``act``, whatever its own mode is.

    ``changes`` are the incidents' history, ``facts`` the facts of their jobs by the incident's number, from any
    decision on it. Incidents that are still open are followed until ``until_s``, by default the last change."""
    # Observing takes every action as done at once and meets the same brakes: just what is wanted here.
    observing = policy.model_copy(update={"mode": "observe"})
    ordered = sorted(changes, key=lambda change: change.at_unix_s)
    recorded = {change.incident.number: facts.get(change.incident.number) for change in ordered}
    end_s = until_s if until_s is not None else max((change.at_unix_s for change in ordered), default=0.0)
    times_s = [*(change.at_unix_s for change in ordered[1:]), math.inf]
    state, made = PolicyState(), list[Decision]()
    incidents: dict[int, Incident] = {}
    for change, next_s in zip(ordered, times_s):
        incidents[change.incident.number] = change.incident
        jobs = [
            (incident, recorded[number] or unknown_job(incident))
            for number, incident in sorted(incidents.items())
            if incident.is_open
        ]
        before_s = min(next_s, math.nextafter(end_s, math.inf))
        decisions, state = _pass_time(jobs, observing, state, from_s=change.at_unix_s, before_s=before_s)
        made += decisions
    opening = state.breaker_opening(real=False)
    return Simulation(
        decisions=tuple(made),
        from_s=ordered[0].at_unix_s if ordered else end_s,
        until_s=end_s,
        incidents=len(recorded),
        assumed=tuple(sorted(number for number, of_job in recorded.items() if of_job is None)),
        breaker=None if opening is None else opening.reason,
        user_breakers=tuple(mark.reason for mark in state.user_breaker_openings(real=False)),
    )


def _pass_time(
    jobs: Sequence[tuple[Incident, JobFacts]], policy: Policy, state: PolicyState, *, from_s: float, before_s: float
) -> tuple[list[Decision], PolicyState]:
    """The decisions while only time passes."""
    made: list[Decision] = []
    looks_s = [from_s] * len(jobs)
    while (now_s := min(looks_s, default=math.inf)) < before_s:
        for index, (incident, facts) in enumerate(jobs):
            if looks_s[index] <= now_s:
                decisions, state = decide(incident, facts, policy, state, now_s=now_s)
                made += decisions
                looks_s[index] = next_look_s(incident, facts, policy, state, now_s=now_s)
    return made, state


def unknown_job(incident: Incident) -> JobFacts:
    """Facts of a job of which only the incident is recorded: everything that would allow an action is absent."""
    job: JobKey = incident.key.job
    incarnation = f"attempt {job.attempt}"
    return JobFacts(
        target=JobTarget(job, incident.scheduler or "unknown", incarnation),
        scheduler_facts=SchedulerFacts(incarnation, running=True, requeueable=False),
        running=True,
        stale=incident.stale,
        world_size=incident.world_size,
        user_name=incident.user_name,
        job_name=incident.job_name,
        checkpoint=None,
        shared_gpu=False,
    )
