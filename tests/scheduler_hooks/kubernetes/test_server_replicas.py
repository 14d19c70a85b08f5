"""Deployments, StatefulSets and LeaderWorkerSets: one job each, whose replicas are told of and never acted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sample_views import identity, job_record, job_view, rank_summary
from scheduler_hooks.kubernetes.injection_pods import environ, injected
from scheduler_hooks.kubernetes.kube_world import UNCHANGED, KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.kubernetes import ACTIONS, PROFILE_LABEL, SCHEDULER, PodFacts, PodPlace
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.kubernetes.injection.plan import claimed_name
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS
from tidegauge_scheduler_hooks.kubernetes.replicas import Replica, replica_of
from tidegauge_scheduler_hooks.ports import PermanentError, Presence

JOB = f"{NAMESPACE}/vllm"
LWS = "leaderworkerset.sigs.k8s.io/"
Metadata = dict[str, Any]


def by(kind: str, name: str, api: str = "apps/v1") -> list[dict[str, Any]]:
    """``ownerReferences`` as a controller writes them."""
    return [{"apiVersion": api, "kind": kind, "name": name, "uid": f"uid-of-{name}", "controller": True}]


def of_deployment(number: int, template: str = "6d4cf56db") -> Metadata:
    """A pod of a ReplicaSet of the Deployment ``vllm``."""
    labels = {"app": "vllm", "pod-template-hash": template}
    return {
        "name": f"vllm-{template}-x{number}",
        "labels": labels,
        "ownerReferences": by("ReplicaSet", f"vllm-{template}"),
    }


def of_stateful_set(number: int) -> Metadata:
    labels = {"statefulset.kubernetes.io/pod-name": f"vllm-{number}", "apps.kubernetes.io/pod-index": str(number)}
    return {"name": f"vllm-{number}", "labels": labels, "ownerReferences": by("StatefulSet", "vllm")}


def of_leader_worker_set(group: int, worker: int = 0) -> Metadata:
    """As LWS 0.9.0 has them: the leaders' StatefulSet is called after the set, that of a group's workers after its
    leader (``constructLeaderStatefulSetApplyConfiguration``, ``constructWorkerStatefulSetApplyConfiguration``,
    ``PodWebhook.Default``)."""
    labels = {
        f"{LWS}name": "vllm", f"{LWS}group-index": str(group), f"{LWS}worker-index": str(worker),
        f"{LWS}group-key": f"hash-{group}", f"{LWS}template-revision-hash": "5f6b",
    }  # fmt: skip
    leader = f"vllm-{group}"
    name, above = (f"{leader}-{worker}", leader) if worker else (leader, "vllm")
    annotations = {f"{LWS}size": "4", **({f"{LWS}leader-name": leader} if worker else {})}
    return {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": by("StatefulSet", above)}


SERVERS: dict[str, Callable[[int], Sequence[Metadata]]] = {
    "Deployment": lambda number: [of_deployment(number)],
    "StatefulSet": lambda number: [of_stateful_set(number)],
    "LeaderWorkerSet": lambda number: [of_leader_worker_set(number, worker) for worker in range(4)],
}
"""The pods of a replica, by the server's kind."""
NAMES = {"Deployment": "pod vllm-6d4cf56db-x3", "StatefulSet": "replica 3", "LeaderWorkerSet": "replica 3"}
every_server = pytest.mark.parametrize("kind", SERVERS)


@pytest.fixture
def world() -> KubeWorld:
    return KubeWorld()


def run(world: KubeWorld, metadata: Metadata, **status: Any) -> Any:
    """The pod as the API server has it while it runs."""
    labels = {PROFILE_LABEL: "auto", **metadata["labels"]}
    whole = {**metadata, "namespace": NAMESPACE, "labels": labels}
    return world.kube.put(PODS, {"metadata": whole, "status": {"phase": "Running", **status}})


def facts_of(world: KubeWorld, pod: Any) -> PodFacts:
    """What the head tells the agent of its node."""
    facts = world.directory.pod_of(pod["metadata"]["uid"])
    assert facts is not None
    return facts


