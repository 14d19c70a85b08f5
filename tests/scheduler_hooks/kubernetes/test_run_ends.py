"""How the Kubernetes adapter says that runs ended, by what controllers and kubelets leave behind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler_hooks.kubernetes.kube_world import UNCHANGED, KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.kubernetes import ATTEMPT, PROFILE_LABEL
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.kubernetes.gone_objects import KEPT_GONE_S, MAX_GONE, GoneObjects
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import JOBS, PODS
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL, RESTART_LABEL
from tidegauge_scheduler_hooks.ports import TemporaryError

GRACE_S = 30
T0_S = 1_700_000_100
WITHOUT_PODS_OF_ITS_OWN = [kind for kind in KINDS if kind != "RayJob"]
"""Those whose pods end with the job."""


@pytest.fixture
def world() -> KubeWorld:
    return KubeWorld()


def time_of(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def told(world: KubeWorld, job: JobView) -> JobEnd | None:
    return world.port.ends([job]).get(job.key)


def pod_of(world: KubeWorld, job: JobView, number: int = -1) -> Any:
    return world.controllers.pods(world.running(job))[number]


def end_pod(
    world: KubeWorld, pod: Any, *, code: int, at_s: int = T0_S, why: str = "Error", conditions: Sequence[Any] = ()
) -> Any:
    """As the kubelet writes it when the container has ended."""
    ended = {"exitCode": code, "reason": why if code else "Completed", "finishedAt": time_of(at_s)}
    statuses = [{**one, "state": {"terminated": ended}} for one in pod["status"]["containerStatuses"]]
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses, "conditions": [*conditions]}
    return world.kube.put(PODS, {**pod, "status": status})


def ask_for_deletion(world: KubeWorld, pod: Any, at_s: int = T0_S) -> Any:
    """As the API server answers ``kubectl delete pod``: the time is the end of the grace period."""
    metadata = {
        **pod["metadata"],
        "deletionTimestamp": time_of(at_s + GRACE_S),
        "deletionGracePeriodSeconds": GRACE_S,
    }
    return world.kube.put(PODS, {**pod, "metadata": metadata})


def remove_pod(world: KubeWorld, pod: Any) -> None:
    world.kube.remove(PODS, NAMESPACE, pod["metadata"]["name"])


def delete_pod(world: KubeWorld, pod: Any, *, code: int = 143) -> None:
    """From ``kubectl delete pod`` until it is gone."""
    end_pod(world, ask_for_deletion(world, pod), code=code, at_s=T0_S + 2)
    remove_pod(world, pod)


def conclude(world: KubeWorld, job: JobView, kind: str, reason: str = "", **status: Any) -> None:
    """The owner's controller sets a condition."""
    obj = world.running(job)
    conditions = [{"type": kind, "status": "True", "reason": reason}] if kind else []
    world.kube.put(world.kind.resource, {**obj, "status": {**obj["status"], "conditions": conditions, **status}})


def delete_owner(world: KubeWorld, job: JobView) -> None:
    world.kube.remove(world.kind.resource, NAMESPACE, world.running(job)["metadata"]["name"])


def suspend(world: KubeWorld, job: JobView, **labels: str) -> None:
    """By somebody else. Its controller deletes the pods."""
    obj = world.running(job)
    metadata = {**obj["metadata"], "labels": {**obj["metadata"]["labels"], **labels}}
    spec = {**obj["spec"], "suspend": True}
    world.kube.put(world.kind.resource, {**obj, "metadata": metadata, "spec": spec})
    world.controllers.advance()


def replaced_by(world: KubeWorld, pod: Any, name: str, **labels: str) -> None:
    """Another pod that the same controller made later."""
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {PROFILE_LABEL: "auto", **labels},
        "annotations": pod["metadata"]["annotations"],
        "ownerReferences": pod["metadata"]["ownerReferences"],
        "creationTimestamp": time_of(T0_S + 60),
    }
    world.kube.put(PODS, {"metadata": metadata, "spec": pod["spec"], "status": {"phase": "Running"}})


