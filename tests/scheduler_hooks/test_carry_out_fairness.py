"""Who comes first when many decisions wait for the same few calls: users take turns, whatever their jobs do."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler_hooks.carry_out_bench import START_S, TURN_S, Bench, of_user, wanted
from scheduler_hooks.fake_scheduler import UID, FakeEvidenceRanks, FakeJob, FakeScheduler
from scheduler_values import target
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, DecisionStatus, JobTarget, Outcome
from tidegauge.core.jobs.kubernetes import SCHEDULER as KUBERNETES
from tidegauge_scheduler_hooks.carry_out import MAX_REMEMBERED, CarryOut, FairCalls
from tidegauge_scheduler_hooks.carry_out_steps import CarryOutTimes, Steps
from tidegauge_scheduler_hooks.ports import TemporaryError

TIMES = CarryOutTimes()
VICTIM_UID = 2001
CALL_S = 10.0
"""How long every call takes: as long as a keeper is waited for that does not answer."""
SILENT = [f"silent-{number}" for number in range(60)]
ASIDE = [ActionKind.NOTIFY, ActionKind.SNAPSHOT]


class SilentKeepers(FakeScheduler):
    """Jobs whose names say so never answer."""

    def _do(
        self, method: str, action: ActionKind, target: JobTarget, decision_id: str, *args: Any, **more: Any
    ) -> None:
        if target.job.job_id in SILENT:
            raise TemporaryError("the keeper does not answer", retry_after_s=5.0)
        super()._do(method, action, target, decision_id, *args, **more)


class SlowCalls:
    """Workers without threads: each call has its effect ``CALL_S`` after it was handed out."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def submit(self, call: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (self._bench.now_s + CALL_S, next(self._numbers), call))

    def end(self) -> None:
        while self._calls and self._calls[0][0] <= self._bench.now_s:
            heapq.heappop(self._calls)[2]()


def victims(action: ActionKind, *, number: int, decided_s: float) -> Decision:
    return of_user(wanted(action, "victim", number=number, decided_s=decided_s), VICTIM_UID)


class Cluster:
    """One user's silent jobs, a victim's job, and calls that all take their time."""

    def __init__(self) -> None:
        self.bench = Bench(*(FakeJob(name) for name in (*SILENT, "victim")))
        self.scheduler = SilentKeepers(self.bench.world)
        self.restart()

    def restart(self, submit: Callable[[Callable[[], None]], None] | None = None) -> None:
        self.calls = SlowCalls(self.bench)
        self.bench.carry_out = CarryOut(
            Steps(
                self.bench.audit,
                {"local": self.scheduler},
                now_s=lambda: self.bench.now_s,
                wall_s=lambda: self.bench.now_s,
                held_back=lambda _: None,
                times=TIMES,
                commands=FakeEvidenceRanks(self.scheduler),
            ),
            submit=submit or self.calls.submit,
        )

    def tick(self) -> None:
        self.bench.tick()
        self.calls.end()

    def wait_for(self, made: Decision) -> float:
        """Seconds from its decision to its outcome."""
        while self.bench.outcome(made) is None:
            self.tick()
        return self.bench.now_s - made.decided_s


@pytest.mark.parametrize("action", [*ASIDE, ActionKind.ANNOTATE, ActionKind.CAP])
def test_sixty_silent_jobs_of_one_user_make_nobody_else_wait(action: ActionKind) -> None:
    cluster = Cluster()
    cluster.bench.decide(*(wanted(action, name) for name in SILENT))
    for _ in range(10):
        cluster.tick()
    for number in range(2, 6):
        made = victims(action, number=number, decided_s=cluster.bench.now_s)
        cluster.bench.decide(made)
        waited_s = cluster.wait_for(made)
        assert cluster.bench.outcome(made) is Outcome.DONE
        assert waited_s <= 2 * CALL_S + 2 * TURN_S


def test_a_restart_among_silent_jobs_makes_nobody_wait_long() -> None:
    cluster = Cluster()
    cluster.bench.decide(*(wanted(ActionKind.NOTIFY, name) for name in SILENT))
    for _ in range(40):
        cluster.tick()
    made = victims(ActionKind.NOTIFY, number=2, decided_s=cluster.bench.now_s)
    cluster.bench.decide(made)
    cluster.restart()
    assert cluster.wait_for(made) <= 2 * CALL_S
    assert cluster.bench.outcome(made) is Outcome.DONE


