"""Whose a pod is, and where its owner stands, by the objects alone."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by, workload
from tidegauge_scheduler_hooks.kubernetes.owners import (
    JOB,
    JOBSET,
    KINDS,
    PYTORCHJOB,
    RAYJOB,
    TRAINJOB,
    Owned,
    OwnerKind,
    OwnerReference,
    State,
    mark,
    own_restarts,
    state,
    topmost,
    watched_kinds,
)
from tidegauge_scheduler_hooks.kubernetes.ports import Object, Resource

ALL = watched_kinds(KINDS)


def made(kind: str, name: str, above: Object | None = None, **changes: Any) -> Any:
    """An object of the API, owned by ``above``."""
    api_version = ALL[kind].resource.api_version if kind in ALL else changes.pop("api_version", "v1")
    metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"}
    if above is not None:
        metadata["ownerReferences"] = owned_by(above)  # type: ignore[assignment]  # SAFETY: JSON of mixed values
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **changes}


def top_of(pod: Object, *objects: Object, known: Any = ALL) -> Owned | None:
    def lookup(resource: Resource, namespace: str, reference: OwnerReference) -> Object | None:
        found = (one for one in objects if one["metadata"]["uid"] == reference.uid and one["kind"] == resource.kind)
        return next(found, None)

    return topmost(pod, known, lookup)


def test_the_chain_is_followed_to_the_top() -> None:
    train = made("TrainJob", "t")
    jobset = made("JobSet", "t-set", train)
    job = made("Job", "t-set-0", jobset)
    owned = top_of(made("Pod", "p", job), job, jobset, train)
    assert owned is not None
    assert (owned.kind.name, owned.obj["metadata"]["name"], owned.foreign) == ("TrainJob", "t", None)


def test_a_pod_of_nobody_is_its_own_workload() -> None:
    owned = top_of(made("Pod", "p"))
    assert owned is not None
    assert (owned.kind.name, owned.obj["metadata"]["name"], owned.foreign) == ("Pod", "p", None)


def test_an_owner_that_is_not_heard_of_leaves_it_open() -> None:
    assert top_of(made("Pod", "p", made("Job", "j"))) is None


def test_an_owner_in_another_namespace_is_none() -> None:
    job = made("Job", "j")
    job["metadata"]["namespace"] = "team-b"
    assert top_of(made("Pod", "p", job), job) is None


def test_a_controller_of_an_unknown_kind_is_named() -> None:
    workflow = made("Workflow", "w", api_version="argoproj.io/v1alpha1")
    job = made("Job", "j", workflow)
    owned = top_of(made("Pod", "p", job), job)
    assert owned is not None
    assert (owned.kind.name, owned.foreign) == ("Job", "Workflow")


def test_a_kind_of_the_same_name_in_another_group_is_unknown() -> None:
    other = made("Job", "v")
    other["apiVersion"] = "batch.example.com/v1"
    owned = top_of(made("Pod", "p", other), other)
    assert owned is not None
    assert (owned.kind.name, owned.foreign) == ("Pod", "Job")


def test_a_volcano_job_is_known_by_what_its_pods_say_of_it() -> None:
    """It is not looked up: nobody has a right to read it."""
    volcano = made("Job", "v")
    volcano["apiVersion"] = "batch.volcano.sh/v1alpha1"
    owned = top_of(made("Pod", "p", volcano))
    assert owned is not None
    assert (owned.kind.name, owned.foreign) == ("VolcanoJob", None)
    assert owned.obj["metadata"] == {"namespace": NAMESPACE, "name": "v", "uid": "uid-v"}


@pytest.mark.parametrize(
    "forged", [{"name": "V\n"}, {"name": "v" * 254}, {"uid": "u#1"}, {"uid": "u" * 65}, {"uid": ""}]
)
def test_a_volcano_job_that_cannot_be_one_leaves_the_pod_to_itself(forged: dict[str, str]) -> None:
    """A server stores any text in a reference."""
    volcano = made("Job", "v")
    volcano["apiVersion"] = "batch.volcano.sh/v1alpha1"
    pod = made("Pod", "p", volcano)
    pod["metadata"]["ownerReferences"][0] |= forged
    owned = top_of(pod)
    assert owned is not None
    assert (owned.kind.name, owned.foreign) == ("Pod", "Job")


def test_a_cron_job_does_not_mind() -> None:
    cron = made("CronJob", "c", api_version="batch/v1")
    job = made("Job", "j", cron)
    owned = top_of(made("Pod", "p", job), job)
    assert owned is not None
    assert (owned.kind.name, owned.foreign) == ("Job", None)


def test_a_kind_that_is_not_enabled_is_a_foreign_one() -> None:
    jobset = made("JobSet", "s")
    job = made("Job", "j", jobset)
    owned = top_of(made("Pod", "p", job), job, jobset, known=watched_kinds(["Job"]))
    assert owned is not None
    assert (owned.kind.name, owned.foreign) == ("Job", "JobSet")


def test_owners_in_a_circle_end() -> None:
    first, second = made("Job", "a"), made("Job", "b")
    first["metadata"]["ownerReferences"] = owned_by(second)
    second["metadata"]["ownerReferences"] = owned_by(first)
    owned = top_of(made("Pod", "p", first), first, second)
    assert owned is not None
    assert owned.foreign == "Job"


def test_links_are_known_where_their_owner_is_enabled() -> None:
    assert set(watched_kinds(["TrainJob"])) == {"TrainJob", "JobSet", "Job"}
    assert set(watched_kinds(["RayJob"])) == {"RayJob", "RayCluster", "Job"}


def test_a_kind_that_cannot_be_acted_on_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"'Deployment' is not a supported kind.*Job, JobSet, TrainJob"):
        watched_kinds(["Job", "Deployment"])


SUSPENDED = {"conditions": [{"type": "Suspended", "status": "True"}]}
RESUMED = {"conditions": [{"type": "Suspended", "status": "False", "lastTransitionTime": "T"}]}


@pytest.mark.parametrize(
    ("kind", "suspend", "status", "expected"),
    [
        (JOB, False, {}, State.STARTING),
        (JOB, False, {"startTime": "T", "active": 1}, State.RUNNING),
        (JOB, True, {"startTime": "T", "active": 1}, State.STOPPING),
        (JOB, True, {**SUSPENDED, "terminating": 1}, State.STOPPING),
        (JOB, True, SUSPENDED, State.SUSPENDED),
        (JOB, False, {**SUSPENDED, "startTime": "T"}, State.STARTING),
        (JOB, False, {"conditions": [{"type": "Failed", "status": "True"}]}, State.FINISHED),
        (JOB, False, {"startTime": "T", "conditions": [{"type": "Failed", "status": "False"}]}, State.RUNNING),
        (JOBSET, False, {}, State.RUNNING),
        (JOBSET, True, {**SUSPENDED, "replicatedJobsStatus": [{"name": "w", "active": 1}]}, State.STOPPING),
        (JOBSET, True, {**SUSPENDED, "replicatedJobsStatus": [{"name": "w", "active": 0}]}, State.SUSPENDED),
        (JOBSET, False, RESUMED, State.RUNNING),
        (JOBSET, False, {"conditions": [{"type": "Completed", "status": "True"}]}, State.FINISHED),
        (TRAINJOB, True, {**SUSPENDED, "jobsStatus": [{"name": "node", "active": 2}]}, State.STOPPING),
        (TRAINJOB, False, {"conditions": [{"type": "Complete", "status": "True"}]}, State.FINISHED),
        (PYTORCHJOB, True, {**SUSPENDED, "replicaStatuses": {"Worker": {"active": 1}}}, State.STOPPING),
        (PYTORCHJOB, True, {**SUSPENDED, "replicaStatuses": {"Worker": {}}}, State.SUSPENDED),
        (RAYJOB, False, {}, State.STARTING),
        (RAYJOB, False, {"jobDeploymentStatus": "Running"}, State.RUNNING),
        (RAYJOB, True, {"jobDeploymentStatus": "Suspending"}, State.STOPPING),
        (RAYJOB, True, {"jobDeploymentStatus": "Suspended"}, State.SUSPENDED),
        (RAYJOB, False, {"jobDeploymentStatus": "Suspended"}, State.STARTING),
        (RAYJOB, False, {"jobDeploymentStatus": "Suspending"}, State.STOPPING),
        (RAYJOB, False, {"jobDeploymentStatus": "Failed"}, State.FINISHED),
    ],
)
def test_owner_state_of_a_workload_follows_from_suspend_and_status(
    kind: OwnerKind, suspend: bool, status: Any, expected: State
) -> None:
    obj = workload(kind.name, "train")
    holder = obj["spec"]["runPolicy"] if kind is PYTORCHJOB else obj["spec"]
    holder["suspend"] = suspend
    assert state(kind, {**obj, "status": status}) is expected


def test_a_job_of_one_pod_counts_its_failures_as_restarts_and_others_do_not() -> None:
    job = {**workload("Job", "train"), "status": {"failed": 2}}
    assert own_restarts(JOB, job) == 2
    job["spec"]["parallelism"] = job["spec"]["completions"] = 4
    assert own_restarts(JOB, job) == 0


@pytest.mark.parametrize("count", ["2", True, -1, None])
def test_a_count_that_is_none_is_no_restart(count: object) -> None:
    assert own_restarts(JOBSET, {**workload("JobSet", "train"), "status": {"restarts": count}}) == 0


def test_a_resumed_workload_has_another_mark() -> None:
    obj = workload("JobSet", "train")
    first, again = ({**obj, "status": status} for status in ({}, RESUMED))
    assert mark(JOBSET, first) != mark(JOBSET, again)
    assert mark(JOBSET, {**obj, "status": SUSPENDED}) == mark(JOBSET, first)
