"""A small made-up cluster for property tests of the policy: any policy, any course of events, played through ``decide``
as the closed loop does it. What comes out is the audit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from sample_views import NOW_S
from scheduler_values import facts, incident, scheduler_facts, target
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident, IncidentCause, IncidentState
from tidegauge.core.incidents.actions import (
    CheckpointWay,
    Decision,
    DecisionRecord,
    DecisionStatus,
    Disposition,
    JobFacts,
    Outcome,
)
from tidegauge.core.verdicts import Band, Severity
from tidegauge_scheduler_hooks.policy.decide import decide
from tidegauge_scheduler_hooks.policy.models import Policy
from tidegauge_scheduler_hooks.policy.state import PolicyState

JOBS = 4
CAUSES = (IncidentCause.LEAK, IncidentCause.FRAGMENTATION)
"""Of the two incidents that each job has at a time."""


class Turn(NamedTuple):
    """Time passes, one thing happens to one job or to all, then every incident is decided on."""

    wait_s: float
    job: int
    event: str
    value: Any


@dataclass
class World:
    """``records`` is the audit, in the order in which decisions were made."""

    policy: Policy
    incidents: list[Incident] = field(default_factory=list)
    facts: list[JobFacts] = field(default_factory=list)
    state: PolicyState = field(default_factory=PolicyState)
    now_s: float = NOW_S
    records: dict[str, DecisionRecord] = field(default_factory=dict)
    states_when_decided: dict[str, PolicyState] = field(default_factory=dict)
    most_under_way: int = 0
    """Decisions to be carried out on one job that were under way at once."""

    def decisions(self, *dispositions: Disposition, acting: bool | None = None) -> list[Decision]:
        """Of these dispositions, in the order of the audit."""
        made = (record.decision for record in self.records.values())
        return [one for one in made if one.disposition in dispositions and acting in (None, one.action.is_acting)]


def play(policy: Policy, course: list[Turn]) -> World:
    """What the policy does in this course of events."""
    world = World(policy)
    for number in range(JOBS):
        job = JobKey(f"job{number}", 0, 1000 + number % 2)
        scheduler = scheduler_facts(requeueable=number > 0)
        world.facts.append(
            facts(job, user_name=f"user{number % 2}", jobs_running=JOBS, scheduler_facts=scheduler, cap_fraction=0.5)
        )
        world.incidents += [_incident(world, job, number, index) for index in range(len(CAUSES))]
    for turn in course:
        world.now_s += turn.wait_s
        event = _EVENTS.get(turn.event)
        if event is not None:
            event(world, turn)
        _decide_all(world)
    return world


def ask_again(world: World) -> list[Decision]:
    """What is decided though nothing has happened since the last time, not even time has passed."""
    made: list[Decision] = []
    for index, one in enumerate(world.incidents):
        of_job = world.facts[index // len(CAUSES)]
        made += decide(one, of_job, world.policy, world.state, now_s=world.now_s)[0]
    return made


def _incident(world: World, job: JobKey, number: int, index: int) -> Incident:
    unique = 1 + index + len(CAUSES) * (number + JOBS * job.attempt)
    return incident(
        CAUSES[index], job=job, number=unique, opened_unix_s=world.now_s, updated_unix_s=world.now_s
    )  # fmt: skip


def _decide_all(world: World) -> None:
    for index, one in enumerate(world.incidents):
        of_job = world.facts[index // len(CAUSES)]
        before = world.state
        made, world.state = decide(one, of_job, world.policy, world.state, now_s=world.now_s)
        for decision in made:
            assert decision.decision_id not in world.records, "the audit would not take it for a new one"
            status = DecisionStatus.DECIDED if decision.disposition is Disposition.DO else DecisionStatus.FINISHED
            world.records[decision.decision_id] = DecisionRecord(decision, status)
            world.states_when_decided[decision.decision_id] = before
    under_way = [record.decision.target.job.job_id for record in _under_way(world)]
    world.most_under_way = max([world.most_under_way, *map(under_way.count, under_way)])


def _under_way(world: World) -> list[DecisionRecord]:
    made = world.records.values()
    return [one for one in made if one.decision.disposition is Disposition.DO and one.outcome is None]


def _finish(world: World, turn: Turn) -> None:
    """What is under way ends: on one job in this way, on the others well. What was ended starts again."""
    for record in _under_way(world):
        job = int(record.decision.target.job.job_id.removeprefix("job"))
        outcome = turn.value if job == turn.job else Outcome.DONE
        over = replace(record, status=DecisionStatus.FINISHED, outcome=outcome, finished_s=world.now_s)
        world.records[record.decision.decision_id] = over
        world.state = world.state.with_records([over])
        if record.decision.action.is_stop and outcome is Outcome.DONE:
            _restart(world, turn._replace(job=job))


def _restart(world: World, turn: Turn) -> None:
    """The job starts again: another attempt, and incidents of its own."""
    old = world.facts[turn.job]
    job = old.target.job._replace(attempt=old.target.job.attempt + 1)
    world.facts[turn.job] = replace(old, target=target(job, incarnation=f"{job.attempt}@later"))
    for index in range(len(CAUSES)):
        world.incidents[turn.job * len(CAUSES) + index] = _incident(world, job, turn.job, index)


def _change_facts(world: World, turn: Turn) -> None:
    world.facts[turn.job] = replace(world.facts[turn.job], **turn.value)


def _change_scheduler(world: World, turn: Turn) -> None:
    scheduler = world.facts[turn.job].scheduler_facts
    assert scheduler is not None
    world.facts[turn.job] = replace(world.facts[turn.job], scheduler_facts=replace(scheduler, **turn.value))


def _change_incidents(world: World, turn: Turn) -> None:
    for index in range(turn.job * len(CAUSES), (turn.job + 1) * len(CAUSES)):
        changes = {**turn.value, "updated_unix_s": world.now_s}
        world.incidents[index] = replace(world.incidents[index], **changes)


def _change_mode(world: World, turn: Turn) -> None:
    world.policy = world.policy.model_copy(update={"mode": turn.value})


def _edit(world: World, turn: Turn) -> None:
    """Somebody changes the rules; their names stay."""
    rules = _policy(random.Random(turn.value), ["act"]).rules
    world.policy = world.policy.model_copy(update={"rules": rules})


def _pause(world: World, turn: Turn) -> None:
    world.state = replace(world.state, paused=turn.value)


def _reset(world: World, _turn: Turn) -> None:
    world.state = replace(world.state, breaker_reset_s=world.now_s)


_EVENTS: dict[str, Callable[[World, Turn], None]] = {
    "outcome": _finish,
    "restart": _restart,
    "facts": _change_facts,
    "scheduler": _change_scheduler,
    "incidents": _change_incidents,
    "mode": _change_mode,
    "edit": _edit,
    "pause": _pause,
    "reset": _reset,
}

_TROUBLES: list[tuple[str, Any, Any]] = [
    ("facts", {"checkpoint": None}, {"checkpoint": CheckpointWay.SIGNAL}),
    ("facts", {"stale": True}, {"stale": False}),
    ("facts", {"running": False}, {"running": True}),
    ("scheduler", {"exempt": True}, {"exempt": False}),
    ("scheduler", {"requeueable": False}, {"requeueable": True}),
    ("incidents", {"severity": Severity.WARNING}, {"severity": Severity.CRITICAL}),
    ("incidents", {"state": IncidentState.RECOVERING}, {"state": IncidentState.OPEN}),
    ("incidents", {"seconds_to_oom": None}, {"seconds_to_oom": Band(500, 900, 1000)}),
    ("pause", "by root", None),
]
"""What may come over a job, and its end, which is more frequent: or nothing would ever come to its end."""
_MOMENTS: list[tuple[str, Any]] = [
    *[("outcome", outcome) for outcome in [Outcome.DONE] * 50 + list(Outcome)],
    *[(event, trouble) for event, trouble, _ in _TROUBLES],
    *[(event, end) for event, _, end in _TROUBLES * 5],
    *[("nothing", None)] * 10,
    *[("restart", None), ("reset", None)] * 2,
]
MODES = [("mode", mode) for mode in ("observe", "warn", *["act"] * 6)]
EDITS = [("edit", seed) for seed in range(10)]
_WAITS_S = [0.0, 0.0, 1.0, 60.0, 60.0, 300.0, 300.0, 1000.0, 3600.0]


def courses(*more: tuple[str, Any]) -> st.SearchStrategy[list[Turn]]:
    """Any course of events, ``more`` of them among them; in some the clock stands still all the time.

    Drawn from a seed: left to itself, Hypothesis repeats turns so often that few jobs ever come to be ended.
    """
    return st.integers(0, 2**32 - 1).map(lambda seed: _course(random.Random(seed), [*_MOMENTS, *more]))


def _course(dice: random.Random, moments: list[tuple[str, Any]]) -> list[Turn]:
    waits_s = dice.choice([_WAITS_S] * 5 + [[0.0]])
    return [
        Turn(dice.choice(waits_s), dice.randrange(JOBS), *dice.choice(moments)) for _ in range(dice.randrange(20, 80))
    ]


def policies(*modes: str) -> st.SearchStrategy[Policy]:
    """Any policy in one of these modes, sensible or not: the engine must be safe with all of them."""
    return st.integers(0, 2**32 - 1).map(lambda seed: _policy(random.Random(seed), modes))


def hasty_policies() -> st.SearchStrategy[Policy]:
    """Policies that requeue at once whatever they see, so that it is done again and again."""
    ladder = [{"action": "requeue", "without_checkpoint": True, "tries": 9, "retry_after": 0}]
    rules = {"rules": [{"name": "hasty", "ladder": ladder}]}
    free = {"warnings_before_stop": 0, "min_age": 0, "actions_per_user_per_hour": 99, "actions_per_hour": 99}

    def hasten(policy: Policy) -> Policy:
        written = policy.model_dump()
        return Policy.model_validate({**written, **rules, "brakes": {**written["brakes"], **free}})

    return policies("act").map(hasten)


def _policy(dice: random.Random, modes: Sequence[str]) -> Policy:
    brakes = {
        "warnings_before_stop": dice.randrange(3),
        "warning_interval": dice.choice([0, 60, 300]),
        "min_age": dice.choice([0, 60, 300]),
        "min_severity": dice.choice(["warning", "critical"]),
        "proof_max_age": dice.choice([60, 600]),
        "requeues_per_job": dice.choice([0, 1, 1, 2]),
        "requeues_within": dice.choice([3600, 86400]),
        "actions_per_hour": dice.choice([1, 6, 20, 20]),
        "actions_per_user_per_hour": dice.choice([1, 4, 20]),
        "actions_per_job_per_hour": dice.choice([1, 4, 20]),
        "breaker": {
            "share": dice.choice([0.3, 0.6, 1.0]),
            "window": dice.choice([600, 3600]),
            "min_jobs": dice.randrange(1, 4),
        },
        "exempt": dice.choice([{}, {}, {}, {"users": ["user1"]}]),
    }
    rules = [
        {"name": "severe", "when": {"severity": "critical"}, "ladder": _ladder(dice)},
        {"name": "rest", "ladder": _ladder(dice)},
    ]
    return Policy.model_validate({"version": 1, "mode": dice.choice(modes), "brakes": brakes, "rules": rules})


def _ladder(dice: random.Random) -> list[dict[str, Any]]:
    stop = dice.choice(["requeue", "requeue", "requeue", "hold", "cancel"])
    usual = ["notify", "notify", "checkpoint", stop]
    odd = dice.choices(["notify", "annotate", "cap", "checkpoint", "requeue", "hold"], k=dice.randrange(1, 6))
    return [_rung(dice, action) for action in dice.choice([usual, usual, ["notify", stop], ["notify", stop], odd])]


def _rung(dice: random.Random, action: str) -> dict[str, Any]:
    rung = {
        "action": action,
        "after": dice.choice([0, 60, 300]),
        "before_oom": dice.choice([None, None, 900, 3600]),
        "tries": dice.randrange(1, 4),
        "retry_after": dice.choice([0, 60]),
    }
    if action in ("requeue", "hold", "cancel"):
        rung["without_checkpoint"] = dice.choice([False, True])
    if action == "requeue":
        rung["when_used_up"] = dice.choice(["hold", "cancel", "leave"])
    return rung