# By the owner


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_told_of_a_job_that_goes_on(kind: str) -> None:
    world = KubeWorld(kind)
    assert told(world, world.start_job()) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_was_deleted_after_it_had_completed_is_completed(kind: str) -> None:
    """``ttlSecondsAfterFinished: 0``"""
    world = KubeWorld(kind)
    job = world.start_job()
    pod = pod_of(world, job)
    world.end_by_itself(job)
    remove_pod(world, pod)
    delete_owner(world, job)
    assert told(world, job) is JobEnd.COMPLETED


@pytest.mark.parametrize("kind", WITHOUT_PODS_OF_ITS_OWN)
def test_a_program_that_fails_is_told_at_once_whatever_its_controller_does_then(kind: str) -> None:
    world = KubeWorld(kind)
    job = world.start_job()
    end_pod(world, pod_of(world, job), code=1)
    assert told(world, job) is JobEnd.FAILED
    conclude(world, job, "Failed", "BackoffLimitExceeded")
    assert told(world, job) is JobEnd.FAILED
    remove_pod(world, pod_of(world, job))
    delete_owner(world, job)
    assert told(world, job) is JobEnd.FAILED


def test_a_job_that_took_too_long_has_failed(world: KubeWorld) -> None:
    """Its controller deletes the pods."""
    job = world.start_job()
    delete_pod(world, pod_of(world, job))
    assert told(world, job) is None
    conclude(world, job, "Failed", "DeadlineExceeded")
    assert told(world, job) is JobEnd.FAILED


def test_a_jobset_whose_job_took_too_long_has_failed() -> None:
    world = KubeWorld("JobSet")
    job = world.start_job()
    delete_pod(world, pod_of(world, job))
    (child,) = world.kube.list(JOBS)
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
    world.kube.put(JOBS, {**child, "status": {"conditions": [condition]}})
    conclude(world, job, "Failed", "FailedJobs")
    assert told(world, job) is JobEnd.FAILED


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_somebody_deletes_is_cancelled(kind: str) -> None:
    world = KubeWorld(kind)
    job = world.start_job()
    pod = pod_of(world, job)
    delete_owner(world, job)
    delete_pod(world, pod, code=137)
    assert told(world, job) is JobEnd.CANCELLED


def test_a_program_that_saves_and_ends_well_when_its_job_is_deleted_is_cancelled(world: KubeWorld) -> None:
    job = world.start_job()
    pod = pod_of(world, job)
    delete_owner(world, job)
    delete_pod(world, pod, code=0)
    assert told(world, job) is JobEnd.CANCELLED


def test_a_job_that_is_deleted_once_its_pods_have_ended_well_is_completed(world: KubeWorld) -> None:
    job = world.start_job()
    pod = end_pod(world, pod_of(world, job), code=0, at_s=T0_S - 9)
    delete_owner(world, job)
    end_pod(world, ask_for_deletion(world, pod), code=0, at_s=T0_S - 9)
    remove_pod(world, pod)
    assert told(world, job) is JobEnd.COMPLETED


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "PyTorchJob"])
def test_a_job_that_somebody_suspends_is_cancelled(kind: str) -> None:
    world = KubeWorld(kind)
    job = world.start_job()
    suspend(world, job)
    assert told(world, job) is JobEnd.CANCELLED


@pytest.mark.parametrize("labels", [{}, {QUEUE_LABEL: "gpus"}])
def test_a_job_that_somebody_scales_to_no_pods_is_cancelled(world: KubeWorld, labels: dict[str, str]) -> None:
    job = world.start_job()
    obj, pod = world.running(job), pod_of(world, job)
    metadata = {**obj["metadata"], "labels": {**obj["metadata"]["labels"], **labels}}
    world.kube.put(world.kind.resource, {**obj, "metadata": metadata, "spec": {**obj["spec"], "parallelism": 0}})
    delete_pod(world, pod)
    assert told(world, job) is JobEnd.CANCELLED


