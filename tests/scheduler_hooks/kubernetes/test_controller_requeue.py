"""A suspended workload with an order is started again, once, and only if it may be."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from fakes.kube import FakeStore
from scheduler_hooks.kubernetes.controller_world import ControllerWorld, Process, change_before, writes
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by
from tidegauge.core.jobs.kubernetes import ATTEMPT, REQUEUE, STOPPED
from tidegauge.core.jobs.variables import FRACTION_VARIABLE
from tidegauge_scheduler_hooks.kubernetes.intents import Stopped, encode
from tidegauge_scheduler_hooks.kubernetes.kueue import QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, Path
from tidegauge_scheduler_hooks.kubernetes.ports import JOBS, PODS, ForbiddenError
from tidegauge_scheduler_hooks.kubernetes.workloads import attempt_of
from tidegauge_scheduler_hooks.ports import TemporaryError

KIND_NAMES = tuple(KINDS)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_controller_restarts_with_changes_once_the_pods_are_gone(kind: str) -> None:
    world = ControllerWorld(kind)
    process = Process(world)
    world.requeue(environ={FRACTION_VARIABLE: "0.8"}, attempt=3)
    assert process.work() is not None, "its pods are there"
    assert writes(world.kube) == []
    world.advance()
    assert process.work() is None
    assert len(writes(world.kube)) == 1
    world.advance()
    assert world.starts == 2
    assert REQUEUE not in world.annotations
    (pod,) = world.pods
    assert pod["metadata"]["annotations"][ATTEMPT] == "3"
    assert {"name": FRACTION_VARIABLE, "value": "0.8"} in pod["spec"]["containers"][0]["env"]
    assert process.work() is None
    world.advance()
    assert world.starts == 2


def test_the_watches_name_the_workload_when_its_last_pod_is_gone() -> None:
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    assert world.key in process.told
    process.told.clear()
    world.kube.remove(PODS, NAMESPACE, world.pods[0]["metadata"]["name"])
    assert process.told == [world.key]


def test_a_workload_without_an_order_is_never_looked_at() -> None:
    world = ControllerWorld()
    process = Process(world)
    world.kube.resync()
    process.look.tell_all()
    assert process.told == []
    assert process.work() is None
    assert writes(world.kube) == []


def test_a_replica_that_does_not_lead_changes_nothing() -> None:
    world = ControllerWorld()
    process = Process(world)
    process.leads = False
    world.requeue()
    world.advance()
    process.work()
    assert writes(world.kube) == []


def test_a_pod_that_nobody_watches_counts_as_there() -> None:
    """A JobSet's driver may have no label of ours: its watch does not show it, and it may still run."""
    world = ControllerWorld("JobSet")
    process = Process(world)
    world.requeue()
    world.advance()
    job = next(iter(world.kube.list(JOBS)))
    metadata = {"name": "driver", "namespace": NAMESPACE, "ownerReferences": owned_by(job), "annotations": {}}
    world.kube.put(PODS, {"metadata": metadata, "status": {"phase": "Running"}})
    assert process.work() is not None
    assert writes(world.kube) == []
    world.kube.remove(PODS, NAMESPACE, "driver")
    assert process.work() is None
    assert len(writes(world.kube)) == 1


def test_while_watched_pods_end_the_api_server_is_not_asked_for_the_pods_of_a_namespace() -> None:
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    (pod,) = world.pods
    world.advance()
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.kube.put(PODS, pod)
    world.kube.calls.clear()
    for _ in range(20):
        assert process.work() is not None
    assert world.kube.called("list", "Pod") == []
    world.kube.remove(PODS, NAMESPACE, pod["metadata"]["name"])
    assert process.work() is None
    (confirmed,) = world.kube.called("list", "Pod")
    assert confirmed.body == ["status.phase!=Succeeded,status.phase!=Failed"]


def test_while_the_watch_is_cut_pods_are_asked_for() -> None:
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    (pod,) = world.pods
    world.advance()
    world.kube.put(PODS, pod)
    store = process.look.stores[PODS]
    assert isinstance(store, FakeStore)
    store.problem = "cut"
    world.kube.calls.clear()
    assert process.work() is not None
    assert len(world.kube.called("list", "Pod")) == 1


