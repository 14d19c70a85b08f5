"""A workload whose own policy fails it by ``LEAK_CONDITION`` is suspended only when none of its pods bears that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_hooks.kubernetes.kube_world import UNCHANGED, KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE
from tidegauge.core.jobs.kubernetes import ACTIONS, INCIDENT, KEEP, LEAK_CONDITION
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.kubernetes.owners import JOBSETS, State, state
from tidegauge_scheduler_hooks.kubernetes.ports import PODS
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

Stop = Callable[[KubeWorld, JobView], None]
POLICY = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": LEAK_CONDITION, "status": "True"}]}]}


def requeue(world: KubeWorld, job: JobView) -> None:
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d-2")


def hold(world: KubeWorld, job: JobView) -> None:
    world.port.hold(world.target(job), "leaks", decision_id="d-2")


STOPS = pytest.mark.parametrize("stop", [requeue, hold])


def policed_job(world: KubeWorld) -> JobView:
    """It fails by the condition; its owner was told of an incident, and its pod is marked."""
    job = world.start_job()
    obj = world.running(job)
    world.kube.put(world.kind.resource, {**obj, "spec": {**obj["spec"], "podFailurePolicy": POLICY}})
    tell(world, job)
    return job


def tell(world: KubeWorld, job: JobView, status: str = "True") -> None:
    world.port.notify(world.target(job), "rank 0 leaks", decision_id="d-1")
    mark(world, job, status)


def mark(world: KubeWorld, job: JobView, status: str) -> None:
    """What the controller does."""
    (pod,) = world.controllers.pods(world.running(job))
    conditions = [{"type": LEAK_CONDITION, "status": status}]
    world.kube.put(PODS, {**pod, "status": {**pod["status"], "conditions": conditions}})


def is_told(world: KubeWorld, job: JobView) -> bool:
    return INCIDENT in world.running(job)["metadata"]["annotations"]


def runs(world: KubeWorld, job: JobView) -> bool:
    return state(world.kind, world.running(job)) is State.RUNNING


@STOPS
def test_failure_policy_job_is_suspended_after_its_pods_lose_the_condition(stop: Stop) -> None:
    world = KubeWorld()
    job = policed_job(world)
    with pytest.raises(TemporaryError, match="is removed from its pods") as first:
        stop(world, job)
    assert first.value.retry_after_s == 5
    assert not is_told(world, job)
    with pytest.raises(TemporaryError, match="1 of its pods still have the condition"):
        stop(world, job)
    assert runs(world, job)
    mark(world, job, "False")
    stop(world, job)
    assert not runs(world, job)


@STOPS
def test_another_process_goes_on_where_one_ended(stop: Stop) -> None:
    world = KubeWorld()
    job = policed_job(world)
    with pytest.raises(TemporaryError):
        stop(world, job)
    mark(world, job, "False")
    world.port = world.another_port()
    stop(world, job)
    assert not runs(world, job)


def test_failure_policy_job_is_cancelled_without_removing_the_condition() -> None:
    world = KubeWorld()
    job = policed_job(world)
    world.port.cancel(world.target(job), "leaks", decision_id="d-2")
    assert not runs(world, job)
    assert is_told(world, job)


@STOPS
def test_a_workload_that_does_not_go_by_the_condition_is_suspended_at_once(stop: Stop) -> None:
    world = KubeWorld()
    job = world.start_job()
    tell(world, job)
    stop(world, job)
    assert not runs(world, job)
    assert is_told(world, job)


def test_a_policy_of_what_the_workload_made_counts() -> None:
    world = KubeWorld("TrainJob")
    job = world.start_job()
    (jobset,) = world.kube.list(JOBSETS, NAMESPACE)
    runtime = {"replicatedJobs": [{"name": "node", "template": {"spec": {"podFailurePolicy": POLICY}}}]}
    world.kube.put(JOBSETS, {**jobset, "spec": runtime})
    tell(world, job)
    with pytest.raises(TemporaryError, match="is removed from its pods"):
        requeue(world, job)
    assert not is_told(world, job)


def test_an_incident_that_is_told_in_the_last_moment_is_taken_off_again() -> None:
    world = KubeWorld()
    job = policed_job(world)
    with pytest.raises(TemporaryError):
        hold(world, job)
    mark(world, job, "False")
    once: list[Any] = [lambda: tell(world, job)]
    world.kube.before_call = lambda call: once.pop()() if call.verb == "list" and call.kind == "Pod" and once else None
    with pytest.raises(TemporaryError, match="1 of its pods still have the condition"):
        hold(world, job)
    with pytest.raises(TemporaryError, match="is removed from its pods"):
        hold(world, job)
    assert runs(world, job)
    assert not is_told(world, job)


def test_an_incident_that_is_told_after_the_pods_were_looked_at_keeps_it_running() -> None:
    world = KubeWorld()
    job = policed_job(world)
    with pytest.raises(TemporaryError):
        hold(world, job)
    mark(world, job, "False")
    once: list[Any] = [lambda: tell(world, job)]
    world.kube.before_call = lambda call: once.pop()() if call.verb == "patch" and once else None
    with pytest.raises(TemporaryError, match="is removed from its pods"):
        hold(world, job)
    assert runs(world, job)


def test_without_a_controller_marks_stay_and_that_is_said() -> None:
    world = KubeWorld()
    job = policed_job(world)
    world.controller_age_s = 90.0
    with pytest.raises(TemporaryError):
        hold(world, job)
    with pytest.raises(TemporaryError, match=r"no controller removes it \(no Lease renewal for 90 s"):
        hold(world, job)
    mark(world, job, "False")
    hold(world, job)  # needs none by now
    assert not runs(world, job)


def test_failure_policy_job_that_must_not_stop_keeps_the_condition() -> None:
    world = KubeWorld()
    job = policed_job(world)
    obj = world.running(job)
    obj["metadata"]["annotations"][ACTIONS] = KEEP
    world.kube.put(world.kind.resource, obj)
    with pytest.raises(PermanentError, match="no action allowed"):
        requeue(world, job)
    assert is_told(world, job)


@STOPS
def test_somebody_else_who_writes_at_the_same_time_delays_it(stop: Stop) -> None:
    world = KubeWorld()
    job = policed_job(world)
    once: list[Any] = [lambda: world.kube.put(world.kind.resource, world.running(job))]
    world.kube.before_call = lambda call: once.pop()() if call.verb == "patch" and once else None
    with pytest.raises(TemporaryError):
        stop(world, job)
    assert is_told(world, job)
    with pytest.raises(TemporaryError):
        stop(world, job)
    assert not is_told(world, job)