def test_a_job_that_kueue_suspends_is_requeued(world: KubeWorld) -> None:
    """It starts it again by itself."""
    job = world.start_job()
    suspend(world, job, **{QUEUE_LABEL: "gpus"})
    assert told(world, job) is JobEnd.REQUEUED


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_stops_are_told(kind: str) -> None:
    world = KubeWorld(kind)
    jobs = [world.start_job() for _ in range(3)]
    world.port.requeue(world.target(jobs[0]), UNCHANGED, "leaks", decision_id="d0")
    world.port.hold(world.target(jobs[1]), "leaks", decision_id="d1")
    world.port.cancel(world.target(jobs[2]), "leaks", decision_id="d2")
    ends = [JobEnd.REQUEUED, JobEnd.CANCELLED, JobEnd.CANCELLED]
    assert [told(world, job) for job in jobs] == ends
    world.until(lambda: world.starts(jobs[0]) == 2 and world.alive(jobs[0]))
    assert [told(world, job) for job in jobs] == ends


# By pods


def test_host_memory_that_ran_out_is_a_failure(world: KubeWorld) -> None:
    job = world.start_job()
    end_pod(world, pod_of(world, job), code=137, why="OOMKilled")
    assert told(world, job) is JobEnd.FAILED


def test_a_pod_that_somebody_deletes_ends_its_job_as_cancelled_if_no_other_follows(world: KubeWorld) -> None:
    """``backoffLimit: 0``"""
    job = world.start_job()
    delete_pod(world, pod_of(world, job))
    assert told(world, job) is None, "its controller may replace it"
    conclude(world, job, "Failed", "BackoffLimitExceeded")
    assert told(world, job) is JobEnd.CANCELLED


def test_a_pod_that_somebody_deletes_and_its_job_replaces_was_requeued(world: KubeWorld) -> None:
    job = world.start_job()
    pod = pod_of(world, job)
    delete_pod(world, pod)
    replaced_by(world, pod, "train-0-x")
    assert told(world, job) is JobEnd.REQUEUED


def test_a_pod_that_ended_well_is_not_followed_by_the_next_of_its_job(world: KubeWorld) -> None:
    """``completions: 10``"""
    job = world.start_job()
    pod = end_pod(world, pod_of(world, job), code=0)
    replaced_by(world, pod, "train-0-x")
    assert told(world, job) is None
    conclude(world, job, "Complete")
    assert told(world, job) is JobEnd.COMPLETED


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("PreemptionByScheduler", JobEnd.PREEMPTED),
        ("EvictionByEvictionAPI", JobEnd.CANCELLED),
        ("DeletionByTaintManager", JobEnd.FAILED),
        ("DeletionByPodGC", JobEnd.FAILED),
        ("TerminationByKubelet", JobEnd.FAILED),
    ],
)
def test_a_disruption_is_of_somebodys_will_or_of_the_node(world: KubeWorld, reason: str, end: JobEnd) -> None:
    job = world.start_job()
    pod = pod_of(world, job)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": time_of(T0_S)}
    end_pod(world, pod, code=143, at_s=T0_S + 5, conditions=[condition])
    assert told(world, job) is None, "its controller may replace it"
    conclude(world, job, "Failed", "BackoffLimitExceeded")
    assert told(world, job) is end
    replaced_by(world, pod, "train-0-x")
    assert told(world, job) is JobEnd.REQUEUED


def test_what_an_old_kubelet_evicts_has_failed(world: KubeWorld) -> None:
    job = world.start_job()
    pod = pod_of(world, job)
    world.kube.put(PODS, {**pod, "status": {"phase": "Failed", "reason": "Evicted"}})
    assert told(world, job) is None
    conclude(world, job, "Failed", "BackoffLimitExceeded")
    assert told(world, job) is JobEnd.FAILED


def two_pods(world: KubeWorld, *, failed_s: int, asked_s: int) -> JobView:
    """A job of two ranks: the program of the first fails, the pod of the second is deleted."""
    job = world.start_job()
    pod = pod_of(world, job)
    replaced_by(world, pod, "train-0-x")
    peer = world.kube.peek(PODS, NAMESPACE, "train-0-x")
    peer["status"]["containerStatuses"] = [{"name": "node"}]
    rank = job.ranks[0]
    assert rank.pod is not None
    second = replace(rank, pod=rank.pod._replace(pod_uid=peer["metadata"]["uid"]))
    end_pod(world, pod, code=1, at_s=failed_s)
    end_pod(world, ask_for_deletion(world, peer, asked_s), code=143, at_s=asked_s + 1)
    return replace(job, ranks=(rank, second))