def test_a_pod_that_is_being_deleted_counts_as_there_and_one_that_ended_does_not() -> None:
    world = ControllerWorld()
    process = Process(world)
    (pod,) = world.pods
    world.requeue()
    world.advance()
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.kube.put(PODS, pod)
    assert process.work() is not None
    world.kube.put(PODS, {**pod, "status": {"phase": "Failed"}})
    assert process.work() is None
    world.advance()
    assert world.starts == 2


def test_a_pod_whose_job_is_not_known_counts_if_it_names_the_workload() -> None:
    """The Job went, its pods are being collected; or it is so new that no watch has shown it."""
    world = ControllerWorld("JobSet")
    process = Process(world)
    world.requeue()
    world.advance()
    unknown = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gone", "uid": "not-there"}}
    metadata = {"namespace": NAMESPACE, "ownerReferences": owned_by(unknown), "annotations": {}}
    label = "jobset.sigs.k8s.io/jobset-name"
    status = {"phase": "Running"}
    world.kube.put(PODS, {"metadata": {**metadata, "name": "other", "labels": {label: "another"}}, "status": status})
    world.kube.put(PODS, {"metadata": {**metadata, "name": "orphan", "labels": {label: "train"}}, "status": status})
    assert process.work() is not None
    world.kube.remove(PODS, NAMESPACE, "orphan")
    assert process.work() is None
    assert len(writes(world.kube)) == 1


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_an_order_is_dropped_when_its_owner_has_resumed_the_workload(kind: str) -> None:
    world = ControllerWorld(kind)
    process = Process(world)
    world.requeue()
    world.advance()
    world.resumed_by_owner()
    world.advance()
    assert process.work() is None
    assert REQUEUE not in world.annotations
    assert ATTEMPT not in world.annotations
    assert world.starts == 2
    assert world.event_reasons == []


@pytest.mark.parametrize("number", range(4))
def test_an_owner_who_is_quicker_than_any_of_our_requests_is_not_fought(number: int) -> None:
    """Either way it runs once, and the order is gone."""
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    world.advance()
    change_before(world.kube, number, world.resumed_by_owner)
    for _ in range(3):
        with suppress(TemporaryError):
            process.work()
    world.advance()
    process.work()
    world.advance()
    assert REQUEUE not in world.annotations
    assert world.starts == 2


def test_an_order_for_what_has_ended_or_was_held_is_dropped() -> None:
    ended = ControllerWorld()
    ended.requeue()
    ended.controllers.end(ended.kind, ended.obj)
    held = ControllerWorld()
    held.requeue()
    held.annotate(STOPPED, encode(Stopped("d-2", "hold", "by an admin", held.now_s)))
    held.advance()
    for world in (ended, held):
        assert Process(world).work() is None
        assert REQUEUE not in world.annotations
        assert world.starts == 1
    assert STOPPED in held.annotations
    assert held.event_reasons == ["GpuMemoryRequeueDropped"]


def test_an_attempt_that_was_started_before_is_not_started_again() -> None:
    world = ControllerWorld()
    process = Process(world)
    order = world.requeue(attempt=2)
    world.advance()
    process.work()
    world.advance()
    assert world.starts == 2
    obj = world.obj
    obj["spec"]["suspend"] = True
    obj["metadata"]["annotations"][REQUEUE] = encode(order)
    world.kube.put(JOBS, obj)
    world.advance()
    process.work()
    world.advance()
    assert world.starts == 2
    assert REQUEUE not in world.annotations


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "{",
        "[]",
        "null",
        '{"attempt": 1}',
        '{"decision":"d","attempt":-1,"reason":"","at":0,"mark":""}',
        '{"decision":"d","attempt":1e3,"reason":"","at":0,"mark":""}',
        '{"decision":"d","attempt":1,"reason":"","at":NaN,"mark":""}',
        "[" * 4000,
        json.dumps({"decision": "d", "attempt": 1, "reason": "x" * 5000, "at": 0, "mark": ""}),
    ],
)
def test_an_order_that_cannot_be_read_is_taken_away_and_its_owner_told(forged: str) -> None:
    world = ControllerWorld()
    process = Process(world)
    obj = world.obj
    obj["spec"]["suspend"] = True
    obj["metadata"]["annotations"][REQUEUE] = forged
    world.kube.put(JOBS, obj)
    world.advance()
    assert process.work() is None
    assert REQUEUE not in world.annotations
    assert world.obj["spec"]["suspend"] is True
    assert world.event_reasons == ["GpuMemoryRequeueDropped"]