def replica(world: KubeWorld, pods: Sequence[Any]) -> JobView:
    """One replica as the coordinator sees it: a rank in each pod."""
    ranks = []
    for number, pod in enumerate(pods):
        facts = facts_of(world, pod)
        who = identity(number, job_id=JobId(facts.job_id), attempt=facts.attempt, world_size=len(pods))
        place = PodPlace(
            facts.pod_uid, NAMESPACE, facts.pod, "server", job_known=True, kind=facts.kind, replica=facts.replica
        )
        process = ProcessId(100 + number, 100)
        ranks.append(rank_summary(number, identity=who, process=process, uid=0, verdict=OK, pod=place))
    name = facts_of(world, pods[0]).replica
    return job_view(
        job_id=facts_of(world, pods[0]).job_id, attempt=0, world_size=len(pods), ranks=tuple(ranks), group=name,
        group_name=name, rank_nodes=("n",) * len(pods), rank_hostnames=("n1",) * len(pods), scheduler=SCHEDULER,
    )  # fmt: skip


def started(world: KubeWorld, kind: str, number: int = 3) -> JobView:
    return replica(world, [run(world, metadata) for metadata in SERVERS[kind](number)])


@every_server
def test_all_pods_of_a_server_are_one_job_and_each_replica_has_a_name(world: KubeWorld, kind: str) -> None:
    for metadata in SERVERS[kind](3):
        facts = facts_of(world, run(world, metadata))
        assert (facts.job_id, facts.kind, facts.replica, facts.attempt) == (JOB, kind, NAMES[kind], 0)
        assert replica_of(metadata) == Replica(kind, "vllm", NAMES[kind])


@every_server
def test_the_webhook_names_the_same_job_while_the_pod_has_no_name_yet(kind: str) -> None:
    for metadata in SERVERS[kind](3):
        labels = {PROFILE_LABEL: "auto", **metadata["labels"]}
        early = {**metadata, "generateName": "vllm-6d4cf56db-", "labels": labels}
        if kind == "Deployment":
            del early["name"]
        labels.pop(f"{LWS}group-index", None)  # LWS's own webhook, which writes a leader's, may come later
        after = injected({"metadata": early, "spec": {"containers": [{"name": "server", "image": "i"}]}})
        assert (environ(after)["TIDEGAUGE_JOB_ID"], environ(after)["TIDEGAUGE_JOB_NAME"]) == ("team/vllm", "vllm")
        assert environ(after)["TIDEGAUGE_ATTEMPT"] == "0"


def test_a_rolling_update_is_the_same_job_in_the_same_attempt(world: KubeWorld) -> None:
    pods = [run(world, of_deployment(number, template)) for template in ("6d4cf56db", "7f9bd") for number in range(2)]
    found = [facts_of(world, pod) for pod in pods]
    assert {(facts.job_id, facts.attempt) for facts in found} == {(JOB, 0)}
    assert len({facts.replica for facts in found}) == 4


@pytest.mark.parametrize(
    "above",
    [
        by("ReplicaSet", "vllm-6d4cf56db", "argoproj.io/v1alpha1"),
        by("ReplicaSet", "vllm-0b5c"),  # of an Argo Rollout: its pods have another label
        by("ReplicaSet", "6d4cf56db"),
        by("DaemonSet", "vllm"),
        by("StatefulSet", "vllm", "apps.kruise.io/v1beta1"),
        by("Workflow", "vllm", "argoproj.io/v1alpha1"),
        [],
    ],
)
def test_pods_of_other_owners_stay_jobs_of_their_own(world: KubeWorld, above: list[Any]) -> None:
    metadata = {**of_deployment(3), "ownerReferences": above}
    facts = facts_of(world, run(world, metadata))
    assert (facts.job_name, facts.kind, facts.replica) == (metadata["name"], "Pod", "")


