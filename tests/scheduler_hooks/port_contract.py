"""What every ``SchedulerPort`` must keep to, whatever is behind it: a model, processes, a server.

An adapter's tests say how to get at jobs from outside, and inherit the rest::

    from scheduler_hooks.port_contract import ContractWorld, PortContract

    class LocalWorld(ContractWorld): ...

    class TestLocalPort(PortContract):
        @pytest.fixture
        def world(self) -> Iterator[ContractWorld]: ...
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from tidegauge.core.ids import JobId, JobKey
from tidegauge.core.incidents.actions import ActionKind, JobTarget, SchedulerFacts
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.job_ends import TellsEnds
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    CheckpointProgress,
    CheckpointStage,
    PermanentError,
    Presence,
    RequeueChanges,
    SchedulerPort,
    TemporaryError,
)

GRACE_S = 60.0
WITHIN_S = 90.0
STOPS = (ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL)


class ContractWorld(ABC):
    """One scheduler, with jobs that run until they are ended. Looks at them past the adapter."""

    port: SchedulerPort

    @abstractmethod
    def start_job(self, *, saves: bool = False) -> JobView:
        """Start a job of one rank that may be requeued, and return it as the coordinator sees it once it runs.

        It goes on until it is ended. With ``saves`` it can be asked for a checkpoint, and saves at once when it is.
        Its rank takes the ``fraction`` command."""

    @abstractmethod
    def view_now(self, job: JobView) -> JobView:
        """The job as the coordinator sees it now; after a requeue that is another attempt."""

    @abstractmethod
    def end_by_itself(self, job: JobView) -> None:
        """Have the job's program end with exit code 0, and return when the scheduler knows."""

    @abstractmethod
    def starts(self, job: JobView) -> int:
        """How often the job's program was started."""

    @abstractmethod
    def alive(self, job: JobView) -> bool:
        """Whether the job's program runs, in any incarnation."""

    @abstractmethod
    def saves(self, job: JobView) -> int:
        """How often the job saved its state."""

    @abstractmethod
    def environ(self, job: JobView) -> dict[str, str]:
        """The environment that the latest incarnation was started with."""

    @abstractmethod
    def owner_sees(self, job: JobView) -> str:
        """Everything that the owner can read where ``notify`` and ``annotate`` leave it."""

    def until(self, true: Callable[[], bool]) -> None:
        """Return once ``true()`` is; fail after a while. A world that does things at once need not wait."""
        deadline_s = time.monotonic() + WITHIN_S
        while not true():
            assert time.monotonic() < deadline_s, f"it did not happen within {WITHIN_S:.0f} s"
            time.sleep(0.05)


