"""The pods of a workload with an incident carry a condition that a ``podFailurePolicy`` can match; no others do."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.kube import Call
from scheduler_hooks.kubernetes.controller_world import (
    ControllerWorld,
    Killed,
    Process,
    condition_of,
    kill_before,
    writes,
)
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE
from tidegauge.core.jobs.kubernetes import ATTEMPT, INCIDENT, LEAK_CONDITION
from tidegauge_scheduler_hooks.kubernetes.controller.reconcile import MARKED_AT_ONCE
from tidegauge_scheduler_hooks.kubernetes.intents import IncidentIntent, encode
from tidegauge_scheduler_hooks.kubernetes.owners import JOBSETS, KINDS
from tidegauge_scheduler_hooks.kubernetes.ports import JOBS, PODS, ConflictError, ObjectNotFoundError

TEXT = "rank 1 leaks 2.1 MiB a step in train.py:41"


def with_incident(kind: str = "Job", *, pods: int = 1) -> ControllerWorld:
    """Its first run has this many pods."""
    world = ControllerWorld(kind)
    (first,) = world.pods
    for number in range(1, pods):
        metadata = {**first["metadata"], "name": f"train-more-{number}"}
        metadata.pop("uid")
        world.kube.put(PODS, {**first, "metadata": metadata})
    tell(world, TEXT)
    return world


def tell(world: ControllerWorld, text: str) -> None:
    """What the head writes on the present run."""
    world.annotate(INCIDENT, encode(IncidentIntent("d-1", world.incarnation, text, world.now_s)))


def marks(world: ControllerWorld) -> dict[str, str | None]:
    """The condition's status by pod."""
    found = {pod["metadata"]["name"]: condition_of(pod, LEAK_CONDITION) for pod in world.pods}
    return {name: None if one is None else one["status"] for name, one in found.items()}


def test_a_controller_without_pod_conditions_writes_nothing_into_pods() -> None:
    world = with_incident(pods=3)
    assert Process(world, marks=False).work() is None
    assert writes(world.kube) == []


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_pod_is_marked_once_with_what_its_owner_is_told(kind: str) -> None:
    world = with_incident(kind, pods=3)
    process = Process(world)
    world.kube.resync()
    assert world.key in process.told
    assert process.work() is None
    (pod, *_) = world.pods
    assert condition_of(pod, LEAK_CONDITION) == {
        "type": LEAK_CONDITION,
        "status": "True",
        "reason": "GpuMemoryLeaks",
        "message": TEXT,
        "lastTransitionTime": "2023-11-14T22:13:20Z",
    }
    assert set(marks(world).values()) == {"True"}
    assert {call.subresource for call in writes(world.kube)} == {"status"}
    process.work()
    assert len(writes(world.kube)) == 3


def test_conditions_of_others_stay() -> None:
    world = with_incident()
    (pod,) = world.pods
    ready = {"type": "Ready", "status": "True"}
    world.kube.put(PODS, {**pod, "status": {**pod["status"], "conditions": [ready]}})
    Process(world).work()
    assert condition_of(world.pods[0], "Ready") == ready
    assert marks(world) == {"train-0": "True"}


def test_a_pod_that_comes_later_in_the_run_is_named_by_its_watch() -> None:
    world = with_incident()
    process = Process(world)
    process.work()
    process.told.clear()
    (pod,) = world.pods
    metadata = {**pod["metadata"], "name": "train-late"}
    metadata.pop("uid")
    world.kube.put(PODS, {**pod, "metadata": metadata, "status": {"phase": "Pending"}})
    assert process.told == [world.key]
    process.work()
    assert marks(world)["train-late"] == "True"


def test_marks_are_taken_back_when_the_incident_is_over() -> None:
    world = with_incident()
    process = Process(world)
    process.work()
    process.told.clear()
    world.annotate(INCIDENT, None)
    assert world.key in process.told
    process.work()
    assert marks(world) == {"train-0": "False"}
    process.told.clear()
    world.kube.resync()
    assert process.told == []


def test_a_large_workload_is_not_marked_on_when_the_incident_is_over() -> None:
    world = with_incident(pods=3 * MARKED_AT_ONCE)

    def over_after_some(call: Call) -> None:
        if call.subresource == "status" and list(marks(world).values()).count("True") == 5:
            world.kube.before_call = None
            world.annotate(INCIDENT, None)

    world.kube.before_call = over_after_some
    process = Process(world)
    process.work()
    seen = list(marks(world).values())
    assert (seen.count("False"), seen.count(None)) == (MARKED_AT_ONCE, 2 * MARKED_AT_ONCE)


