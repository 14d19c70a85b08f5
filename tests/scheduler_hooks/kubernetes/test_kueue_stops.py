"""Workloads that Kueue admitted: its Workload is switched off, as Kueue would resume the object itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler_hooks.kubernetes.kube_world import UNCHANGED, KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by
from tidegauge.core.jobs.kubernetes import REQUEUE, STOPPED
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.kubernetes.kueue import JOB_UID_LABEL, QUEUE_WORKLOADS, REPLACES
from tidegauge_scheduler_hooks.kubernetes.ports import ConflictError, ForbiddenError
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL
from tidegauge_scheduler_hooks.ports import PermanentError, Presence, TemporaryError


@pytest.fixture
def world() -> KubeWorld:
    return KubeWorld()


def queued(world: KubeWorld) -> JobView:
    """A job that Kueue has admitted, beside the Workload of another."""
    job = world.start_job()
    obj = world.running(job)
    obj["metadata"]["labels"][QUEUE_LABEL] = "gpu-queue"
    world.kube.put(world.kind.resource, obj)
    other = {**obj, "metadata": {**obj["metadata"], "name": "other", "uid": "other"}}
    for name, owner in (("job-other", other), ("job-train", obj)):
        put_queue_workload(world, name, owner)
    return job


def put_queue_workload(
    world: KubeWorld, name: str, owner: Any, *, labels: Mapping[str, str] | None = None, finished: bool = False,
    **metadata: Any,
) -> None:  # fmt: skip
    uid = {JOB_UID_LABEL: owner["metadata"]["uid"]} if labels is None else dict(labels)
    whole = {"name": name, "namespace": NAMESPACE, "ownerReferences": owned_by(owner), "labels": uid, **metadata}
    conditions = [{"type": "Finished", "status": "True"}] if finished else []
    body = {"metadata": whole, "spec": {"queueName": "gpu-queue"}, "status": {"conditions": conditions}}
    world.kube.put(QUEUE_WORKLOADS, body)


def active(world: KubeWorld, name: str = "job-train") -> Any:
    return world.kube.peek(QUEUE_WORKLOADS, NAMESPACE, name)["spec"].get("active", True)


def written_on(world: KubeWorld, job: JobView) -> Any:
    return world.running(job)["metadata"]["annotations"]


def test_the_workload_is_switched_off_and_the_object_left_to_kueue(world: KubeWorld) -> None:
    job = queued(world)
    target = world.target(job)
    world.port.hold(target, "leaks", decision_id="d-1")
    assert not world.running(job)["spec"].get("suspend")
    assert STOPPED in written_on(world, job)
    assert not active(world)
    assert active(world, "job-other")
    assert world.port.presence(target) is Presence.STOPPING


def test_only_the_workloads_of_the_job_are_asked_for(world: KubeWorld) -> None:
    job = queued(world)
    world.port.hold(world.target(job), "leaks", decision_id="d-1")
    lists = world.kube.called("list", "Workload")
    assert {tuple(call.body) for call in lists} == {(f"{JOB_UID_LABEL}={world.running(job)['metadata']['uid']}",)}


def test_a_workload_that_only_bears_the_label_is_nobodys(world: KubeWorld) -> None:
    job = queued(world)
    obj = world.running(job)
    other = {**obj, "metadata": {**obj["metadata"], "name": "other", "uid": "other"}}
    put_queue_workload(world, "job-other", other, labels={JOB_UID_LABEL: obj["metadata"]["uid"]})
    world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert (active(world), active(world, "job-other")) == (False, True)


@pytest.mark.parametrize("made", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"], ids=["at once", "later"])
@pytest.mark.parametrize("name", ["a-new", "z-new"])
def test_of_an_elastic_job_that_grows_the_newer_workload_is_switched_off(
    world: KubeWorld, name: str, made: str
) -> None:
    job = queued(world)
    obj = world.running(job)
    first = "2026-01-01T00:00:00Z"
    put_queue_workload(world, "job-train", obj, creationTimestamp=first)
    replaces = {REPLACES: f"{NAMESPACE}/job-train"}
    put_queue_workload(world, name, obj, annotations=replaces, creationTimestamp=made)
    world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert (active(world, name), active(world)) == (False, True)


def test_a_finished_workload_is_not_taken_for_the_one_in_force(world: KubeWorld) -> None:
    job = queued(world)
    put_queue_workload(world, "job-out-of-sync", world.running(job), finished=True, creationTimestamp="2027")
    world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert (active(world), active(world, "job-out-of-sync")) == (False, True)


def test_a_try_that_ended_between_the_two_steps_is_finished_by_the_next(world: KubeWorld) -> None:
    job = queued(world)
    target = world.target(job)
    world.kube.fail_next(TemporaryError("no connection"), verb="patch", kind="Workload")
    with pytest.raises(TemporaryError):
        world.port.requeue(target, UNCHANGED, "leaks", decision_id="d-1")
    assert REQUEUE in written_on(world, job)
    assert active(world)
    world.port.requeue(target, UNCHANGED, "leaks", decision_id="d-1")
    assert not active(world)
    assert len(world.kube.called("patch", "Job")) == 1


def test_a_workload_that_kueue_writes_to_meanwhile_is_read_again(world: KubeWorld) -> None:
    job = queued(world)
    world.kube.fail_next(ConflictError("modified"), verb="patch", kind="Workload")
    world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert not active(world)


def test_without_the_right_to_switch_it_off_nothing_says_that_it_was(world: KubeWorld) -> None:
    job = queued(world)
    target = world.target(job)
    world.kube.fail_next(ForbiddenError("cannot patch workloads"), verb="patch", kind="Workload")
    with pytest.raises(PermanentError, match="cannot patch workloads"):
        world.port.hold(target, "leaks", decision_id="d-1")
    assert STOPPED not in written_on(world, job)
    assert world.port.presence(target) is Presence.RUNNING


def test_a_queued_job_is_not_suspended_blindly(world: KubeWorld) -> None:
    job = queued(world)
    world.kube.fail_next(ForbiddenError("cannot list workloads"), verb="list", kind="Workload")
    with pytest.raises(PermanentError, match="cannot list workloads"):
        world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert world.kube.called("patch") == []


def test_a_job_without_a_queue_is_suspended_where_workloads_may_not_be_looked_at(world: KubeWorld) -> None:
    job = world.start_job()
    world.kube.fail_next(ForbiddenError("cannot list workloads"), verb="list", kind="Workload")
    world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert world.running(job)["spec"]["suspend"] is True


def test_a_cluster_without_kueue_is_no_obstacle(world: KubeWorld) -> None:
    world.kube.missing_kinds.add("Workload")
    job = world.start_job()
    world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert world.running(job)["spec"]["suspend"] is True
