"""Kueue's admission check of ``tidegauge.dev/memory``: what is told, what is rejected, and that no job is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler_hooks.kubernetes.queued_world import QueuedWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE
from tidegauge.core.jobs.kubernetes import NEEDED_MEMORY
from tidegauge_scheduler_hooks.kubernetes.controller.memory_checks import (
    AGAIN_S,
    CONTROLLER_NAME,
    MISFIT_EVENT,
    UNREADABLE_EVENT,
    MemoryChecks,
)
from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import StepCounts
from tidegauge_scheduler_hooks.kubernetes.controller.options import MemoryCheckOptions
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.kueue import ADMISSION_CHECKS, QUEUE_WORKLOADS, RESOURCE_FLAVORS
from tidegauge_scheduler_hooks.kubernetes.owners import JOB, is_true
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, ConflictError, ForbiddenError

GIB = 1 << 30
NEEDS = f"{NAMESPACE}\ttrain\t{61 * GIB}\t4\t0\n"
QUEUED = "job-train"


class CheckedWorld(QueuedWorld):
    """A Job in a queue with our check and another; flavor h100 is slices of 40 GiB."""

    def __init__(self, folder: Path, *, rejects: bool = False, needs: str | None = NEEDS) -> None:
        super().__init__("Job")
        self.kueue.checks = ("gpu-memory",)
        self.file = folder / "needs.tsv"
        if needs is not None:
            self.file.write_text(needs)
        flavor = {"metadata": {"name": "h100", "annotations": {"tidegauge.dev/gpu-memory": "40Gi"}}, "spec": {}}
        self.kube.put(RESOURCE_FLAVORS, flavor)
        self.put_check("gpu-memory", CONTROLLER_NAME)
        self.put_check("budget", "example.org/budget")
        self.keys: list[WorkKey] = []
        self.counts = StepCounts()
        self.rejects = rejects
        self.checks = self.process()

    def process(self) -> MemoryChecks:
        owners = self.kube.store(JOB.resource)
        return MemoryChecks(
            self.kube,
            self.kube,
            MemoryCheckOptions(self.file, self.rejects, 60.0),
            owner=owners.by_uid,
            on_key=self.keys.append,
            counts=self.counts,
            now_s=lambda: self.now_s,
        )

    def put_check(self, name: str, controller: str) -> None:
        check = {"metadata": {"name": name, "generation": 1}, "spec": {"controllerName": controller}}
        self.kube.put(ADMISSION_CHECKS, check)

    def work(self) -> list[float | None]:
        """What the watches told, by a worker."""
        keys, self.keys[:] = list(dict.fromkeys(self.keys)), []
        return [self.checks.reconcile(key) for key in keys]

    def queue(self) -> None:
        """Kueue makes a Workload of the Job, and gives it quota."""
        self.submit()
        self.kueue.look()
        self.kueue.look()

    @property
    def queued(self) -> Any:
        return self.kube.peek(QUEUE_WORKLOADS, NAMESPACE, QUEUED)

    def state(self, name: str = "gpu-memory") -> Any:
        return next(one for one in self.queued["status"]["admissionChecks"] if one["name"] == name)

    @property
    def is_admitted(self) -> bool:
        return is_true(self.queued, "Admitted")

    @property
    def notes(self) -> list[str]:
        return [one["note"] for one in self.kube.list(EVENTS) if one["reason"] == MISFIT_EVENT]


@pytest.fixture
def world(tmp_path: Path) -> CheckedWorld:
    return CheckedWorld(tmp_path)


def test_check_of_ours_is_made_active_and_no_other(world: CheckedWorld) -> None:
    world.work()
    found = world.kube.peek(ADMISSION_CHECKS, None, "gpu-memory")
    (active,) = found["status"]["conditions"]
    assert (active["type"], active["status"], active["observedGeneration"]) == ("Active", "True", 1)
    assert "status" not in world.kube.peek(ADMISSION_CHECKS, None, "budget")
    world.checks.tell_all()
    assert world.keys == []


def test_job_that_will_not_fit_is_told_and_not_held(world: CheckedWorld) -> None:
    world.queue()
    assert not world.is_admitted
    world.work()
    assert world.state()["state"] == "Ready"
    assert "will not fit flavor h100 (40.0 GiB at most)" in world.state()["message"]
    world.kueue.look()
    assert world.is_admitted
    (event,) = [one for one in world.kube.list(EVENTS) if one["reason"] == MISFIT_EVENT]
    assert event["note"].endswith("at most). It was not held")
    assert (event["regarding"]["kind"], event["regarding"]["name"], event["type"]) == ("Job", "train", "Warning")
    assert event["regarding"]["uid"] == world.obj["metadata"]["uid"]


def test_admin_may_have_it_rejected(tmp_path: Path) -> None:
    world = CheckedWorld(tmp_path, rejects=True)
    world.queue()
    world.work()
    assert world.state()["state"] == "Rejected"
    world.kueue.look()
    assert world.queued["spec"]["active"] is False
    assert world.notes[0].endswith(". Rejected")


def test_job_that_runs_when_the_check_comes_is_not_ended(tmp_path: Path) -> None:
    world = CheckedWorld(tmp_path, rejects=True)
    world.kueue.checks = ()
    world.queue()
    world.kueue.checks = ("gpu-memory",)
    world.kueue.look()
    assert (world.is_admitted, world.state()["state"]) == (True, "Pending")
    world.work()
    assert world.state()["state"] == "Ready"
    assert world.notes[0].endswith("It was not held")


def test_what_is_too_close_to_say_is_never_rejected(tmp_path: Path) -> None:
    world = CheckedWorld(tmp_path, rejects=True, needs=f"{NAMESPACE}\ttrain\t{42 * GIB}\t4\t0\n")
    world.queue()
    world.work()
    assert world.state()["state"] == "Ready"
    assert "too close to say" in world.notes[0]


@pytest.mark.parametrize("needs", [None, f"{NAMESPACE}\ttrain\t{5 * GIB}\t4\t0\n"])
def test_nothing_is_told_of_what_fits_or_is_not_known(tmp_path: Path, needs: str | None) -> None:
    world = CheckedWorld(tmp_path, rejects=True, needs=needs)
    world.queue()
    world.work()
    assert world.state()["state"] == "Ready"
    assert world.notes == []


def test_owners_word_comes_before_the_records(world: CheckedWorld) -> None:
    world.submit()
    obj = world.obj
    obj["metadata"]["annotations"][NEEDED_MEMORY] = "8Gi"
    world.kube.put(JOB.resource, obj)
    world.kueue.look()
    world.kueue.look()
    world.work()
    assert world.state()["message"].startswith(f"Needs 8.0 GiB by its annotation {NEEDED_MEMORY}: fits")


def test_state_of_another_check_is_left_alone(world: CheckedWorld) -> None:
    world.kueue.checks = ("gpu-memory", "budget")
    world.queue()
    world.work()
    assert (world.state()["state"], world.state("budget")["state"]) == ("Ready", "Pending")
    assert is_true(world.queued, "QuotaReserved")
    world.kueue.look()
    assert not world.is_admitted


def test_workload_is_judged_again_for_each_admission(world: CheckedWorld) -> None:
    world.queue()
    world.work()
    world.kueue.look()
    world.kueue.has_room = False
    world.kueue.preempt("train")
    assert is_true(world.queued, "QuotaReserved")
    world.work()
    assert world.state()["state"] == "Pending"  # what is said now would stand for the next flavor
    world.look(4)
    world.work()
    assert world.state()["state"] == "Pending"  # it has no quota
    world.kueue.has_room = True
    workload = world.queued
    workload["status"]["conditions"] = [one for one in workload["status"]["conditions"] if one["type"] != "Requeued"]
    world.kube.put(QUEUE_WORKLOADS, workload)
    world.kueue.look()
    world.work()
    assert world.state()["state"] == "Ready"


def test_job_passes_after_the_bound_where_the_evidence_cannot_be_read(world: CheckedWorld) -> None:
    world.file.unlink()
    world.file.mkdir()
    world.queue()
    world.now_s += 59
    world.checks.tell_all()
    assert AGAIN_S in world.work()
    assert world.state()["state"] == "Pending"
    world.now_s += 1
    world.checks.tell_all()
    world.work()
    assert world.state()["state"] == "Ready"
    assert world.state()["message"].startswith("Not compared within 60 s: ")


def test_defect_of_ours_holds_no_job(world: CheckedWorld) -> None:
    world.queue()
    workload = world.queued
    workload["spec"]["podSets"] = ["not an object"]
    world.kube.put(QUEUE_WORKLOADS, workload)
    world.work()
    assert (world.state()["state"], world.state()["message"]) == ("Ready", "Not compared: internal error")


def test_next_leader_finds_what_waits(world: CheckedWorld) -> None:
    world.queue()
    world.keys.clear()
    world.checks = world.process()
    world.work()
    assert world.state()["state"] == "Ready"


def test_check_that_is_named_ours_later_frees_those_that_wait(world: CheckedWorld) -> None:
    world.kube.remove(ADMISSION_CHECKS, None, "gpu-memory")
    world.queue()
    world.work()
    assert world.state()["state"] == "Pending"
    world.put_check("gpu-memory", CONTROLLER_NAME)
    world.work()
    assert world.state()["state"] == "Ready"


def test_state_is_written_for_the_version_that_was_judged(world: CheckedWorld) -> None:
    world.queue()
    world.kube.lag()
    workload = world.queued
    workload["metadata"]["labels"] = {"new": "one"}
    world.kube.put(QUEUE_WORKLOADS, workload)
    with pytest.raises(ConflictError):
        world.work()
    assert {"step": "check", "outcome": "conflict"} in [one.labels for one in world.counts.family().samples]
    assert world.notes == []


def test_event_that_cannot_be_written_changes_nothing(world: CheckedWorld) -> None:
    world.queue()
    world.kube.fail_next(ForbiddenError("no events"), verb="create", kind="Event")
    world.work()
    assert world.state()["state"] == "Ready"


def test_status_is_applied_with_our_entries_alone(world: CheckedWorld) -> None:
    world.kueue.checks = ("gpu-memory", "budget")
    world.queue()
    world.work()
    (call,) = world.kube.called("patch", "Workload")
    assert call.subresource == "status"
    assert [one["name"] for one in call.body["status"]["admissionChecks"]] == ["gpu-memory"]
    assert set(call.body) == {"apiVersion", "kind", "metadata", "status"}


@pytest.mark.parametrize("on_template", [False, True])
def test_annotation_that_cannot_be_read_is_told_by_name(tmp_path: Path, on_template: bool) -> None:
    world = CheckedWorld(tmp_path, needs=None)

    def state_need(job: Any) -> None:
        metadata = job["spec"]["template"].setdefault("metadata", {}) if on_template else job["metadata"]
        metadata.setdefault("annotations", {})[NEEDED_MEMORY] = "-5Gi\n"

    world.submit(state_need)
    world.kueue.look()
    world.kueue.look()
    world.work()
    told = f"Not compared: its annotation {NEEDED_MEMORY} is '-5Gi?', no amount of memory as 61Gi is"
    assert (world.state()["state"], world.state()["message"]) == ("Ready", told)
    assert [one["note"] for one in world.kube.list(EVENTS) if one["reason"] == UNREADABLE_EVENT] == [told]
