"""What the Kubernetes adapter does beside the contract: whose word counts, and what stands in its way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_hooks.kubernetes.kube_world import UNCHANGED, KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.jobs.kubernetes import (
    ACTIONS,
    ATTEMPT,
    INCIDENT,
    INJECTED,
    PROFILE_LABEL,
    REMARK,
    REQUEUE,
    STOPPED,
)
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.kubernetes.intents import decode_incident, decode_requeue, decode_stopped
from tidegauge_scheduler_hooks.kubernetes.owners import JOBSETS, RAYCLUSTERS, RAYJOBS
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, JOBS, PODS, ForbiddenError, Resource
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL, attempt_of
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    PermanentError,
    Presence,
    RequeueChanges,
    TemporaryError,
)

TELLING = {ActionKind.NOTIFY, ActionKind.ANNOTATE}
THROUGH_RANKS = {ActionKind.CAP, ActionKind.CHECKPOINT}
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w", "uid": "u-w"}}


@pytest.fixture
def world() -> KubeWorld:
    return KubeWorld()


def change(world: KubeWorld, job: JobView, **fields: Any) -> Any:
    """Have somebody else change the workload: ``annotations``, ``labels`` or other fields of its metadata, ``spec``."""
    obj = world.running(job)
    spec = {**obj["spec"], **fields.pop("spec", {})}
    metadata = dict(obj["metadata"])
    for name, value in fields.items():
        metadata[name] = {**(metadata.get(name) or {}), **value} if isinstance(value, dict) else value
    return world.kube.put(world.kind.resource, {**obj, "metadata": metadata, "spec": spec})


def written_on(world: KubeWorld, job: JobView) -> dict[str, str]:
    found: dict[str, str] = world.running(job)["metadata"]["annotations"]
    return found


def with_place(job: JobView, **changed: Any) -> JobView:
    rank = job.ranks[0]
    assert rank.pod is not None
    return replace(job, ranks=(replace(rank, pod=rank.pod._replace(**changed)),))


# Describing


def test_describing_asks_nothing_of_the_api_server(world: KubeWorld) -> None:
    jobs = [world.start_job(), world.start_job()]
    world.kube.calls.clear()
    assert len(world.port.describe(jobs)) == 2
    assert world.kube.calls == []


def test_facts_are_those_of_the_workload(world: KubeWorld) -> None:
    job = world.start_job()
    change(world, job, labels={QUEUE_LABEL: "gpu-queue"})
    facts = world.facts(job)
    assert facts is not None
    assert (facts.namespace, facts.partition, facts.restarts) == (NAMESPACE, "gpu-queue", 0)
    assert facts.can == set(ActionKind) - {ActionKind.SNAPSHOT}
    assert facts.started_unix_s is not None
    assert facts.handle == {"kind": "Job", "name": "train-0", "torch_version": "2.11.0"}


def test_a_share_of_a_gpu_is_read_from_the_pods(world: KubeWorld) -> None:
    job = world.start_job()
    (pod,) = world.controllers.pods(world.running(job))
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu.shared": "1"}}
    world.kube.put(PODS, pod)
    world.port = world.another_port(shared_gpu_replicas=4)
    facts = world.facts(job)
    assert facts is not None
    assert facts.gpu_share == 0.25


def test_ranks_that_nobody_vouches_for_are_no_job(world: KubeWorld) -> None:
    job = world.start_job()
    assert world.facts(with_place(job, job_known=False)) is None
    assert world.facts(with_place(job, pod_uid="no-such-pod")) is None
    stranger = replace(job.ranks[0], pod=None)
    assert world.facts(replace(job, ranks=(job.ranks[0], stranger))) is None


def test_ranks_of_two_workloads_are_no_job(world: KubeWorld) -> None:
    job, other = world.start_job(), world.start_job()
    assert world.facts(replace(job, ranks=(job.ranks[0], other.ranks[0]))) is None


def test_a_job_that_is_called_otherwise_than_its_workload_is_none(world: KubeWorld) -> None:
    job, other = world.start_job(), world.start_job()
    assert world.facts(replace(job, job_id=other.job_id)) is None


def test_ranks_of_a_run_that_was_replaced_are_not_taken_for_the_next(world: KubeWorld) -> None:
    job = world.start_job()
    (old,) = world.controllers.pods(world.running(job))
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d-1")
    world.until(lambda: world.starts(job) == 2)
    assert world.facts(world.view_now(job)) is not None
    world.kube.put(PODS, old)  # not heard of yet that it is gone
    assert world.facts(job) is None


def test_without_the_watch_of_pods_nothing_is_said(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    store = world.kube.store(PODS, label_selector=PROFILE_LABEL, on_change=world.directory._changed)
    store.problem = "pods is forbidden"
    with pytest.raises(TemporaryError, match="pods is forbidden"):
        world.port.describe([job])
    with pytest.raises(TemporaryError, match="pods is forbidden"):
        world.port.presence(target)


@pytest.mark.parametrize(("kind", "link"), [("JobSet", JOBS), ("TrainJob", JOBSETS), ("RayJob", RAYCLUSTERS)])
def test_pods_are_not_known_while_what_is_between_is_not(kind: str, link: Resource) -> None:
    """After a start of the head: a workload seems to have no pods, and its run to be over."""
    world = KubeWorld(kind)
    target = world.target(world.start_job())
    store = world.kube.store(link, on_change=world.directory._changed)
    store.problem = "not listed yet"
    with pytest.raises(TemporaryError, match="not listed yet"):
        world.port.presence(target)
    store.kind_missing = True
    assert world.port.presence(target) is Presence.RUNNING


def test_a_kind_that_cannot_be_watched_keeps_no_other_from_being_acted_on(world: KubeWorld) -> None:
    target = world.target(world.start_job())
    world.kube.store(RAYJOBS, on_change=world.directory._changed).problem = "no right to list rayjobs"
    assert world.port.presence(target) is Presence.RUNNING


# What may be done


@pytest.mark.parametrize("where", ["annotation", "label", "pod"])
def test_keep_on_the_workload_or_a_pod_leaves_it_alone_from_the_moment_it_is_set(world: KubeWorld, where: str) -> None:
    job = world.start_job()
    target = world.target(job)
    if where == "pod":
        (pod,) = world.controllers.pods(world.running(job))
        pod["metadata"]["annotations"][ACTIONS] = "Keep , requeue"
        world.kube.put(PODS, pod)
    elif where == "label":
        change(world, job, labels={ACTIONS: "keep"})
    else:
        change(world, job, annotations={ACTIONS: "requeue,keep"})
    facts = world.facts(job)
    assert facts is not None
    assert facts.exempt
    for act in (world.port.hold, world.port.cancel):
        with pytest.raises(PermanentError, match="no action allowed"):
            act(target, "leaks", decision_id="d-1")
    with pytest.raises(PermanentError, match="no action allowed"):
        world.port.cap(target, 0.5, decision_id="d-1")
    assert world.port.presence(target) is Presence.RUNNING
    assert world.kube.called("patch") == []


def test_kubernetes_adapter_requeues_only_if_the_owner_allows_it() -> None:
    world = KubeWorld()
    job = world.start_job(actions=None)
    facts = world.facts(job)
    assert facts is not None
    assert not facts.requeueable
    with pytest.raises(PermanentError, match=r"may not be requeued: its annotation tidegauge\.dev/actions"):
        world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d-1")
    world.port = world.another_port(requeue_unasked=True)
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d-1")
    world.until(lambda: world.starts(job) == 2)


@pytest.mark.parametrize("age_s", [None, 61.0])
def test_kubernetes_adapter_suspends_nothing_for_a_requeue_without_a_controller(
    world: KubeWorld, age_s: float | None
) -> None:
    job = world.start_job()
    world.controller_age_s = age_s
    with pytest.raises(TemporaryError, match="no controller would resume it"):
        world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d-1")
    assert world.kube.called("patch") == []
    world.port.hold(world.target(job), "leaks", decision_id="d-2")  # needs none


@pytest.mark.parametrize(
    "changed",
    [
        {"annotations": {"argocd.argoproj.io/tracking-id": "x"}},
        {"labels": {"kustomize.toolkit.fluxcd.io/name": "x"}},
        {"ownerReferences": owned_by(WORKFLOW)},
    ],
    ids=["argo-cd", "flux", "workflow"],
)  # fmt: skip
def test_kubernetes_adapter_caps_but_does_not_suspend_a_workload_managed_by_others(
    world: KubeWorld, changed: dict[str, Any]
) -> None:
    job = world.start_job()
    change(world, job, **changed)
    facts = world.facts(job)
    assert facts is not None
    assert facts.can == TELLING | THROUGH_RANKS
    assert not facts.requeueable
    target = world.target(job)
    assert "later runs are not capped" in world.port.cap(target, 0.5, decision_id="d-1")
    with pytest.raises(PermanentError, match="no hold"):
        world.port.hold(target, "leaks", decision_id="d-2")


def test_a_kind_that_is_not_enabled_is_only_watched() -> None:
    world = KubeWorld("JobSet")
    world.port = world.another_port(kinds=["Job", "TrainJob"])
    job = world.start_job()
    facts = world.facts(job)
    assert facts is not None
    assert facts.can == TELLING
    target = world.target(job)
    world.port.notify(target, "leaks", decision_id="d-1")
    assert "leaks" in world.owner_sees(job)
    assert world.kube.called("patch") == []
    with pytest.raises(PermanentError, match="kubernetes_kinds"):
        world.port.cap(target, 0.5, decision_id="d-2")


@pytest.mark.parametrize(
    "spec",
    [{"shutdownAfterJobFinishes": False}, {"clusterSelector": {"ray.io/cluster": "c"}}],
    ids=["keeps", "selects"],
)
def test_a_ray_job_that_kuberay_would_not_suspend_is_not(spec: dict[str, Any]) -> None:
    world = KubeWorld("RayJob")
    job = world.start_job()
    change(world, job, spec=spec)
    facts = world.facts(job)
    assert facts is not None
    assert facts.can == TELLING | THROUGH_RANKS


def test_a_pod_of_its_own_is_watched_and_told(world: KubeWorld) -> None:
    job = world.start_job()
    (pod,) = world.controllers.pods(world.running(job))
    pod["metadata"].pop("ownerReferences")
    world.kube.put(PODS, pod)
    name = pod["metadata"]["name"]
    alone = replace(job, job_id=f"{NAMESPACE}/{name}")
    facts = world.facts(alone)
    assert facts is not None
    assert facts.can == TELLING
    assert facts.handle["kind"] == "Pod"
    target = world.target(alone)
    assert world.port.presence(target) is Presence.RUNNING
    world.port.notify(target, "leaks", decision_id="d-1")
    assert [event["regarding"]["kind"] for event in world.kube.list(EVENTS)] == ["Pod"]


# Doing it


def test_a_stop_is_one_patch_that_says_why(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.port.hold(target, "leaks 12 MiB a step", decision_id="d-1")
    (patch,) = world.kube.called("patch")
    assert patch.body["spec"] == {"suspend": True}
    stopped = decode_stopped(patch.body["metadata"]["annotations"][STOPPED])
    assert (stopped.decision, stopped.action, stopped.mark) == ("d-1", "hold", target.incarnation)
    assert "suspended until someone resumes it: leaks 12 MiB a step" in world.owner_sees(job)


def test_an_order_says_how_the_next_run_differs(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    changes = RequeueChanges({"expandable_segments": "True"}, {"TIDEGAUGE_A": "1"})
    world.port.requeue(target, changes, "leaks", decision_id="d-1")
    order = decode_requeue(written_on(world, job)[REQUEUE])
    assert (order.attempt, order.mark) == (1, target.incarnation)
    assert (order.environ, order.alloc_conf, order.torch_version) == (changes.environ, changes.alloc_conf, "2.11.0")


def test_attempts_never_have_the_number_of_an_earlier_one(world: KubeWorld) -> None:
    job = world.start_job()
    obj = world.running(job)
    (first,) = world.controllers.pods(obj)
    again = {
        **first,
        "metadata": {**first["metadata"], "name": "again", "uid": "p-2", "creationTimestamp": "2030-01-01T00:00:00Z"},
    }
    world.kube.put(PODS, {**first, "status": {"phase": "Failed"}})
    world.kube.put(PODS, again)
    view = with_place(job, pod_uid="p-2")
    seen = world.directory.pod_of("p-2")
    assert seen is not None
    world.port.requeue(world.target(view), UNCHANGED, "leaks", decision_id="d-1")
    assert decode_requeue(written_on(world, job)[REQUEUE]).attempt == seen.attempt + 1 == 2


@pytest.mark.parametrize("forged", ["999999", "1000000", "9999999", "1" * 400, "-1", "\N{SUPERSCRIPT TWO}", "1\0"])
def test_a_forged_attempt_leaves_room_for_the_next_one(world: KubeWorld, forged: str) -> None:
    """An order for an attempt that is not above the one that is written would be dropped, and leave it suspended."""
    job = world.start_job()
    change(world, job, annotations={ATTEMPT: forged})
    (pod,) = world.controllers.pods(world.running(job))
    pod["metadata"]["annotations"][ATTEMPT] = forged
    world.kube.put(PODS, pod)
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d-1")
    order = decode_requeue(written_on(world, job)[REQUEUE])
    assert order.attempt > attempt_of(world.running(job))


def test_a_variable_that_is_not_ours_is_refused(world: KubeWorld) -> None:
    job = world.start_job()
    with pytest.raises(PermanentError, match="LD_PRELOAD"):
        world.port.requeue(world.target(job), RequeueChanges(environ={"LD_PRELOAD": "x"}), "", decision_id="d-1")
    assert world.kube.called("patch") == []


def test_too_many_changes_are_refused_before_anything_is_suspended(world: KubeWorld) -> None:
    job = world.start_job()
    many = RequeueChanges(environ={f"TIDEGAUGE_V{at}": "x" * 1000 for at in range(5)})
    with pytest.raises(PermanentError, match="these settings cannot be applied"):
        world.port.requeue(world.target(job), many, "leaks", decision_id="d-1")
    assert world.kube.called("patch") == []


def test_changes_for_pods_that_are_not_injected_are_refused(world: KubeWorld) -> None:
    world.controllers.injects = False
    job = world.start_job()
    changes = RequeueChanges(environ={"TIDEGAUGE_A": "1"})
    with pytest.raises(PermanentError, match="only pods that Tidegauge's webhook has prepared"):
        world.port.requeue(world.target(job), changes, "leaks", decision_id="d-1")
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d-2")  # nothing to change


def test_changes_for_pods_of_the_admission_policy_are_refused(world: KubeWorld) -> None:
    job = world.start_job()
    (pod,) = world.controllers.pods(world.running(job))
    pod["metadata"]["annotations"][INJECTED] = "policy-1"
    world.kube.put(PODS, pod)
    target, changes = world.target(job), RequeueChanges(environ={"TIDEGAUGE_A": "1"})
    with pytest.raises(PermanentError, match="only pods that Tidegauge's webhook has prepared"):
        world.port.requeue(target, changes, "leaks", decision_id="d-1")


# Others who write at the same time


def test_a_conflict_is_looked_at_anew_and_tried_again(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    once = [lambda: change(world, job, annotations={"theirs": "1"})]
    world.kube.before_call = lambda call: once.pop()() if call.verb == "patch" and once else None
    world.port.hold(target, "leaks", decision_id="d-1")
    assert len(world.kube.called("patch")) == 2
    assert written_on(world, job)["theirs"] == "1"
    assert world.port.presence(target) in (Presence.STOPPING, Presence.HELD)


def test_keep_that_is_set_in_the_last_moment_counts(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.kube.before_call = lambda call: (
        change(world, job, annotations={ACTIONS: "keep"}) and None if call.verb == "patch" else None
    )
    with pytest.raises(PermanentError, match="no action allowed"):
        world.port.cancel(target, "leaks", decision_id="d-1")
    assert not world.running(job)["spec"].get("suspend")


def test_an_object_that_never_rests_is_left_for_later(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    count = iter(range(100))
    world.kube.before_call = lambda call: (
        change(world, job, annotations={"n": str(next(count))}) and None if call.verb == "patch" else None
    )
    for act in (world.port.hold, world.port.cancel):
        with pytest.raises(TemporaryError, match="another client keeps changing it"):
            act(target, "leaks", decision_id="d-1")


def test_an_answer_that_was_lost_is_looked_for(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.kube.fail_next(TemporaryError("no answer in time"), verb="patch", answer_lost=True)
    world.port.requeue(target, UNCHANGED, "leaks", decision_id="d-1")
    assert len(world.kube.called("patch")) == 1
    world.until(lambda: world.starts(job) == 2)


def test_an_order_that_did_not_arrive_is_no_success(world: KubeWorld) -> None:
    job = world.start_job()
    world.kube.fail_next(TemporaryError("no answer in time"), verb="patch")
    with pytest.raises(TemporaryError, match="no answer in time"):
        world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert world.alive(job)


def test_a_right_that_is_missing_is_told_and_nothing_changes(world: KubeWorld) -> None:
    job = world.start_job()
    world.kube.fail_next(ForbiddenError("jobs is forbidden: cannot patch"), verb="patch")
    with pytest.raises(PermanentError, match="cannot patch"):
        world.port.hold(world.target(job), "leaks", decision_id="d-1")
    assert world.alive(job)


def test_kubernetes_adapter_hold_succeeds_without_its_event(world: KubeWorld) -> None:
    job = world.start_job()
    world.kube.fail_next(ForbiddenError("events is forbidden"), verb="create", kind="Event")
    world.port.hold(world.target(job), "leaks", decision_id="d-1")
    world.until(lambda: not world.alive(job))


def test_a_workload_that_was_deleted_or_made_anew_is_not_acted_on(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    obj = world.running(job)
    world.kube.remove(JOBS, NAMESPACE, obj["metadata"]["name"])
    with pytest.raises(ChangedError):
        world.port.hold(target, "leaks", decision_id="d-1")
    world.kube.put(JOBS, {**obj, "metadata": {**obj["metadata"], "uid": "another"}})
    with pytest.raises(ChangedError):
        world.port.hold(target, "leaks", decision_id="d-1")
    assert world.port.presence(target) is Presence.GONE


def test_a_handle_of_another_name_reaches_no_workload(world: KubeWorld) -> None:
    job, victim = world.start_job(), world.start_job()
    target = world.target(job)
    forged = replace(target, handle={**target.handle, "name": victim.job_id.partition("/")[2]})
    with pytest.raises(ChangedError):
        world.port.hold(forged, "leaks", decision_id="d-1")
    assert world.alive(victim)


# Telling


def test_the_owner_is_told_on_the_object_by_an_event_and_in_the_log(world: KubeWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    for _ in range(2):
        world.port.notify(target, "leaks 12 MiB a step", decision_id="d-1")
    incident = decode_incident(written_on(world, job)[INCIDENT])
    assert (incident.mark, incident.text) == (target.incarnation, "leaks 12 MiB a step")
    (event,) = world.kube.list(EVENTS)
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "GpuMemoryIncident", "leaks 12 MiB a step")
    assert event["regarding"]["uid"] == world.running(job)["metadata"]["uid"]
    assert list(world.ranks.printed[job.ranks[0].process].values()) == ["leaks 12 MiB a step"]
    assert len(world.kube.called("patch")) == 1


def test_a_rank_that_cannot_print_does_not_keep_the_owner_from_being_told(world: KubeWorld) -> None:
    job = world.start_job()
    world.ranks.error = "no answer"
    world.port.notify(world.target(job), "leaks", decision_id="d-1")
    assert "leaks" in world.owner_sees(job)


def test_a_role_without_patch_can_still_tell_people(world: KubeWorld) -> None:
    job = world.start_job()
    for at, tell in enumerate((world.port.notify, world.port.annotate)):
        world.kube.fail_next(ForbiddenError("cannot patch jobs"), verb="patch", kind="Job")
        tell(world.target(job), f"leaks {at}", decision_id=f"d-{at}")
        assert f"leaks {at}" in world.owner_sees(job)


def test_a_text_of_any_length_is_told(world: KubeWorld) -> None:
    job = world.start_job()
    world.port.annotate(world.target(job), "\N{WATER WAVE}" * 2000, decision_id="d-1")
    (event,) = world.kube.list(EVENTS)
    assert len(event["note"].encode()) <= 1024
    assert event["note"].endswith("...")
    assert len(written_on(world, job)[REMARK].encode()) <= 1024


def test_an_event_has_a_time_that_the_api_server_takes(world: KubeWorld) -> None:
    job = world.start_job()
    world.port.annotate(world.target(job), "watched", decision_id="d-1")
    (event,) = world.kube.list(EVENTS)
    assert len(event["eventTime"].partition(".")[2]) == len("000000Z")


def test_ranks_outside_kubernetes_are_left_to_others(world: KubeWorld) -> None:
    job = world.start_job()
    elsewhere = replace(job, scheduler="slurm", ranks=(replace(job.ranks[0], pod=None),))
    assert world.port.describe([elsewhere]) == {}