def test_another_replica_takes_back_what_a_killed_one_put() -> None:
    world = with_incident()
    Process(world).work()
    world.annotate(INCIDENT, None)
    process = Process(world)
    process.look.tell_all()
    assert world.key in process.told
    process.work()
    assert marks(world) == {"train-0": "False"}


def test_killed_between_pods_the_next_one_marks_the_rest() -> None:
    world = with_incident(pods=3)
    kill_before(world.kube, 2)
    with pytest.raises(Killed):
        Process(world).work()
    assert sorted(map(str, marks(world).values())) == ["None", "None", "True"]
    Process(world).work()
    assert set(marks(world).values()) == {"True"}
    assert len(writes(world.kube)) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"status": {"phase": "Failed"}},
        {"status": {"phase": "Succeeded"}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"ownerReferences": []}},
    ],
)
def test_pods_that_ended_or_belong_to_nobody_are_not_marked(changed: dict[str, Any]) -> None:
    world = with_incident()
    (pod,) = world.pods
    world.kube.put(PODS, {**pod, **changed, "metadata": {**pod["metadata"], **changed.get("metadata", {})}})
    Process(world).work()
    assert marks(world) == {"train-0": None}


def test_pods_of_an_earlier_attempt_are_not_marked() -> None:
    """A watch may be behind: they are seen a little longer than they live."""
    world = ControllerWorld()
    world.annotate(ATTEMPT, "1")
    tell(world, TEXT)
    Process(world).work()
    assert marks(world) == {"train-0": None}


def test_the_next_run_is_not_marked_for_the_last_one() -> None:
    requeued = with_incident()
    process = Process(requeued)
    process.work()
    requeued.requeue()
    requeued.advance()
    process.work()
    suspended = with_incident()
    obj = suspended.obj
    obj["spec"]["suspend"] = True
    suspended.kube.put(JOBS, obj)
    suspended.advance()
    Process(suspended).work()
    suspended.resumed_by_owner()
    for world in (requeued, suspended):
        world.advance()
        Process(world).work()
        assert marks(world) == {"train-1": None}


@pytest.mark.parametrize("error", [ObjectNotFoundError("gone"), ConflictError("another pod has the name")])
def test_a_pod_that_went_meanwhile_keeps_no_other_from_its_mark(error: Exception) -> None:
    world = with_incident(pods=2)
    world.kube.fail_next(error, verb="patch", kind="Pod")
    Process(world).work()
    assert set(marks(world).values()) == {"True"}, "the second look finds the first pod again"


def test_another_pod_under_the_same_name_is_not_marked() -> None:
    """A PyTorchJob calls the pods of its next run as those of the last."""
    world = with_incident()
    process = Process(world)
    world.kube.lag()
    (pod,) = world.pods
    metadata = {**pod["metadata"], "uid": "11111111-0000-4000-8000-000000000000", "ownerReferences": []}
    world.kube.remove(PODS, NAMESPACE, "train-0")
    world.kube.put(PODS, {**pod, "metadata": metadata})
    process.work()
    assert marks(world) == {"train-0": None}


def test_text_that_anybody_may_have_written_is_made_fit() -> None:
    world = with_incident()
    tell(world, "one\ntwo\x1b[31m" + "x" * 400)
    Process(world).work()
    assert condition_of(world.pods[0], LEAK_CONDITION)["message"].startswith("one two [31mxxx")
    Process(world).work()
    assert len(writes(world.kube)) == 1


@pytest.mark.parametrize("forged", ["", "a leak", "{}", "[" * 4000, '{"decision":"d","mark":1,"text":"t","at":0}'])
def test_an_annotation_that_is_not_ours_marks_nothing_and_stays(forged: str) -> None:
    world = with_incident()
    world.annotate(INCIDENT, forged)
    Process(world).work()
    assert marks(world) == {"train-0": None}
    assert world.annotations[INCIDENT] == forged


def test_a_restart_by_its_own_controller_ends_the_marks() -> None:
    world = with_incident("JobSet")
    Process(world).work()
    assert marks(world) == {"train-0": "True"}
    obj = world.obj
    world.kube.put(JOBSETS, {**obj, "status": {**obj["status"], "restarts": 1}})
    Process(world).work()
    assert marks(world) == {"train-0": "False"}