def test_a_forged_order_reaches_no_further_than_its_own_workload() -> None:
    world = ControllerWorld()
    process = Process(world)
    world.requeue(environ={"LD_PRELOAD": "/evil.so"}, mark=f"{world.uid}#another/namespace")
    world.advance()
    process.work()
    assert {(call.namespace, call.name) for call in writes(world.kube)} == {(NAMESPACE, "train")}
    world.advance()
    (pod,) = world.pods
    assert "LD_PRELOAD" not in {one["name"] for one in pod["spec"]["containers"][0]["env"]}


def test_an_order_that_came_with_another_object_of_the_name_is_dropped() -> None:
    """Made again from ``kubectl get -o yaml`` or a backup: what was ordered was ordered for the one that has gone."""
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    world.advance()
    copied = {**world.obj, "metadata": {**world.obj["metadata"], "uid": "another-uid"}}
    world.kube.remove(JOBS, NAMESPACE, "train")
    world.kube.put(JOBS, copied)
    assert process.work() is None
    assert REQUEUE not in world.annotations
    assert world.obj["spec"]["suspend"]
    assert "GpuMemoryRequeueDropped" in world.event_reasons


def test_a_workload_that_is_being_deleted_is_left_alone() -> None:
    world = ControllerWorld()
    world.requeue()
    world.kube.put(JOBS, {**world.obj, "metadata": {**world.obj["metadata"], "deletionTimestamp": "2026-01-01"}})
    assert Process(world).work() is None
    assert writes(world.kube) == []


def test_controller_counts_a_forbidden_requeue_reports_it_once_and_retries() -> None:
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    world.advance()
    for _ in range(2):
        world.kube.fail_next(ForbiddenError("may not patch jobs"), verb="patch")
        with pytest.raises(ForbiddenError):
            process.work()
    assert process.outcomes()["resume", "forbidden"] == 2
    assert world.event_reasons == ["GpuMemoryRequeueWaits"]
    process.work()
    assert process.outcomes()["resume", "done"] == 1


def test_an_owner_is_told_once_that_pods_do_not_end() -> None:
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    obj = world.obj
    world.kube.put(JOBS, {**obj, "status": {"conditions": [{"type": "Suspended", "status": "True"}]}})
    assert process.work() == 2.0
    world.now_s += 3600
    assert process.work() == 30.0
    process.work()
    assert world.event_reasons == ["GpuMemoryRequeueWaits"]
    (event,) = world.kube.called("create", "Event")
    assert world.pods[0]["metadata"]["name"] in event.body["note"]


def test_an_event_that_cannot_be_left_undoes_nothing() -> None:
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    world.advance()
    assert process.work() is None
    world.advance()
    world.kube.fail_next(ForbiddenError("no events"), verb="create", kind="Event")
    assert process.work() is None
    assert process.outcomes() == {("resume", "done"): 1, ("prove", "done"): 1, ("event", "forbidden"): 1}


# Kueue


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob", "RayJob"])
def test_with_kueue_its_workload_is_switched_on_last(kind: str) -> None:
    world = ControllerWorld(kind, queued=True)
    process = Process(world)
    world.requeue()
    assert process.work() is not None, "Kueue has not evicted it"
    world.advance()
    assert process.work() is None
    assert [call.kind for call in writes(world.kube)] == [kind, "Workload", kind]
    assert world.obj["spec"]["suspend"] is True, "that is Kueue's"
    assert world.open_orders == set()
    world.advance()
    assert world.starts == 2
    assert attempt_of(world.pods[0]) == 1