@pytest.mark.parametrize(
    ("asked_s", "failed_s", "end"),
    [(T0_S, T0_S + 3, JobEnd.CANCELLED), (T0_S + 3, T0_S, JobEnd.FAILED), (T0_S, T0_S, JobEnd.FAILED)],
)
def test_what_came_first_decides(world: KubeWorld, asked_s: int, failed_s: int, end: JobEnd) -> None:
    """A rank fails because its peer was deleted, or the Job controller deletes the peers of one that failed."""
    job = two_pods(world, failed_s=failed_s, asked_s=asked_s)
    conclude(world, job, "Failed", "BackoffLimitExceeded")
    assert told(world, job) is end


def test_a_rank_that_fails_in_the_second_in_which_its_peer_goes_with_the_job_is_cancelled(world: KubeWorld) -> None:
    job = two_pods(world, failed_s=T0_S, asked_s=T0_S)
    delete_owner(world, job)
    assert told(world, job) is JobEnd.CANCELLED


def test_ranks_that_fail_while_their_job_is_deleted_are_cancelled(world: KubeWorld) -> None:
    """In the same second: by their peers, which were deleted first."""
    job = world.start_job()
    pod = end_pod(world, pod_of(world, job), code=1, at_s=T0_S)
    metadata = {**world.running(job)["metadata"], "deletionTimestamp": time_of(T0_S)}
    world.kube.put(JOBS, {**world.running(job), "metadata": metadata})
    ask_for_deletion(world, pod)
    delete_owner(world, job)
    assert told(world, job) is JobEnd.CANCELLED


# Restarts by controllers


def test_a_jobset_that_starts_all_of_it_again_ends_the_attempt(world: KubeWorld) -> None:
    world = KubeWorld("JobSet")
    job = world.start_job()
    pod = pod_of(world, job)
    delete_pod(world, pod)
    conclude(world, job, "", restarts=1)
    assert told(world, job) is JobEnd.REQUEUED


def test_the_attempt_that_failed_is_told_as_failed_where_its_jobset_starts_again() -> None:
    world = KubeWorld("JobSet")
    job = world.start_job()
    pod = end_pod(world, pod_of(world, job), code=1)
    replaced_by(world, pod, "train-0-x", **{RESTART_LABEL: "1"})
    remove_pod(world, pod)
    assert told(world, job) is JobEnd.FAILED


# Ray


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, JobEnd.COMPLETED),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, JobEnd.CANCELLED),
        ({"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed"}, JobEnd.FAILED),
        ({"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}, JobEnd.FAILED),
        ({"jobDeploymentStatus": "Running", "rayClusterName": "next", "failed": 1}, JobEnd.FAILED),
        ({"jobDeploymentStatus": "Running", "rayClusterName": "next"}, JobEnd.REQUEUED),
        ({"jobDeploymentStatus": "Retrying", "rayClusterName": ""}, None),
    ],
)
def test_a_rayjob_ends_as_its_status_says(status: Mapping[str, Any], end: JobEnd | None) -> None:
    world = KubeWorld("RayJob")
    job = world.start_job()
    obj = world.running(job)
    world.kube.put(world.kind.resource, {**obj, "status": {**obj["status"], **status}})
    end_pod(world, pod_of(world, job), code=1)  # the ends of Ray's own processes say nothing of the job
    assert told(world, job) is end


def test_a_rayjob_that_somebody_deletes_is_cancelled_however_its_pods_end() -> None:
    world = KubeWorld("RayJob")
    job = world.start_job()
    end_pod(world, pod_of(world, job), code=0)
    delete_owner(world, job)
    assert told(world, job) is JobEnd.CANCELLED


# Pods without an owner that is known


def bare(world: KubeWorld, **metadata: Any) -> JobView:
    """A job that is one pod, of no owner or of one of an unknown kind."""
    job = world.start_job()
    pod = pod_of(world, job)
    world.kube.put(PODS, {**pod, "metadata": {**pod["metadata"], "ownerReferences": [], **metadata}})
    delete_owner(world, job)
    rank = job.ranks[0]
    name = f"{NAMESPACE}/{pod['metadata']['name']}"
    identity = rank.identity._replace(job_id=type(rank.identity.job_id)(name))
    return replace(job, job_id=name, ranks=(replace(rank, identity=identity),))