class PortContract(ABC):
    """The tests. A subclass (named ``Test…``) gives the fixture ``world``."""

    @pytest.fixture
    @abstractmethod
    def world(self) -> ContractWorld | Iterator[ContractWorld]:
        """A scheduler with no job; ended after the test."""

    # What is there

    def test_a_running_job_is_described_and_runs(self, world: ContractWorld) -> None:
        job = world.start_job()
        facts = self.facts(world, job)
        assert facts.running
        assert facts.requeueable
        assert not facts.exempt
        assert facts.incarnation
        assert world.port.presence(self.target(world, job)) is Presence.RUNNING

    def test_several_jobs_are_described_at_once_and_unknown_ones_left_out(self, world: ContractWorld) -> None:
        jobs = [world.start_job(), world.start_job()]
        stranger = self.stranger(jobs[0])
        assert set(world.port.describe([*jobs, stranger])) == {job.key for job in jobs}
        assert world.port.describe([]) == {}

    def test_a_job_that_ended_by_itself_is_gone(self, world: ContractWorld) -> None:
        job = world.start_job()
        target = self.target(world, job)
        world.end_by_itself(job)
        assert world.port.presence(target) is Presence.GONE
        for facts in world.port.describe([job]).values():
            assert not facts.running

    def test_a_run_that_never_was_is_not_running(self, world: ContractWorld) -> None:
        target = self.target(world, world.start_job())
        stranger = replace(target, job=target.job._replace(job_id="no-such-job"), incarnation="none", handle={})
        assert world.port.presence(stranger) in (Presence.GONE, Presence.UNKNOWN)

    # Ending a run

    def test_requeue_starts_the_job_again_in_another_incarnation(self, world: ContractWorld) -> None:
        job = world.start_job()
        before = self.target(world, job)
        self.requeue(world, job, before, "d-requeue")
        after = self.target(world, world.view_now(job))
        assert after.incarnation != before.incarnation
        assert world.port.presence(after) is Presence.RUNNING
        assert world.port.presence(before) is Presence.REPLACED
        assert self.facts(world, world.view_now(job)).restarts == 1

    def test_a_repeated_requeue_starts_the_job_once(self, world: ContractWorld) -> None:
        job = world.start_job()
        before = self.target(world, job)
        self.requeue(world, job, before, "d-requeue")
        after = self.target(world, world.view_now(job))
        with unless_changed():
            world.port.requeue(before, RequeueChanges(), "once more", decision_id="d-requeue")
        assert world.port.presence(after) is Presence.RUNNING
        assert world.starts(job) == 2

    def test_requeue_changes_the_next_run(self, world: ContractWorld) -> None:
        job = world.start_job()
        changes = RequeueChanges(alloc_conf={"expandable_segments": "True"}, environ={"TIDEGAUGE_CONTRACT": "a b;c"})
        self.requeue(world, job, self.target(world, job), "d-requeue", changes)
        environ = world.environ(job)
        allocator = {environ.get(name) for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
        assert any(conf is not None and "expandable_segments:True" in conf for conf in allocator)
        assert environ["TIDEGAUGE_CONTRACT"] == "a b;c"

    def test_hold_ends_the_run_and_starts_no_other(self, world: ContractWorld) -> None:
        job, target = self.job_that_can(world, ActionKind.HOLD)
        world.port.hold(target, "grows without end", decision_id="d-hold")
        self.ended(world, job, target, {Presence.HELD, Presence.GONE})
        assert world.starts(job) == 1

    def test_cancel_ends_the_job_for_good(self, world: ContractWorld) -> None:
        job, target = self.job_that_can(world, ActionKind.CANCEL)
        world.port.cancel(target, "grows without end", decision_id="d-cancel")
        self.ended(world, job, target, {Presence.GONE})
        assert world.starts(job) == 1

    @pytest.mark.parametrize("action", [ActionKind.HOLD, ActionKind.CANCEL])
    def test_a_repeated_stop_does_nothing_more(self, world: ContractWorld, action: ActionKind) -> None:
        job, target = self.job_that_can(world, action)
        stop(world.port, action, target, "d-stop")
        with contextlib.suppress(ChangedError, TemporaryError):  # Ray's job may be "running" with nothing left to stop
            stop(world.port, action, target, "d-stop")
        self.ended(world, job, target, {Presence.HELD, Presence.GONE})
        with unless_changed():
            stop(world.port, action, target, "d-stop")
        assert not world.alive(job)
        assert world.starts(job) == 1

    # How a run ended

    def test_a_job_that_ended_by_itself_is_completed(self, world: ContractWorld) -> None:
        job = world.start_job()
        assert job.key not in self.ends(world, job)
        world.end_by_itself(job)
        world.until(lambda: self.ends(world, job) == {job.key: JobEnd.COMPLETED})

    def test_a_cancelled_job_is_told_as_such(self, world: ContractWorld) -> None:
        job, target = self.job_that_can(world, ActionKind.CANCEL)
        self.ends(world, job)
        world.port.cancel(target, "grows without end", decision_id="d-cancel")
        world.until(lambda: self.ends(world, job) == {job.key: JobEnd.CANCELLED})

    # Only this run

    @pytest.mark.parametrize("action", [*STOPS, ActionKind.CAP, ActionKind.CHECKPOINT])
    def test_another_incarnation_is_left_alone(self, world: ContractWorld, action: ActionKind) -> None:
        job = world.start_job(saves=True)
        before = self.target(world, job)
        self.requeue(world, job, before, "d-requeue")
        after = self.target(world, world.view_now(job))
        if action not in self.facts(world, world.view_now(job)).can:
            pytest.skip(f"this adapter cannot {action.value}")
        with pytest.raises(ChangedError):
            act(world.port, action, before, "d-late")
        assert world.port.presence(after) is Presence.RUNNING
        assert (world.starts(job), world.saves(job)) == (2, 0)

    @pytest.mark.parametrize("action", [*STOPS, ActionKind.CAP, ActionKind.CHECKPOINT])
    def test_a_job_that_is_gone_is_not_acted_on(self, world: ContractWorld, action: ActionKind) -> None:
        job, target = self.job_that_can(world, action)
        world.end_by_itself(job)
        with pytest.raises(ChangedError):
            act(world.port, action, target, "d-late")
        assert not world.alive(job)
        assert world.starts(job) == 1

    def test_neighbours_are_left_alone(self, world: ContractWorld) -> None:
        job, neighbour = world.start_job(), world.start_job()
        self.requeue(world, job, self.target(world, job), "d-requeue")
        assert world.starts(neighbour) == 1
        assert world.port.presence(self.target(world, neighbour)) is Presence.RUNNING

    # What leaves it running

    def test_notify_tells_the_owner_once(self, world: ContractWorld) -> None:
        job, target = self.job_that_can(world, ActionKind.NOTIFY)
        world.port.notify(target, "rank 3 leaks 12 MiB a step", decision_id="d-notify")
        world.port.notify(target, "rank 3 leaks 12 MiB a step", decision_id="d-notify")
        world.until(lambda: "rank 3 leaks 12 MiB a step" in world.owner_sees(job))
        assert world.owner_sees(job).count("rank 3 leaks 12 MiB a step") == 1
        assert world.port.presence(target) is Presence.RUNNING

    def test_annotate_leaves_one_remark(self, world: ContractWorld) -> None:
        job, target = self.job_that_can(world, ActionKind.ANNOTATE)
        world.port.annotate(target, "watched: leak", decision_id="d-annotate")
        world.port.annotate(target, "watched: leak", decision_id="d-annotate")
        world.until(lambda: "watched: leak" in world.owner_sees(job))
        assert world.owner_sees(job).count("watched: leak") == 1

    def test_a_cap_stays_with_the_job(self, world: ContractWorld) -> None:
        job, target = self.job_that_can(world, ActionKind.CAP)
        assert "0.5" in world.port.cap(target, 0.5, decision_id="d-cap")
        world.port.cap(target, 0.5, decision_id="d-cap")
        assert world.port.presence(target) is Presence.RUNNING
        self.requeue(world, job, target, "d-requeue")
        assert float(world.environ(job)["TIDEGAUGE_MEMORY_FRACTION"]) == 0.5

    def test_a_checkpoint_is_asked_for_once_and_proven(self, world: ContractWorld) -> None:
        job, target = self.job_that_can(world, ActionKind.CHECKPOINT)
        deadline_unix_s = time.time() + GRACE_S
        seen: list[CheckpointProgress] = []

        def proven() -> bool:
            seen.append(world.port.checkpoint(target, decision_id="d-save", deadline_unix_s=deadline_unix_s))
            assert seen[-1].stage is not CheckpointStage.REFUSED, seen[-1].detail
            return seen[-1].stage is CheckpointStage.PROVEN

        world.until(proven)
        assert proven(), "what is proven stays proven"
        assert seen[-1].detail
        assert world.saves(job) == 1
        assert world.port.presence(target) is Presence.RUNNING

    def test_a_job_that_cannot_save_refuses_the_checkpoint(self, world: ContractWorld) -> None:
        job = world.start_job()
        if ActionKind.CHECKPOINT not in self.facts(world, job).can:
            pytest.skip("this adapter cannot checkpoint")
        progress = world.port.checkpoint(
            self.target(world, job), decision_id="d-save", deadline_unix_s=time.time() + GRACE_S
        )
        assert progress.stage is CheckpointStage.REFUSED
        assert progress.detail

    @pytest.mark.parametrize("action", [action for action in ActionKind if action is not ActionKind.SNAPSHOT])
    def test_adapter_refuses_an_action_it_cannot_carry_out(self, world: ContractWorld, action: ActionKind) -> None:
        job = world.start_job()
        if action in self.facts(world, job).can:
            pytest.skip(f"this adapter can {action.value}")
        with pytest.raises(PermanentError):
            act(world.port, action, self.target(world, job), "d-unable")
        assert world.alive(job)

    # Helpers

    def facts(self, world: ContractWorld, job: JobView) -> SchedulerFacts:
        """What the scheduler says of the job."""
        return world.port.describe([job])[job.key]

    def ends(self, world: ContractWorld, job: JobView) -> Mapping[JobKey, JobEnd]:
        """How the run ended, as far as the scheduler knows; skips the test of an adapter that is never asked."""
        if not isinstance(world.port, TellsEnds):
            pytest.skip("this adapter tells no ends")
        return world.port.ends([job])

    def target(self, world: ContractWorld, job: JobView) -> JobTarget:
        """The job's present run, as decisions name it."""
        return job_facts(job, surroundings([job], {}), self.facts(world, job)).target

    def stranger(self, job: JobView) -> JobView:
        """A job that the scheduler has never heard of."""
        rank = job.ranks[0]
        identity = rank.identity._replace(job_id=JobId("no-such-job"))
        return replace(job, job_id="no-such-job", launch=None, ranks=(replace(rank, identity=identity, launch=None),))

    def job_that_can(self, world: ContractWorld, action: ActionKind) -> tuple[JobView, JobTarget]:
        """A job that runs, and its run; skips the test where the adapter cannot do ``action``."""
        job = world.start_job(saves=action is ActionKind.CHECKPOINT)
        if action not in self.facts(world, job).can:
            pytest.skip(f"this adapter cannot {action.value}")
        return job, self.target(world, job)

    def requeue(
        self,
        world: ContractWorld,
        job: JobView,
        target: JobTarget,
        decision_id: str,
        changes: RequeueChanges | None = None,
    ) -> None:
        """Requeue, and return when the next run is there."""
        world.port.requeue(target, changes or RequeueChanges(), "grows without end", decision_id=decision_id)
        world.until(lambda: world.port.presence(target) is Presence.REPLACED)
        world.until(lambda: world.starts(job) == 2 and world.alive(job))

    def ended(self, world: ContractWorld, job: JobView, target: JobTarget, expected: set[Presence]) -> None:
        """Return when the run has ended in one of the ways expected."""
        world.until(lambda: world.port.presence(target) in expected)
        world.until(lambda: not world.alive(job))


def stop(port: SchedulerPort, action: ActionKind, target: JobTarget, decision_id: str) -> None:
    """One of the three ways to end a run."""
    if action is ActionKind.REQUEUE:
        port.requeue(target, RequeueChanges(), "grows without end", decision_id=decision_id)
    elif action is ActionKind.HOLD:
        port.hold(target, "grows without end", decision_id=decision_id)
    else:
        port.cancel(target, "grows without end", decision_id=decision_id)


def act(port: SchedulerPort, action: ActionKind, target: JobTarget, decision_id: str) -> None:
    """Any action, with whatever it needs."""
    if action.is_stop:
        stop(port, action, target, decision_id)
    elif action is ActionKind.CAP:
        port.cap(target, 0.5, decision_id=decision_id)
    elif action is ActionKind.CHECKPOINT:
        port.checkpoint(target, decision_id=decision_id, deadline_unix_s=time.time() + GRACE_S)
    elif action is ActionKind.NOTIFY:
        port.notify(target, "a word", decision_id=decision_id)
    else:
        port.annotate(target, "a word", decision_id=decision_id)


def unless_changed() -> contextlib.AbstractContextManager[None]:
    """A call that is repeated after it was carried out may say that its run is over; it may not do it again."""
    return contextlib.suppress(ChangedError)
