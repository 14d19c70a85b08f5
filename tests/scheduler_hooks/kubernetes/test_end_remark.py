"""The remark that a workload has when its job has ended: once, and never on another one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes.kube import Call
from sample_views import job_record
from scheduler_hooks.kubernetes.kube_world import KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, workload
from tidegauge.core.job_records.record import JobEnd, RankPeak
from tidegauge.core.jobs.kubernetes import ENDED, RECOMMENDED
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.end_remarks import RemarksEnds
from tidegauge_scheduler_hooks.kubernetes.events import MAX_NOTE_BYTES
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS, ConflictError, ForbiddenError
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

TEXT = "completed after 3 h; rank 0 on n1: 9.1 GiB of 79.1 GiB reserved (12%), 8.0 GiB allocated"


@pytest.fixture
def world() -> KubeWorld:
    return KubeWorld()


def ended(world: KubeWorld) -> JobView:
    job = world.start_job()
    world.end_by_itself(job)
    return job


def remark(world: KubeWorld, job: JobView, text: str = TEXT, end: JobEnd = JobEnd.COMPLETED) -> None:
    world.port.remark_end(job, job_record(end=end), text)


def annotation(world: KubeWorld, job: JobView) -> str | None:
    found: str | None = world.running(job)["metadata"]["annotations"].get(ENDED)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_owner_has_an_event_and_an_annotation_once(kind: str) -> None:
    world = KubeWorld(kind)
    assert isinstance(world.port, RemarksEnds)
    job = ended(world)
    for _ in range(2):
        remark(world, job)
    (event,) = world.kube.list(EVENTS)
    assert (event["type"], event["reason"], event["note"]) == ("Normal", "GpuMemoryOfEndedJob", TEXT)
    assert event["regarding"]["uid"] == world.running(job)["metadata"]["uid"]
    assert annotation(world, job) == TEXT
    assert len(world.kube.called("patch")) == 1


def test_another_head_repeats_nothing(world: KubeWorld) -> None:
    job = ended(world)
    remark(world, job)
    world.port = world.another_port()
    remark(world, job)
    assert len(world.kube.list(EVENTS)) == len(world.kube.called("patch")) == 1


def test_the_next_run_of_the_same_object_has_a_remark_of_its_own(world: KubeWorld) -> None:
    job = ended(world)
    remark(world, job)
    remark(world, job, "failed after 2 s; rank 0 on n1: 1.0 GiB reserved, 1.0 GiB allocated", JobEnd.FAILED)
    assert len(world.kube.list(EVENTS)) == 2
    assert str(annotation(world, job)).startswith("failed")


def test_a_job_that_died_of_gpu_memory_has_a_warning(world: KubeWorld) -> None:
    remark(world, ended(world), end=JobEnd.OOM)
    (event,) = world.kube.list(EVENTS)
    assert event["type"] == "Warning"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "RayCluster"])
def test_a_job_whose_program_goes_on_without_its_ranks_has_none_yet(kind: str) -> None:
    """One that met an out-of-memory error may start ranks again."""
    world = KubeWorld(kind)
    job = world.start_job()
    with pytest.raises(TemporaryError):
        remark(world, job, end=JobEnd.OOM)
    assert annotation(world, job) is None
    world.end_by_itself(job)
    remark(world, job, end=JobEnd.OOM)
    assert annotation(world, job) == TEXT


def test_an_owner_that_was_deleted_has_none(world: KubeWorld) -> None:
    job = ended(world)
    world.kube.remove(world.kind.resource, NAMESPACE, world.running(job)["metadata"]["name"])
    world.kube.calls.clear()
    remark(world, job)
    assert world.kube.calls == []


def test_an_owner_that_is_being_deleted_has_none(world: KubeWorld) -> None:
    job = ended(world)
    obj = world.running(job)
    metadata = {**obj["metadata"], "deletionTimestamp": "2026-01-31T12:00:00Z", "finalizers": ["foregroundDeletion"]}
    world.kube.put(world.kind.resource, {**obj, "metadata": metadata})
    world.kube.calls.clear()
    remark(world, job)
    assert world.kube.calls == []


def test_another_object_under_the_same_name_has_none(world: KubeWorld) -> None:
    """It was deleted and submitted again, which the watch has not seen."""
    job = ended(world)
    name = world.running(job)["metadata"]["name"]
    world.kube.lag()
    world.kube.remove(world.kind.resource, NAMESPACE, name)
    world.kube.put(world.kind.resource, workload("Job", name))
    remark(world, job)
    assert annotation(world, job) is None
    world.kube.remove(world.kind.resource, NAMESPACE, name)
    remark(world, job)


def test_a_pod_of_its_own_has_an_event_alone(world: KubeWorld) -> None:
    job = ended(world)
    (pod,) = world.kube.list(PODS)
    bare: Any = {**pod, "metadata": {**pod["metadata"], "ownerReferences": [], "name": "train-0"}}
    world.kube.remove(PODS, NAMESPACE, pod["metadata"]["name"])
    world.kube.put(PODS, bare)
    world.kube.calls.clear()
    remark(world, job)
    assert [call.verb for call in world.kube.calls] == ["create"]
    (event,) = world.kube.list(EVENTS)
    assert event["regarding"]["kind"] == "Pod"


def test_a_role_without_patch_leaves_the_event(world: KubeWorld) -> None:
    job = ended(world)
    world.kube.fail_next(ForbiddenError("cannot patch jobs"), verb="patch", kind="Job")
    remark(world, job)
    assert TEXT in world.owner_sees(job)
    assert annotation(world, job) is None


def test_refusal_to_annotate_is_logged_once_until_annotations_are_allowed(
    world: KubeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job = world.start_job()

    def refused_lines(*allowed: bool) -> int:
        for may in allowed:
            if not may:
                world.kube.fail_next(ForbiddenError("cannot patch jobs"), verb="patch", kind="Job")
            number = len(world.kube.list(EVENTS))
            world.port.annotate(world.target(job), f"remark {number}", decision_id=f"d-{number}")
        return sum("cannot patch jobs" in line for line in caplog.messages)

    assert refused_lines(False, False) == 1
    assert refused_lines(True, False) == 2
    world.end_by_itself(job)
    world.kube.fail_next(ForbiddenError("cannot patch jobs"), verb="patch", kind="Job")
    remark(world, job)
    assert refused_lines() == 2


def test_a_kind_that_is_not_acted_on_has_an_event_alone(world: KubeWorld) -> None:
    world.port = world.another_port(kinds=["JobSet"])
    job = ended(world)
    world.kube.calls.clear()
    remark(world, job)
    assert [call.verb for call in world.kube.calls] == ["create"]


def test_change_by_somebody_else_meanwhile_is_no_conflict_and_stays(world: KubeWorld) -> None:
    job = ended(world)

    def change(call: Call) -> None:
        if call.verb == "patch":
            obj = world.running(job)
            obj["metadata"]["annotations"] |= {"note": "theirs"}
            world.kube.put(world.kind.resource, obj)

    world.kube.before_call = change
    remark(world, job)
    assert annotation(world, job) == TEXT
    assert world.running(job)["metadata"]["annotations"]["note"] == "theirs"


def test_owner_that_is_deleted_at_that_moment_is_not_made_again(world: KubeWorld) -> None:
    job = ended(world)
    name = world.running(job)["metadata"]["name"]
    world.kube.before_call = lambda call: (
        world.kube.remove(world.kind.resource, NAMESPACE, name) if call.verb == "patch" else None
    )
    with pytest.raises(ConflictError):
        remark(world, job)
    (sent,) = world.kube.called("patch")
    assert sent.body["metadata"]["uid"]
    remark(world, job)
    assert len(world.kube.called("patch")) == 1


def test_an_api_server_that_is_away_is_asked_again(world: KubeWorld) -> None:
    job = ended(world)
    world.kube.fail_next(TemporaryError("away"), verb="get", kind="Job")
    with pytest.raises(TemporaryError):
        remark(world, job)
    world.kube.fail_next(ForbiddenError("cannot create events"), verb="create", kind="Event")
    with pytest.raises(PermanentError):
        remark(world, job)
    remark(world, job)
    assert annotation(world, job) == TEXT
    assert len(world.kube.list(EVENTS)) == 1


def test_a_remark_of_any_length_fits(world: KubeWorld) -> None:
    job = ended(world)
    remark(world, job, "\N{WATER WAVE}" * 2000)
    assert len(str(annotation(world, job)).encode()) <= MAX_NOTE_BYTES


def test_programs_read_what_the_next_run_could_ask_for(world: KubeWorld) -> None:
    job = ended(world)
    peak = RankPeak(1, "node7", 20 << 30, 30 << 30, 80 << 30, nontorch_bytes=1 << 30, gpu_bytes=80 << 30)
    record = job_record(end=JobEnd.COMPLETED, gpus=8, fullest=peak)
    for _ in range(2):
        world.port.remark_end(job, record, TEXT)
    text = world.running(job)["metadata"]["annotations"][RECOMMENDED]
    assert json.loads(text) == {
        "gpus": 8,
        "needed": f"{31 * 1024}Mi",
        "withMargin": "34919Mi",
        "migProfile": "3g.40gb",
        "share": "1/2",
        "memoryFraction": 0.43,
    }
    assert len(world.kube.called("patch")) == 1


def test_run_that_tells_nothing_of_the_need_takes_an_earlier_recommendation_off(world: KubeWorld) -> None:
    job = ended(world)
    peak = RankPeak(1, "node7", 20 << 30, 30 << 30, 80 << 30, nontorch_bytes=1 << 30, gpu_bytes=80 << 30)
    world.port.remark_end(job, job_record(end=JobEnd.COMPLETED, gpus=8, fullest=peak), TEXT)
    assert RECOMMENDED in world.running(job)["metadata"]["annotations"]
    world.port.remark_end(job, job_record(end=JobEnd.OOM, ooms=1), TEXT)
    assert RECOMMENDED not in world.running(job)["metadata"]["annotations"]