def test_an_order_waits_for_a_head_that_died_before_it_switched_the_workload_off() -> None:
    world = ControllerWorld(queued=True)
    process = Process(world)
    world.requeue()
    world.put_queue_workload(active=True, reserved=True)
    assert process.work() is not None
    assert writes(world.kube) == []
    world.now_s += 901
    assert process.work() is None
    assert REQUEUE not in world.annotations
    assert world.kube.peek(QUEUE_WORKLOADS, NAMESPACE, "job-train")["spec"]["active"] is True
    assert world.starts == 1


def test_controller_waits_until_kueue_released_the_quota() -> None:
    world = ControllerWorld(queued=True)
    process = Process(world)
    world.requeue()
    world.advance()
    world.put_queue_workload(active=False, reserved=True)
    assert process.work() is not None
    assert writes(world.kube) == []
    world.put_queue_workload(active=False, reserved=False)
    assert process.work() is None
    world.advance()
    assert world.starts == 2


def test_an_order_is_dropped_when_kueue_has_started_the_workload_anew() -> None:
    """The head died before it switched the Workload off, and another job took its quota for a while."""
    world = ControllerWorld("JobSet", queued=True)
    process = Process(world)
    world.requeue()
    world.put_queue_workload(active=True, reserved=True)
    obj = world.obj
    obj["spec"]["suspend"] = True
    world.kube.put(world.kind.resource, obj)
    world.controllers.advance()
    assert process.work() is not None, "the run is over, and Kueue has not started another"
    world.advance()
    assert process.work() is None
    assert REQUEUE not in world.annotations
    assert world.event_reasons == []
    assert world.starts == 2


# Who was the last to stop it: ``metadata.managedFields``


def last_written_by(manager: str, path: Path) -> list[dict[str, object]]:
    """As the API server writes it, with two entries that say nothing of the field."""
    fields: object = {}
    for step in reversed(path):
        fields = {f"f:{step}": fields}
    return [
        {"manager": "kube-controller-manager", "fieldsV1": {"f:status": {"f:active": {}}}, "subresource": "status"},
        {"manager": "tidegauge", "fieldsV1": {"f:metadata": {"f:annotations": {f"f:{REQUEUE}": {}}}}},
        {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields},
    ]


@pytest.mark.parametrize(("manager", "starts"), [("kubectl-patch", 1), ("tidegauge", 2), ("ancient-changes", 2)])
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_an_order_does_not_undo_a_later_suspension_by_somebody_else(kind: str, manager: str, starts: int) -> None:
    """Its owner resumed and suspended it while no controller ran: nothing but its fields' managers shows that."""
    world = ControllerWorld(kind)
    world.requeue()
    world.advance()
    obj = world.obj
    assert world.kind.suspend is not None
    obj["metadata"]["managedFields"] = last_written_by(manager, world.kind.suspend)
    world.kube.put(world.kind.resource, obj)
    assert Process(world).work() is None
    assert REQUEUE not in world.annotations
    assert world.event_reasons == (["GpuMemoryRequeueDropped"] if starts == 1 else [])
    world.advance()
    assert world.starts == starts


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize(("manager", "active"), [("kubectl-patch", False), ("tidegauge", True)])
def test_an_order_does_not_undo_a_later_deactivation_by_somebody_else(
    manager: str, active: bool, annotated: bool
) -> None:
    """``annotated``: the controller was killed between its first patch and the one that switches the Workload on."""
    world = ControllerWorld(queued=True)
    world.requeue()
    world.advance()
    if annotated:
        with suppress(TemporaryError):
            world.kube.fail_next(TemporaryError("away"), verb="patch", kind="Workload")
            Process(world).work()
        assert ATTEMPT in world.annotations
    queue_workload = world.kube.peek(QUEUE_WORKLOADS, NAMESPACE, "job-train")
    queue_workload["metadata"]["managedFields"] = last_written_by(manager, ("spec", "active"))
    world.kube.put(QUEUE_WORKLOADS, queue_workload)
    assert Process(world).work() is None
    assert REQUEUE not in world.annotations
    assert world.kube.peek(QUEUE_WORKLOADS, NAMESPACE, "job-train")["spec"]["active"] is active