@pytest.mark.parametrize(("code", "end"), [(0, JobEnd.COMPLETED), (1, JobEnd.FAILED)])
def test_a_pod_of_its_own_ends_as_its_containers(world: KubeWorld, code: int, end: JobEnd) -> None:
    job = bare(world)
    (pod,) = world.kube.list(PODS)
    assert told(world, job) is None
    end_pod(world, pod, code=code)
    assert told(world, job) is end


def test_a_pod_of_its_own_that_somebody_deletes_is_cancelled(world: KubeWorld) -> None:
    job = bare(world)
    (pod,) = world.kube.list(PODS)
    delete_pod(world, pod)
    assert told(world, job) is JobEnd.CANCELLED


def test_who_deletes_the_pods_of_an_unknown_controller_is_not_known(world: KubeWorld) -> None:
    owner = {"apiVersion": "v1", "kind": "StatefulSet", "metadata": {"name": "s", "uid": "u-s"}}
    job = bare(world, ownerReferences=owned_by(owner))
    (pod,) = world.kube.list(PODS)
    delete_pod(world, pod)
    assert told(world, job) is None


# What is not known


def test_ranks_that_nobody_vouches_for_tell_nothing(world: KubeWorld) -> None:
    job = world.start_job()
    world.end_by_itself(job)
    rank = job.ranks[0]
    assert rank.pod is not None
    assert told(world, replace(job, ranks=(replace(rank, pod=rank.pod._replace(job_known=False)),))) is None
    assert told(world, replace(job, ranks=(replace(rank, pod=rank.pod._replace(pod_uid="other")),))) is None
    assert told(world, replace(job, job_id=f"{NAMESPACE}/other")) is None


def test_a_watch_that_is_broken_is_said(world: KubeWorld) -> None:
    job = world.start_job()
    for store in world.directory.stores.values():
        store.problem = "pods is forbidden"  # type: ignore[misc] # the fake's may be set
    with pytest.raises(TemporaryError, match="forbidden"):
        world.port.ends([job])
    assert world.port.ends([]) == {}


def test_telling_ends_asks_nothing_of_the_api_server(world: KubeWorld) -> None:
    job = world.start_job()
    world.end_by_itself(job)
    world.kube.calls.clear()
    assert told(world, job) is JobEnd.COMPLETED
    assert world.kube.calls == []


def test_what_was_deleted_is_remembered_for_a_while() -> None:
    world = KubeWorld()
    now_s = 0.0
    directory = PodDirectory(world.kube, KINDS, monotonic_s=lambda: now_s)
    job, other = world.start_job(), world.start_job()
    pod = pod_of(world, job)
    remove_pod(world, pod)
    now_s = KEPT_GONE_S - 1
    remove_pod(world, pod_of(world, other))
    assert directory.ended_run([pod["metadata"]["uid"]]) is not None
    now_s = KEPT_GONE_S
    delete_owner(world, other)
    assert directory.ended_run([pod["metadata"]["uid"]]) is None


def test_no_more_than_so_many_deleted_objects_are_remembered() -> None:
    gone = GoneObjects(lambda: 0.0)
    for number in range(MAX_GONE + 5):
        gone.add({"metadata": {"uid": str(number)}})
    assert len(gone) == MAX_GONE
    assert gone.get("4") is None
    assert gone.get(str(MAX_GONE + 4)) is not None


def test_what_others_wrote_on_a_deleted_object_is_not_kept() -> None:
    gone = GoneObjects(lambda: 0.0)
    last = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 200_000, ATTEMPT: "1"}
    gone.add({"kind": "Job", "metadata": {"uid": "u", "annotations": last}, "spec": {"template": {}}, "status": {}})
    kept = gone.get("u")
    assert kept is not None
    assert (kept["metadata"]["annotations"], kept["spec"]) == ({ATTEMPT: "1"}, {})