def test_calls_that_never_return_leave_one_to_others() -> None:
    cluster = Cluster()
    endless: list[Callable[[], None]] = []
    cluster.restart(endless.append)
    cluster.bench.decide(*(wanted(ActionKind.CAP, name) for name in SILENT))
    for _ in range(10):
        cluster.tick()
    assert len(endless) == TIMES.calls_per_scheduler - 1
    made = victims(ActionKind.CAP, number=2, decided_s=cluster.bench.now_s)
    cluster.bench.decide(made)
    cluster.tick()
    endless[-1]()
    assert cluster.bench.outcome(made) is Outcome.DONE


def test_carry_out_serves_one_user_started_first_then_by_age() -> None:
    bench = Bench(*(FakeJob(name) for name in ("a", "b", "c")))
    old = wanted(ActionKind.CAP, "a", number=1, decided_s=START_S - 2.0)
    begun = wanted(ActionKind.CAP, "b", number=2, decided_s=START_S - 1.0)
    young = wanted(ActionKind.CAP, "c", number=3)
    bench.decide(young, old, begun)
    bench.audit.begin(begun.decision_id, at_s=START_S)
    bench.finish()
    assert [name for name, _ in bench.world.effects] == [one.decision_id for one in (begun, old, young)]


# Turns by themselves


def turns_of(turns: FairCalls, waiting: Sequence[Decision], busy: Sequence[Decision] = ()) -> list[str]:
    records = [DecisionRecord(made, DecisionStatus.DECIDED) for made in waiting]
    return [record.decision.decision_id for record in turns.next(records, busy)]


def caps(uid: int, count: int, *, first: int = 0) -> list[Decision]:
    return [of_user(wanted(ActionKind.CAP, f"{uid}-{number}"), uid) for number in range(first, first + count)]


def test_fair_calls_serve_the_user_served_longest_ago_first() -> None:
    turns = FairCalls(replace(TIMES, calls_per_scheduler=1))
    waiting = [*caps(1, 3), *caps(2, 3), *caps(3, 1)]
    served = []
    while waiting:
        (name,) = turns_of(turns, waiting)
        served.append(name.split(":")[1])
        waiting = [made for made in waiting if made.decision_id != name]
    assert served == ["1-0", "2-0", "3-0", "1-1", "2-1", "1-2", "2-2"]


def test_fair_calls_serve_the_user_with_the_fewest_running_calls_first() -> None:
    turns = FairCalls(TIMES)
    assert turns_of(turns, caps(2, 1)) == ["1:2-0:cap"]
    waiting = [*caps(1, 3, first=2), *caps(2, 3, first=1)]
    assert turns_of(turns, waiting, busy=caps(1, 2)) == ["1:2-1:cap"]


def test_lanes_have_turns_of_their_own() -> None:
    turns = FairCalls(TIMES)
    told = [of_user(wanted(ActionKind.NOTIFY, f"1-{number}"), 1) for number in range(5)]
    assert turns_of(turns, [*told, *caps(1, 5)]) == ["1:1-0:notify", "1:1-1:notify", "1:1-0:cap", "1:1-1:cap"]


def test_on_kubernetes_namespaces_take_turns_whatever_names_are_written_to_their_pods() -> None:
    def named(job_id: str, user_name: str) -> Decision:
        made = wanted(ActionKind.CAP, job_id)
        about = replace(target(JobKey(job_id, 0, UID)), scheduler=KUBERNETES)
        return replace(made, target=about, facts=replace(made.facts, target=about, user_name=user_name))

    flood = [named(f"team/job-{number}", f"somebody-{number}") for number in range(5)]
    assert turns_of(FairCalls(TIMES), [*flood, named("other/job", "grace")]) == [
        "1:team/job-0:cap",
        "1:other/job:cap",
        "1:team/job-1:cap",
    ]


def test_turns_that_are_remembered_are_bounded() -> None:
    turns = FairCalls(replace(TIMES, calls_per_scheduler=1))
    for uid in range(MAX_REMEMBERED + 100):
        turns_of(turns, caps(uid, 1))
    assert len(turns) == MAX_REMEMBERED
    # The latest to be served is still known as that.
    assert turns_of(turns, [*caps(MAX_REMEMBERED + 99, 1), *caps(MAX_REMEMBERED + 98, 1)]) == [
        f"1:{MAX_REMEMBERED + 98}-0:cap"
    ]
