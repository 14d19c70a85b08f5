"""After a restart the owner is told what a new pod really carries, once, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_hooks.kubernetes.controller_world import ControllerWorld, Process
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE
from tidegauge.core.jobs.kubernetes import ATTEMPT, INJECTED, PROFILE_LABEL, RESTARTING, STOPPED, UNREAD
from tidegauge.core.jobs.variables import FRACTION_VARIABLE
from tidegauge_scheduler_hooks.kubernetes.intents import Stopped, encode
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS

CURE = {"environ": {FRACTION_VARIABLE: "0.8"}, "alloc_conf": {"expandable_segments": "True"}}


def restarted(**order: Any) -> tuple[ControllerWorld, Process]:
    """Resumed, with its new pod, and nobody told yet."""
    world = ControllerWorld()
    process = Process(world)
    world.requeue(**order)
    world.advance()
    process.work()
    world.advance()
    assert RESTARTING in world.annotations
    return world, process


def told(world: ControllerWorld) -> list[tuple[str, str]]:
    return [(event["reason"], event["note"]) for event in world.kube.list(EVENTS)]


def change_pod(world: ControllerWorld, change: Any) -> None:
    (pod,) = world.pods
    change(pod)
    world.kube.put(PODS, pod)


def test_the_proof_names_attempt_and_changes_as_the_pod_has_them() -> None:
    world, process = restarted(**CURE)
    assert told(world) == [], "nothing is said before a pod shows it"
    assert process.work() is None
    ((reason, note),) = told(world)
    assert reason == "GpuMemoryRestarted"
    assert note.startswith(
        "Restarted as attempt 1 with PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True, "
        "TIDEGAUGE_MEMORY_FRACTION=0.8 (pod "
    )
    assert RESTARTING not in world.annotations
    process.work()
    assert len(told(world)) == 1


def test_a_restart_without_changes_names_none() -> None:
    world, process = restarted()
    process.work()
    ((reason, note),) = told(world)
    assert reason == "GpuMemoryRestarted"
    assert note.startswith("Restarted as attempt 1 (pod ")


def without_webhook(pod: Any) -> None:
    for name in (ATTEMPT, INJECTED):
        pod["metadata"]["annotations"].pop(name)
    container = pod["spec"]["containers"][0]
    container["env"] = [one for one in container["env"] if not one["name"].startswith("TIDEGAUGE")]


def unlabelled(pod: Any) -> None:
    without_webhook(pod)
    pod["metadata"]["labels"].pop(PROFILE_LABEL)


def by_policy(pod: Any) -> None:
    without_webhook(pod)
    pod["metadata"]["annotations"][INJECTED] = "policy-1"


def unread(pod: Any) -> None:
    pod["metadata"]["annotations"].pop(ATTEMPT)
    pod["metadata"]["annotations"][UNREAD] = "no answer in time"


def stale(pod: Any) -> None:
    pod["metadata"]["annotations"][ATTEMPT] = "0"


def without_the_cap(pod: Any) -> None:
    container = pod["spec"]["containers"][0]
    container["env"] = [one for one in container["env"] if one["name"] != FRACTION_VARIABLE]


def with_a_referred_cap(pod: Any) -> None:
    without_the_cap(pod)
    referred = {"name": FRACTION_VARIABLE, "valueFrom": {"configMapKeyRef": {"name": "limits", "key": "gpu"}}}
    pod["spec"]["containers"][0]["env"].append(referred)


@pytest.mark.parametrize(
    ("change", "lacks", "why"),
    [
        (without_webhook, "the attempt number 1, ", "was made without Tidegauge's webhook"),
        (by_policy, "the attempt number 1, ", "prepared by a MutatingAdmissionPolicy"),
        (unread, "the attempt number 1", "could not be read: no answer in time"),
        (stale, "the attempt number 1", "was told attempt 0"),
        (without_the_cap, "without TIDEGAUGE_MEMORY_FRACTION=0.8", "changed it after Tidegauge's webhook"),
        (
            with_a_referred_cap,
            "without TIDEGAUGE_MEMORY_FRACTION=0.8",
            "its template sets TIDEGAUGE_MEMORY_FRACTION by valueFrom",
        ),
    ],
)
def test_what_a_new_pod_lacks_is_said_with_the_reason(change: Any, lacks: str, why: str) -> None:
    world, process = restarted(**CURE)
    change_pod(world, change)
    assert process.work() is None
    ((reason, note),) = told(world)
    assert reason == "GpuMemorySettingsMissing"
    assert lacks in note
    assert why in note
    assert RESTARTING not in world.annotations


def test_a_pod_whose_template_has_no_label_proves_nothing_before_one_that_has_it_is_there() -> None:
    """A head or driver without a GPU: KubeRay and JobSets in order make it first, and the webhook leaves it alone."""
    world, process = restarted(**CURE)
    (watched,) = world.pods
    change_pod(world, unlabelled)
    assert process.work() is not None, "it looks again"
    assert told(world) == []
    world.kube.put(PODS, watched)
    process.work()
    ((reason, _),) = told(world)
    assert reason == "GpuMemoryRestarted"


def test_without_a_label_in_its_templates_any_new_pod_proves() -> None:
    """The label was the namespace's, and the webhook copies it to pods."""
    world, process = restarted(**CURE)
    change_pod(world, unlabelled)
    obj = world.obj
    del obj["spec"]["template"]["metadata"]["labels"][PROFILE_LABEL]
    world.kube.put(world.kind.resource, obj)
    assert process.work() is None
    ((reason, note),) = told(world)
    assert reason == "GpuMemorySettingsMissing"
    assert "the attempt number 1, " in note
    assert "it has no label tidegauge.dev/memory-profile" in note


