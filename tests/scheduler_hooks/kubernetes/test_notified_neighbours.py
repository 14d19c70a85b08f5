"""Owners of Volcano Jobs and LeaderWorkerSets are only notified: beside their controllers as they were transcribed
(``volcano_neighbour``, ``lws_neighbour``)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes.kube import Call
from scheduler_hooks.kubernetes.lws_neighbour import GROUP
from scheduler_hooks.kubernetes.notified_contract import (
    QUEUED_SETS,
    RANKS,
    SETS,
    VOLCANO,
    NotifiedContract,
    NotifiedSite,
)
from scheduler_hooks.kubernetes.notified_world import NotifiedWorld
from scheduler_hooks.kubernetes.restart_contract import environ
from scheduler_values import incident
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.kubernetes import ACTIONS, SCHEDULER
from tidegauge_scheduler_hooks.kubernetes.kueue import QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.memory_incidents import MEMORY_INCIDENTS
from tidegauge_scheduler_hooks.kubernetes.ports import PODS
from tidegauge_scheduler_hooks.kubernetes.workloads import labels_of
from tidegauge_scheduler_hooks.ports import ChangedError, Presence

RESTART_JOB = [{"event": "PodFailed", "action": "RestartJob"}]


class TestBesideTranscriptions(NotifiedContract):
    @pytest.fixture
    def open_site(self) -> Callable[[str], NotifiedSite]:
        def opened(kind: str) -> NotifiedSite:
            return NotifiedWorld(kind, policies=RESTART_JOB) if kind == VOLCANO else NotifiedWorld(kind)

        return opened


def writes(calls: list[Call]) -> set[tuple[str, str]]:
    return {(call.verb, call.kind) for call in calls if call.verb not in ("get", "list")}


@pytest.mark.parametrize("kind", RANKS)
def test_all_that_is_written_about_a_workload_that_is_only_watched_are_events(kind: str) -> None:
    world = NotifiedWorld(kind)
    world.check_notified_and_untouched("d")
    assert writes(world.kube.calls) == {("create", "Event")}
    assert world.keys == []


@pytest.mark.parametrize("kind", RANKS)
def test_keep_on_the_template_counts_where_the_owner_is_not_read(kind: str) -> None:
    world = NotifiedWorld(kind)
    for pod in world.pods:
        world.kube.put(PODS, {**pod, "metadata": {**pod["metadata"], "annotations": {ACTIONS: "keep"}}})
    assert {facts.exempt for facts in world.head.port.describe(world.head.jobs(world.pods)).values()} == {True}


# --- Volcano


def test_pods_of_a_volcano_job_are_one_job_by_its_name() -> None:
    world = NotifiedWorld(VOLCANO)
    (job,) = world.head.jobs(world.pods)
    assert (job.job_id, job.attempt, job.world_size) == ("team-a/train", 0, 3)
    assert {environ(pod)["TIDEGAUGE_JOB_ID"] for pod in world.pods} == {"team-a/train"}


def test_the_event_is_on_the_volcano_job() -> None:
    world = NotifiedWorld(VOLCANO)
    world.check_notified_and_untouched("d")
    job = world.kube.peek(world.resource, "team-a", "train")
    regarding = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "namespace": "team-a", "name": "train",
                 "uid": job["metadata"]["uid"]}  # fmt: skip
    assert [event["regarding"] for event in world.events] == [regarding, regarding]


def test_an_incident_goes_with_the_volcano_job() -> None:
    world = NotifiedWorld(VOLCANO)
    (job,) = world.head.jobs(world.pods)
    world.head.port.show_incident(incident(job=job.key, scheduler=SCHEDULER), (), job)
    (found,) = world.kube.list(MEMORY_INCIDENTS)
    owner = world.kube.peek(world.resource, "team-a", "train")["metadata"]["uid"]
    reference = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train", "uid": owner}
    assert found["metadata"]["ownerReferences"] == [reference]


def test_a_volcano_job_of_a_job_flow_is_notified_of_by_its_own_name() -> None:
    flow = {"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobFlow", "name": "f", "uid": "u-f", "controller": True}
    world = NotifiedWorld(VOLCANO, above=[flow])
    (job,) = world.head.jobs(world.pods)
    assert job.job_id == "team-a/train"
    world.check_notified_and_untouched("d")


def test_a_restart_of_all_of_a_volcano_job_is_another_attempt() -> None:
    world = NotifiedWorld(VOLCANO, policies=RESTART_JOB)
    (before,) = world.head.jobs(world.pods)
    target, uids = world.head.target(before), world.uids
    world.fail_one()
    world.until_it_runs(without=frozenset(uids))
    (after,) = world.head.jobs(world.pods)
    assert (before.attempt, after.attempt) == (0, 1)
    assert {environ(pod)["TIDEGAUGE_ATTEMPT"] for pod in world.pods} == {"1"}
    assert world.head.port.describe([after])[after.key].restarts == 1
    assert world.head.port.presence(target) is Presence.REPLACED
    with pytest.raises(ChangedError):
        world.head.port.notify(target, "too late", decision_id="d")
    assert world.head.port.ends([before]) == {before.key: JobEnd.FAILED}


def test_deleted_pods_of_a_volcano_job_are_not_taken_for_those_of_an_earlier_attempt() -> None:
    world = NotifiedWorld(VOLCANO, policies=RESTART_JOB)
    before = world.uids
    world.fail_one()
    world.until_it_runs(without=frozenset(before))
    workers = world.pods[1:]
    (job,) = world.head.jobs(workers)
    for pod in workers:
        world.kube.remove(PODS, "team-a", pod["metadata"]["name"])
    assert world.head.port.ends([job]) == {}, "the master runs on, and nobody knows what becomes of them"


@pytest.mark.parametrize(("action", "replaced"), [("RestartPod", 1), ("RestartTask", 2)])
def test_a_restart_of_a_part_of_a_volcano_job_is_the_same_attempt(action: str, replaced: int) -> None:
    """The others run on: their ranks would be in another job than those that came back."""
    world = NotifiedWorld(VOLCANO, policies=[{"event": "PodFailed", "action": action}])
    before, failed = world.uids, world.pods[-1]["metadata"]["uid"]
    (job,) = world.head.jobs(world.pods)
    target = world.head.target(job)
    world.fail_one()
    world.until_it_runs(without=frozenset({failed}))
    assert len(before - world.uids) == replaced
    (after,) = world.head.jobs(world.pods)
    assert (after.attempt, after.world_size) == (0, 3)
    assert world.head.port.presence(target) is Presence.RUNNING


def test_a_volcano_job_that_was_suspended_and_resumed_is_another_attempt() -> None:
    world = NotifiedWorld(VOLCANO)
    (before,) = world.head.jobs(world.pods)
    target = world.head.target(before)
    world.command("AbortJob")
    world.until(lambda: not world.pods)
    assert world.head.port.presence(target) is Presence.GONE
    assert world.head.port.ends([before]) == {}, "its controller may make them again"
    world.look(4)
    world.command("ResumeJob")
    world.until_it_runs()
    (after,) = world.head.jobs(world.pods)
    assert after.attempt > 0
    assert world.head.port.presence(target) is Presence.REPLACED
    assert world.head.port.ends([before]) == {before.key: JobEnd.REQUEUED}


def test_a_volcano_job_that_is_not_restarted_failed_or_is_complete() -> None:
    for phase, end in (("Succeeded", JobEnd.COMPLETED), ("Failed", JobEnd.FAILED)):
        world = NotifiedWorld(VOLCANO)
        (job,) = world.head.jobs(world.pods)
        target = world.head.target(job)
        ended = {"exitCode": int(phase == "Failed"), "finishedAt": "2023-11-14T23:00:00Z"}
        statuses = [{"name": "node", "state": {"terminated": ended}}]
        for pod in world.pods:
            world.kube.put(PODS, {**pod, "status": {"phase": phase, "containerStatuses": statuses}})
        world.look(4)
        assert world.head.port.presence(target) is Presence.GONE
        assert world.head.port.ends([job]) == {job.key: end}


# --- LeaderWorkerSet


@pytest.mark.parametrize("kind", [SETS, QUEUED_SETS])
def test_lws_makes_the_whole_group_of_a_pod_again_and_no_other(kind: str) -> None:
    world = NotifiedWorld(kind)
    before = {group: {pod["metadata"]["uid"] for pod in world.pods if labels_of(pod)[GROUP] == group} for group in "01"}
    world.fail_one()
    world.until_it_runs(without=frozenset(before["1"]))
    assert before["0"] < world.uids


def test_kueue_preempts_the_groups_of_a_set_and_nothing_of_ours_is_in_its_way() -> None:
    world = NotifiedWorld(QUEUED_SETS)
    target, before = world.head.target(world.head.jobs(world.pods)[0]), world.uids
    world.kueue.preempt()
    world.look(4)
    assert not any(pod["status"]["phase"] == "Running" for pod in world.pods)
    assert world.head.port.presence(target) is not Presence.RUNNING
    world.kueue.has_room = True
    world.until_it_runs(without=frozenset(before))
    world.check_notified_and_untouched("d")
    assert {workload["spec"]["active"] for workload in world.kube.list(QUEUE_WORKLOADS)} == {True}
