"""Schedulers that hang, and workers that are many or none: nothing is repeated meanwhile, and others go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

import pytest

from scheduler_hooks.carry_out_bench import (
    START_S,
    TIMES,
    Bench,
    begun_before_done,
    of_user,
    wanted,
)
from scheduler_hooks.fake_scheduler import FakeJob, FakeScheduler
from tidegauge.core.incidents.actions import ActionKind, Decision, Outcome
from tidegauge_scheduler_hooks.carry_out import CarryOut
from tidegauge_scheduler_hooks.carry_out_steps import Steps
from tidegauge_scheduler_hooks.closed_loop import workers_for
from waiting import PATIENCE_S

NOTIFY, CAP = wanted(ActionKind.NOTIFY), wanted(ActionKind.CAP)
REQUEUE = wanted(ActionKind.REQUEUE)


class Hanging:
    """A call that is entered and does not return before it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.release.wait(PATIENCE_S)


class Workers:
    """A pool whose calls can be waited for."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.futures: list[Future[None]] = []

    def submit(self, call: Callable[[], None]) -> None:
        self.futures.append(self._pool.submit(call))

    def wait(self, *, but: int = 0) -> None:
        """Until all but so many calls have returned."""
        while sum(not future.done() for future in self.futures) > but:
            pending = [future for future in self.futures if not future.done()]
            done, _ = wait(pending, PATIENCE_S, return_when="FIRST_COMPLETED")
            assert done, "no call returned"
        for future in self.futures:
            if future.done():
                future.result()


@pytest.fixture
def workers() -> Iterator[Workers]:
    with ThreadPoolExecutor(6) as pool:
        yield Workers(pool)


@pytest.mark.parametrize(("made", "method"), [(REQUEUE, "presence"), (REQUEUE, "requeue"), (NOTIFY, "notify")])
def test_a_call_that_hangs_stops_no_other_job_and_is_not_repeated(
    made: Decision, method: str, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(FakeJob("4711"), FakeJob("4712"))
    bench.submit = workers.submit
    hanging = Hanging()
    bench.scheduler.before[method] = [hanging]
    other = wanted(ActionKind.HOLD, "4712", number=2)
    bench.decide(made)
    bench.tick()
    assert hanging.entered.wait(PATIENCE_S)
    bench.decide(other)
    while bench.outcome(other) is None:
        bench.tick()
        workers.wait(but=1)
    assert bench.outcome(other) is Outcome.DONE
    bench.now_s = START_S + 40.0
    bench.tick(3)
    assert [(one.decision_id, one.what) for one in bench.carry_out.under_way()] == [
        (made.decision_id, "being carried out for 46 s")
    ]
    (warning,) = [entry.message for entry in caplog.records if entry.levelno == logging.WARNING]
    assert "adapter local has not returned for 40 s; it is not called again until it does" in warning
    assert made.decision_id in warning
    hanging.release.set()
    while bench.outcome(made) is None:
        workers.wait()
        bench.tick()
    assert bench.outcome(made) is Outcome.DONE
    assert bench.scheduler.calls.count(made.action.value) == 1


def test_a_job_with_a_call_that_hangs_is_not_acted_on_otherwise(workers: Workers) -> None:
    bench = Bench()
    bench.submit = workers.submit
    hanging = Hanging()
    bench.scheduler.before["requeue"] = [hanging]
    bench.decide(REQUEUE)
    bench.tick()
    assert hanging.entered.wait(PATIENCE_S)
    bench.decide(CAP)
    bench.tick(3)
    hanging.release.set()
    while bench.audit.unfinished():
        workers.wait()
        bench.tick()
    assert bench.outcome(CAP) is Outcome.SUPERSEDED
    assert [action for _, action in bench.world.effects] == ["requeue"]


def test_a_scheduler_that_hangs_leaves_workers_for_another(workers: Workers) -> None:
    jobs = [FakeJob(f"job-{number}") for number in range(8)]
    bench = Bench(*jobs)
    healthy = FakeScheduler(bench.world)
    release = threading.Event()
    entered = threading.Semaphore(0)

    def hang() -> None:
        entered.release()
        assert release.wait(PATIENCE_S)

    bench.scheduler.before["cap"] = [hang] * 8
    caps = [of_user(wanted(ActionKind.CAP, job.job_id), 2000 + n) for n, job in enumerate(jobs[:7])]
    elsewhere = wanted(ActionKind.CAP, "job-7")
    carry_out = CarryOut(
        Steps(
            bench.audit,
            {"local": bench.scheduler, "ray": healthy},
            now_s=lambda: bench.now_s,
            wall_s=lambda: bench.now_s,
            held_back=lambda _: None,
            times=TIMES,
        ),
        submit=workers.submit,
    )
    bench.decide(*caps)
    carry_out.tick()
    for _ in range(TIMES.calls_per_scheduler):
        assert entered.acquire(timeout=PATIENCE_S)
    bench.decide(replace(elsewhere, target=replace(elsewhere.target, scheduler="ray")))
    carry_out.tick()
    workers.wait(but=TIMES.calls_per_scheduler)
    assert bench.outcome(elsewhere) is Outcome.DONE
    assert bench.scheduler.calls.count("cap") == TIMES.calls_per_scheduler
    release.set()
    while bench.audit.unfinished():
        workers.wait()
        carry_out.tick()
    assert all(bench.effects(cap) == 1 for cap in caps)


def test_no_call_waits_for_a_worker_that_a_hanging_one_holds() -> None:
    """As the coordinator has them: three schedulers hang in all that they are asked at once, and so does a chat."""
    actions, descriptions, messages = 3 * TIMES.calls_per_scheduler, 3, TIMES.messages_at_once
    assert workers_for(3) >= actions + descriptions + messages


class HangingMessenger:
    """A chat that does not answer before it is released."""

    def __init__(self) -> None:
        self.hanging = Hanging()
        self.told: list[str] = []
        self.entered = threading.Semaphore(0)

    def tell(self, decision: Decision) -> str:
        self.told.append(decision.decision_id)
        self.entered.release()
        self.hanging()
        return "on Slack"


def test_a_chat_that_hangs_takes_no_place_of_a_scheduler_and_few_workers(workers: Workers) -> None:
    jobs = [FakeJob(f"job-{number}") for number in range(8)]
    bench, messenger = Bench(*jobs), HangingMessenger()
    carry_out = CarryOut(
        Steps(
            bench.audit,
            {"local": bench.scheduler},
            now_s=lambda: bench.now_s,
            wall_s=lambda: bench.now_s,
            held_back=lambda _: None,
            times=TIMES,
            messenger=messenger,
        ),
        submit=workers.submit,
    )
    told = [of_user(wanted(ActionKind.NOTIFY, job.job_id), 2000 + n) for n, job in enumerate(jobs[:7])]
    cap = wanted(ActionKind.CAP, "job-7")
    bench.decide(*told)
    carry_out.tick()
    for _ in range(TIMES.messages_at_once):
        assert messenger.entered.acquire(timeout=PATIENCE_S)
    bench.decide(cap)
    carry_out.tick()
    workers.wait(but=TIMES.messages_at_once)
    assert bench.outcome(cap) is Outcome.DONE
    assert len(messenger.told) == TIMES.messages_at_once
    messenger.hanging.release.set()
    while bench.audit.unfinished():
        workers.wait()
        carry_out.tick()
    assert sorted(messenger.told) == [one.decision_id for one in told]


def test_without_a_worker_it_is_handed_out_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    submit, bench.submit = bench.submit, raising_submit
    bench.decide(CAP)
    bench.tick()
    assert "no worker for decision 1:4711:cap" in caplog.text
    bench.submit = submit
    bench.tick()
    assert bench.outcome(CAP) is Outcome.DONE


def raising_submit(call: Callable[[], None]) -> None:
    raise RuntimeError("can't start new thread")


def test_in_many_threads_everything_happens_once(workers: Workers) -> None:
    jobs = [FakeJob(f"job-{number}", can_save=True) for number in range(6)]
    bench = Bench(*jobs)
    bench.submit = workers.submit
    made = [wanted(action, job.job_id) for job in jobs for action in (ActionKind.CHECKPOINT, ActionKind.HOLD)]
    bench.decide(*made, *made)
    while bench.audit.unfinished():
        bench.tick()
        workers.wait()
    assert {bench.outcome(one) for one in made} == {Outcome.DONE}
    begun_before_done(bench)