def test_a_pod_that_a_late_watch_still_shows_proves_nothing() -> None:
    """Of the run before: the API server has it no more."""
    world = ControllerWorld()
    process = Process(world)
    world.requeue()
    (old,) = world.pods
    world.advance()
    process.work()
    obj = world.obj
    obj["status"] = {"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Suspended", "status": "False"}]}
    world.kube.put(world.kind.resource, obj)
    process.look.stores[PODS].see(old, deleted=False)  # type: ignore[attr-defined]  # SAFETY: a FakeStore
    assert process.work() is not None, "it looks again"
    assert told(world) == []


def test_a_run_that_ended_before_a_pod_was_seen_is_told_as_unknown() -> None:
    world, process = restarted()
    world.kube.remove(PODS, NAMESPACE, world.pods[0]["metadata"]["name"])
    world.controllers.end(world.kind, world.obj)
    process.work()
    ((reason, note),) = told(world)
    assert reason == "GpuMemorySettingsMissing"
    assert "ended before a pod of it was seen" in note


def test_of_a_workload_that_was_held_since_nobody_waits_for_a_proof() -> None:
    world, process = restarted()
    world.annotate(STOPPED, encode(Stopped("d-2", "hold", "by an admin", world.now_s)))
    process.work()
    assert RESTARTING not in world.annotations
    assert told(world) == []


def test_while_it_waits_in_a_queue_nothing_is_asked_of_the_api_server() -> None:
    world, process = restarted()
    obj = world.obj
    obj["spec"]["suspend"] = True
    obj["status"]["conditions"] = [{"type": "Suspended", "status": "True"}]
    world.kube.put(world.kind.resource, obj)
    world.kube.remove(PODS, NAMESPACE, world.pods[0]["metadata"]["name"])
    world.kube.calls.clear()
    assert process.work() is None
    assert [call.verb for call in world.kube.calls] == ["get"]


@pytest.mark.parametrize(
    ("forged", "lacks"),
    [
        ({"environ": {FRACTION_VARIABLE: "1e9"}}, "TIDEGAUGE_MEMORY_FRACTION=1e9"),
        ({"environ": {"LD_PRELOAD": "/evil.so"}}, "LD_PRELOAD=/evil.so"),
        ({"alloc_conf": {"a,b": "c"}}, "a,b=c"),
    ],
)
def test_a_change_that_can_never_be_in_force_is_told_as_missing(forged: Any, lacks: str) -> None:
    world, process = restarted(**forged)
    process.work()
    ((reason, note),) = told(world)
    assert reason == "GpuMemorySettingsMissing"
    assert f"without {lacks}: " in note
    assert f"Tidegauge sets no such values: {lacks}. " in note


def test_nobody_is_told_of_a_restart_that_was_none() -> None:
    """Its owner has written the annotation: no attempt of this number was ever started."""
    world = ControllerWorld()
    world.annotate(RESTARTING, encode(world.order()))
    assert Process(world).work() is None
    assert RESTARTING not in world.annotations
    assert told(world) == []


@pytest.mark.parametrize("watched", [True, False])
def test_a_pod_that_is_older_than_the_restart_proves_nothing(watched: bool) -> None:
    """Its owner has written the attempt, too. ``watched``: the pod says that it was told this attempt."""
    world = ControllerWorld()
    world.now_s += 3600
    world.annotate(ATTEMPT, "1")
    world.annotate(RESTARTING, encode(world.order()))
    if watched:
        change_pod(world, lambda pod: pod["metadata"]["annotations"].update({ATTEMPT: "1"}))
    process = Process(world)
    assert process.work() is not None, "it waits for a new pod"
    assert told(world) == []
    assert RESTARTING in world.annotations
