"""The Ray Jobs adapter when any request is the last of a process: done or not, without an answer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

from fake_ray_jobs import Fault, drop, half, ray_jobs_server, says
from scheduler_hooks.fake_scheduler import MemoryAudit
from scheduler_hooks.ray_jobs_world import UNCHANGED, RayWorld, end
from scheduler_values import decision
from tidegauge.core.incidents.actions import ActionKind, JobTarget, Outcome
from tidegauge_scheduler_hooks.carry_out import CarryOut
from tidegauge_scheduler_hooks.carry_out_steps import Steps
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    Presence,
    RequeueChanges,
    SchedulerError,
    TemporaryError,
)


@pytest.fixture
def world() -> Iterator[RayWorld]:
    with ray_jobs_server() as cluster:
        yield RayWorld(cluster)


def nth(number: int, fault: Fault) -> Callable[[str], Fault | None]:
    """The fault for the ``number``-th request from now, from 0, and for none after it."""
    count = itertools.count()
    return lambda _: fault if next(count) == number else None


FAULTS = {"drop": drop, "half": half, "500": says(500, "500 Internal Server Error"), "html": says(200, "<html>")}
REQUESTS = 8
"""What a requeue asks: which run, which next, the upload, twice the mark, stop, whether it has stopped, submit."""


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("number", range(REQUESTS))
def test_a_requeue_that_breaks_off_anywhere_is_completed_once(
    world: RayWorld, number: int, fault: Fault, done: bool
) -> None:
    job, neighbour = world.start_job(), world.start_job()
    target = world.target(job)
    begun = len(world.cluster.requests)
    setattr(world.cluster, "afterwards" if done else "instead", nth(number, fault))
    with suppress(SchedulerError):
        world.port.requeue(target, RequeueChanges(environ={"A": "b"}), "leaks", decision_id="d")
    if number == REQUESTS - 1:
        assert len(world.cluster.requests) - begun >= REQUESTS, "every request has its turn"
    world.cluster.instead = world.cluster.afterwards = lambda _: None

    seen = world.another_port().presence(target)
    assert seen in (Presence.RUNNING, Presence.REPLACED), "so that the decision is taken up again, or is over"
    if seen is Presence.RUNNING:
        world.another_port().requeue(target, RequeueChanges(environ={"A": "b"}), "leaks", decision_id="d")
    world.another_port().requeue(target, UNCHANGED, "leaks", decision_id="d")

    assert world.port.presence(target) is Presence.REPLACED
    assert [run["status"] for run in world.runs(job)] == ["STOPPED", "RUNNING"]
    assert world.environ(job)["A"] == "b"
    assert world.starts(neighbour) == 1
    assert "job-1" not in world.cluster.stops


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("action", ["hold", "cancel"])
@pytest.mark.parametrize("number", range(3))
def test_a_stop_that_breaks_off_anywhere_is_completed(world: RayWorld, number: int, action: str, done: bool) -> None:
    job = world.start_job()
    target = world.target(job)
    setattr(world.cluster, "afterwards" if done else "instead", nth(number, drop))
    with suppress(SchedulerError):
        end(world.port, action, target)
    if world.another_port().presence(target) is Presence.RUNNING:
        end(world.another_port(), action, target)
    assert world.port.presence(target) is Presence.GONE
    assert world.starts(job) == 1
    assert world.cluster.stops == ["job-0"]


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("number", range(REQUESTS + 1))
def test_a_coordinator_that_ends_anywhere_is_followed_by_one_that_completes(
    world: RayWorld, number: int, done: bool
) -> None:
    job = world.start_job()
    made = decision(
        ActionKind.REQUEUE, target=world.target(job), decided_s=0.0, parameters={"environ": {"A": "b"}}
    )  # fmt: skip
    audit = MemoryAudit()
    audit.write_ahead([made])
    setattr(world.cluster, "afterwards" if done else "instead", nth(number, drop))
    for now_s in (0.0, 60.0, 120.0, 180.0):
        steps = Steps(
            audit, {"ray": world.another_port()}, now_s=partial(float, now_s), wall_s=time.time,
            held_back=lambda _: None,
        )  # fmt: skip
        CarryOut(steps, submit=lambda call: call()).tick()
    assert audit.kept[made.decision_id].outcome is Outcome.DONE
    assert [run["status"] for run in world.runs(job)] == ["STOPPED", "RUNNING"]
    assert world.environ(job)["A"] == "b"


def stop_fails_once(world: RayWorld) -> JobTarget:
    """A job whose requeue failed when it was to be stopped: it runs on."""
    target = world.target(world.start_job())
    world.cluster.instead = lambda request: drop if request.endswith("/stop") else None
    with pytest.raises(TemporaryError):
        world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    world.cluster.instead = lambda _: None
    return target


def test_a_job_that_is_cancelled_after_a_failed_requeue_is_gone(world: RayWorld) -> None:
    target = stop_fails_once(world)
    world.another_port().cancel(target, "leaks", decision_id="d-2")
    assert world.port.presence(target) is Presence.GONE
    with pytest.raises(ChangedError):
        world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")


def test_a_job_that_its_owner_stops_after_a_failed_requeue_seems_to_be_ours_for_ten_minutes(world: RayWorld) -> None:
    """Known and documented: between our word that we end it and Ray's that it has ended, the two look alike."""
    target = stop_fails_once(world)
    world.cluster.end("job-0", "STOPPED")
    assert world.port.presence(target) is Presence.RUNNING
    world.cluster.packages.clear()  # ten minutes later
    assert world.port.presence(target) is Presence.GONE