def test_a_job_of_a_known_kind_is_no_replica_whatever_its_pods_say(world: KubeWorld) -> None:
    job = world.start_job()
    (pod,) = world.controllers.pods(world.running(job))
    labels = {**pod["metadata"]["labels"], f"{LWS}name": "vllm", f"{LWS}group-index": "1"}
    world.kube.put(PODS, {**pod, "metadata": {**pod["metadata"], "labels": labels}})
    facts = facts_of(world, pod)
    assert (facts.kind, facts.replica) == ("Job", "")
    assert claimed_name({**pod["metadata"], "labels": labels}) == "vllm", "a claim, until the head answers"


@every_server
def test_a_replica_is_told_by_an_event_on_its_first_pod(world: KubeWorld, kind: str) -> None:
    view = started(world, kind)
    facts = world.facts(view)
    assert facts is not None
    assert facts.can == {ActionKind.NOTIFY, ActionKind.ANNOTATE}
    assert facts.only_told == f"a {kind} serves requests, and Tidegauge never acts on one"
    target = world.target(view)
    assert world.port.presence(target) is Presence.RUNNING
    world.port.notify(target, "leaks", decision_id="d-1")
    world.port.annotate(target, "ends at 3 GiB", decision_id="d-2")
    assert [(call.verb, call.kind) for call in world.kube.calls] == [
        ("get", "Pod"), ("get", "Pod"), ("create", "Event"), ("get", "Pod"), ("create", "Event"),
    ], "nothing is changed, and no right to a server's object is used"  # fmt: skip
    first = SERVERS[kind](3)[0]["name"]
    assert [(event["regarding"]["kind"], event["regarding"]["name"]) for event in world.kube.list(EVENTS)] == [
        ("Pod", first)
    ] * 2


@every_server
@pytest.mark.parametrize("asks", ["", "requeue"])
def test_no_action_is_done_to_a_server_even_if_its_owner_allows_a_requeue(
    world: KubeWorld, kind: str, asks: str
) -> None:
    pods = SERVERS[kind](3)
    for metadata in pods:
        metadata["annotations"] = {**metadata.get("annotations", {}), ACTIONS: asks}
    target = world.target(replica(world, [run(world, metadata) for metadata in pods]))
    world.kube.calls.clear()
    doing: list[Callable[[], object]] = [
        lambda: world.port.cap(target, 0.5, decision_id="d"),
        lambda: world.port.checkpoint(target, decision_id="d", deadline_unix_s=1.0),
        lambda: world.port.requeue(target, UNCHANGED, "leaks", decision_id="d"),
        lambda: world.port.hold(target, "leaks", decision_id="d"),
        lambda: world.port.cancel(target, "leaks", decision_id="d"),
    ]
    for act in doing:
        with pytest.raises(PermanentError, match=f"a {kind} serves requests, and Tidegauge never acts on one"):
            act()
    assert {call.verb for call in world.kube.calls} == {"get"}
    assert world.ranks.steps == 200, "no rank was asked for anything"


def test_replicas_of_two_groups_are_no_workload(world: KubeWorld) -> None:
    pods = [run(world, of_leader_worker_set(group)) for group in (0, 1)]
    assert world.facts(replica(world, pods)) is None


@every_server
def test_a_server_that_is_scaled_to_none_was_cancelled(world: KubeWorld, kind: str) -> None:
    view = started(world, kind)
    for metadata in SERVERS[kind](3):
        world.kube.remove(PODS, NAMESPACE, metadata["name"])
    assert world.port.ends([view]) == {view.key: JobEnd.CANCELLED}
    world.kube.calls.clear()
    world.port.remark_end(view, job_record(end=JobEnd.CANCELLED), "cancelled")
    assert not world.kube.calls, "there is nothing left to write on"


def test_a_container_that_is_started_again_in_its_pod_has_not_ended_its_replica(world: KubeWorld) -> None:
    pod = run(world, of_deployment(3))
    view = replica(world, [pod])
    ended = {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}
    run(world, of_deployment(3), containerStatuses=[{"name": "server", "lastState": {"terminated": ended}}])
    assert world.port.ends([view]) == {}
