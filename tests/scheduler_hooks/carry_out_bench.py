"""What tests of ``CarryOut`` share: an audit and a world that outlive it, a clock, and a turn of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from scheduler_hooks.fake_scheduler import UID, FakeEvidenceRanks, FakeJob, FakeScheduler, FakeWorld, MemoryAudit
from scheduler_values import decision, target
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, Outcome
from tidegauge_scheduler_hooks.carry_out import CarryOut
from tidegauge_scheduler_hooks.carry_out_steps import CarryOutTimes, Steps
from tidegauge_scheduler_hooks.ports import Audit

START_S = 1_800_000_000.0
TURN_S = 2.0
GRACE_S = 60.0
TIMES = CarryOutTimes(expires_after_s=300.0, verify_within_s=30.0, look_every_s=2.0, most_starts=3, slow_call_s=20.0)

PARAMETERS: dict[ActionKind, dict[str, Any]] = {
    ActionKind.NOTIFY: {"text": "rank 1 leaks"},
    ActionKind.ANNOTATE: {"text": "watched: leak"},
    ActionKind.CAP: {"fraction": 0.5},
    ActionKind.CHECKPOINT: {"grace_s": GRACE_S},
    ActionKind.REQUEUE: {"alloc_conf": {"expandable_segments": "True"}},
}

Plan = Callable[[Sequence[DecisionRecord]], Sequence[Decision]]
"""What a policy wants next, from all that is in the audit."""


def wanted(action: ActionKind, job_id: str = "4711", *, number: int = 1, **changes: Any) -> Decision:
    """A decision on the first run of a job; its id is made of incident, job and action."""
    whole = decision(
        action,
        decision_id=f"{number}:{job_id}:{action.value}",
        decided_s=START_S,
        target=target(JobKey(job_id, 0, UID)),
        parameters=PARAMETERS.get(action, {}),
    )
    return replace(whole, **changes)


def of_user(made: Decision, uid: int) -> Decision:
    """The same about a job of somebody else."""
    job = made.target.job
    return replace(made, target=replace(made.target, job=job._replace(uid=uid)))


def at_once(*decisions: Decision) -> Plan:
    """A policy that wants all of it now."""
    return lambda _: decisions


def in_turn(*decisions: Decision) -> Plan:
    """A policy that wants each when the one before is done."""

    def plan(records: Sequence[DecisionRecord]) -> Sequence[Decision]:
        done = {record.decision.decision_id for record in records if record.outcome is Outcome.DONE}
        number = next((n for n, one in enumerate(decisions) if one.decision_id not in done), len(decisions))
        return decisions[: number + 1]

    return plan


class Bench:
    """``audit`` and ``world`` are what survives; ``restart`` throws the ``CarryOut`` away and makes another."""

    def __init__(self, *jobs: FakeJob) -> None:
        self.now_s = START_S
        self.wall_ahead_s = 0.0
        self.held: str | None = None
        self.pause_s = float("inf")
        self.submit: Callable[[Callable[[], None]], object] = lambda call: call()
        self.audit = MemoryAudit()
        self.world = FakeWorld({job.job_id: job for job in jobs or (FakeJob("4711", can_save=True),)})
        self.scheduler = FakeScheduler(self.world)
        self.restart()

    def restart(self, audit: Audit | None = None, scheduler: FakeScheduler | None = None) -> None:
        """Another ``CarryOut``; by way of ``audit`` and ``scheduler``, if something stands before the bench's own."""
        self.carry_out = CarryOut(
            Steps(
                audit or self.audit,
                {"local": scheduler or self.scheduler},
                now_s=lambda: self.now_s,
                wall_s=lambda: self.now_s + self.wall_ahead_s,
                held_back=lambda _: "actions are paused" if self.now_s >= self.pause_s else self.held,
                times=TIMES,
                commands=FakeEvidenceRanks(scheduler or self.scheduler),
            ),
            submit=lambda call: self.submit(call),
        )

    def decide(self, *decisions: Decision) -> None:
        self.audit.write_ahead(decisions)

    def tick(self, times: int = 1) -> None:
        """So many turns, ``TURN_S`` apart."""
        for _ in range(times):
            self.carry_out.tick()
            self.now_s += TURN_S

    def finish(self) -> None:
        """Turns until everything has an outcome."""
        for _ in range(300):
            if not self.audit.unfinished():
                return
            self.tick()
        raise AssertionError(f"these have no outcome: {self.audit.unfinished()}")

    def outcome(self, made: Decision) -> Outcome | None:
        return self.audit.kept[made.decision_id].outcome

    def detail(self, made: Decision) -> str:
        return self.audit.kept[made.decision_id].detail or ""

    def effects(self, made: Decision) -> int:
        """How often it really happened."""
        return self.world.effects.count((made.decision_id, made.action.value))


class Killed(BaseException):
    """The process ends here: nothing of it may handle that."""


class RuleBroken(BaseException):
    """What must always hold did not: no code under test may handle that either."""


def die() -> None:
    """End the process, as far as code under test can tell."""
    raise Killed


class Boundaries:
    """Counts the moments right before and right after calls of ports, and ends the process at some of them."""

    def __init__(
        self, kill_at: Iterable[int] = (), *, look: Callable[[], None] = lambda: None, kill: Callable[[], None] = die
    ) -> None:
        self.passed = 0
        self.kills = 0
        self._kill_at = set(kill_at)
        self._look = look
        self._kill = kill

    def cross(self) -> None:
        self.passed += 1
        try:
            self._look()
        except AssertionError as error:
            raise RuleBroken(str(error)) from error
        if self.passed in self._kill_at:
            self.kills += 1
            self._kill()

    def around(self, port: object) -> Any:
        """``port``, with a boundary before and after each of its calls."""
        return _Bounded(port, self)


class _Bounded:
    def __init__(self, port: object, boundaries: Boundaries) -> None:
        self._port = port
        self._boundaries = boundaries

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._port, name)

        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._boundaries.cross()
            result = method(*args, **kwargs)
            self._boundaries.cross()
            return result

        return bounded


def begun_before_done(bench: Bench) -> None:
    """At any moment: nothing has happened that was not written down as begun, and nothing happened twice; what is
    called done has happened, and what is called superseded or stopped has not."""
    for decision_id, action in bench.world.effects:
        record = bench.audit.kept[decision_id]
        assert record.starts > 0, f"{action} of {decision_id} was not begun in the audit"
        assert bench.world.effects.count((decision_id, action)) == 1, f"{action} of {decision_id} happened twice"
    for record in bench.audit.kept.values():
        if record.outcome is Outcome.DONE:
            assert bench.effects(record.decision) == 1, f"{record.decision.decision_id} is called done"
        if record.outcome in (Outcome.SUPERSEDED, Outcome.STOPPED):
            assert bench.effects(record.decision) == 0, (
                f"{record.decision.decision_id} is called {record.outcome.value}"
            )


def run_with_kills(bench: Bench, plan: Plan, boundaries: Boundaries) -> None:
    """Turns of the loop until everything that the plan wants has an outcome; killed at boundaries, it starts anew."""
    audit, scheduler = boundaries.around(bench.audit), boundaries.around(bench.scheduler)
    bench.restart(audit, scheduler)
    for _ in range(1_000):
        try:
            decisions = plan(audit.each(since_s=0.0))
            new = audit.write_ahead(decisions)
            if not new and not audit.unfinished():
                return
            bench.tick()
        except Killed:
            bench.restart(audit, scheduler)
        bench.scheduler.settle()
    raise AssertionError(f"these have no outcome: {bench.audit.unfinished()}")
