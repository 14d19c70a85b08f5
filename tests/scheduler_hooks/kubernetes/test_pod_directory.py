"""Who a pod is, as the agents are told."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.kube import FakeKube
from scheduler_hooks.kubernetes.kube_world import KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by, workload
from tidegauge.core.jobs.kubernetes import ATTEMPT, OWNER, PROFILE_LABEL, PodFacts
from tidegauge_scheduler_hooks.kubernetes.owners import JOBSETS, KINDS
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import JOBS, PODS, Object
from tidegauge_scheduler_hooks.kubernetes.workloads import RESTART_LABEL

DIGITS = "ab" * 32


def put_pod(
    kube: FakeKube, name: str, above: Object | None = None, *, namespace: str = NAMESPACE, **metadata: Any
) -> str:
    """A labelled pod that runs; returns its uid."""
    labels = {PROFILE_LABEL: "auto", **metadata.pop("labels", {})}
    owners = {} if above is None else {"ownerReferences": owned_by(above)}
    statuses = [{"name": "node", "containerID": f"containerd://{DIGITS}"}, {"name": "side"}]
    pod = {
        "metadata": {"name": name, "namespace": namespace, "labels": labels, **owners, **metadata},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
    return str(kube.put(PODS, pod)["metadata"]["uid"])


def put_job(kube: FakeKube, name: str = "train", **status: Any) -> Any:
    return kube.put(JOBS, {**workload("Job", name), "status": status})


def test_a_pod_is_known_by_its_topmost_owner() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    jobset = kube.put(JOBSETS, workload("JobSet", "train"))
    job = kube.put(
        JOBS, {"metadata": {"name": "train-w-0", "namespace": NAMESPACE, "ownerReferences": owned_by(jobset)}}
    )
    annotations = {ATTEMPT: "2", OWNER: "ada"}
    uid = put_pod(kube, "train-w-0-0", job, annotations=annotations, labels={RESTART_LABEL: "3"})
    assert directory.pod_of(uid) == PodFacts(
        uid, NAMESPACE, "train-w-0-0", "train", "JobSet", attempt=5, user_name="ada", containers={DIGITS: "node"}
    )


def test_a_pod_of_its_own_belongs_to_its_namespace() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    facts = directory.pod_of(put_pod(kube, "alone"))
    assert facts is not None
    assert (facts.job_id, facts.kind, facts.user_name) == (f"{NAMESPACE}/alone", "Pod", NAMESPACE)


@pytest.mark.parametrize("owner", ["x" * 129, "x" * 200_000, "ada\n<!channel>", "ada\0", "\u202eada", "  "])
def test_an_owner_that_is_no_name_is_nobody(owner: str) -> None:
    """An annotation may have 256 KiB, and this is repeated for every rank in every report."""
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    job = kube.put(JOBS, {**workload("Job", "train"), "metadata": {"name": "train", "namespace": NAMESPACE,
                                                                    "annotations": {OWNER: "grace"}}})  # fmt: skip
    facts = directory.pod_of(put_pod(kube, "train-0", job, annotations={OWNER: owner}))
    assert facts is not None
    assert facts.user_name == "grace"


def test_a_pod_that_was_told_no_attempt_has_that_of_its_workload() -> None:
    """The webhook was away, or could not read the workload; what a Job of ours starts again has no older pods left."""
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    body = workload("Job", "train")
    body["metadata"]["annotations"][ATTEMPT] = "3"
    facts = directory.pod_of(put_pod(kube, "train-0", kube.put(JOBS, body)))
    assert facts is not None
    assert facts.attempt == 3


def test_pods_without_the_label_and_unknown_ones_are_not_known() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    unlabelled = kube.put(PODS, {"metadata": {"name": "p", "namespace": NAMESPACE, "labels": {"app": "x"}}})
    assert directory.pod_of(unlabelled["metadata"]["uid"]) is None
    assert directory.pod_of("no-such-uid") is None


def test_a_pod_is_known_once_its_owner_is() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    job = {**workload("Job", "train"), "apiVersion": "batch/v1", "kind": "Job"}
    job["metadata"]["uid"] = "u-job"
    uid = put_pod(kube, "p", job)
    assert directory.pod_of(uid) is None
    kube.put(JOBS, job)
    assert directory.pod_of(uid) is not None


def test_each_further_pod_of_a_job_of_one_pod_is_another_attempt_also_when_the_earlier_are_deleted() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    job = put_job(kube, startTime="T")
    first = put_pod(kube, "p-1", job, creationTimestamp="2026-01-01T00:00:00Z")
    second = put_pod(kube, "p-2", job, creationTimestamp="2026-01-01T00:01:00Z")
    assert [attempt(directory, uid) for uid in (first, second)] == [0, 1]
    kube.remove(PODS, NAMESPACE, "p-1")
    assert attempt(directory, second) == 1
    # Another head, which has not seen the first, goes by what the Job counts.
    kube.put(JOBS, {**kube.peek(JOBS, NAMESPACE, "train"), "status": {"startTime": "T", "failed": 1}})
    assert attempt(PodDirectory(kube, KINDS), second) == 1


def test_pods_that_run_side_by_side_are_one_attempt() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    body = workload("Job", "train")
    body["spec"]["parallelism"] = body["spec"]["completions"] = 2
    job = kube.put(JOBS, body)
    uids = [put_pod(kube, f"p-{at}", job, creationTimestamp=f"2026-01-01T00:0{at}:00Z") for at in range(2)]
    assert [attempt(directory, uid) for uid in uids] == [0, 0]


def test_a_pod_of_another_namespace_that_claims_the_owner_is_none_of_its_pods() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    job = put_job(kube)
    own = put_pod(kube, "own", job)
    forged = put_pod(kube, "forged", job, namespace="team-b")
    assert directory.pod_of(forged) is None
    assert [pod["metadata"]["uid"] for pod in directory.pods_of(job)] == [own]


def test_owners_in_a_circle_are_looked_at_once() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    first, second = put_job(kube, "a"), put_job(kube, "b")
    for one, other in ((first, second), (second, first)):
        kube.put(JOBS, {**one, "metadata": {**one["metadata"], "ownerReferences": owned_by(other)}})
    put_pod(kube, "p", second)
    assert len(directory.pods_of(first)) == 1


def test_pod_directory_forgets_deleted_pods() -> None:
    world = KubeWorld("JobSet")
    job = world.start_job()
    obj = world.running(job)
    assert len(world.directory.pods_of(obj)) == 1
    for pod in world.controllers.pods(obj):
        world.kube.remove(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
    assert world.directory.pods_of(obj) == []
    assert world.directory.pod_of(job.ranks[0].pod.pod_uid if job.ranks[0].pod else "") is None


def test_pod_directory_knows_objects_between_owner_and_pods() -> None:
    world = KubeWorld("TrainJob")
    job = world.start_job()
    obj = world.running(job)
    foreign = {"name": "foreign", "namespace": "team-b", "ownerReferences": owned_by(obj)}
    world.kube.put(JOBS, {"metadata": foreign, "spec": {}})
    links = [link["metadata"]["name"] for link in world.directory.links_of(obj)]
    assert sorted(links) == ["train-0-jobs-0", "train-0-jobsets-0"]


def test_why_pods_are_not_known_is_told() -> None:
    kube = FakeKube()
    directory = PodDirectory(kube, KINDS)
    assert directory.problem is None
    kube.store(PODS, label_selector=PROFILE_LABEL, on_change=directory._changed).problem = "no right to list pods"
    assert directory.problem == "no right to list pods"


def attempt(directory: PodDirectory, uid: str) -> int:
    facts = directory.pod_of(uid)
    assert facts is not None
    return facts.attempt
