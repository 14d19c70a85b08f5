"""``tidegauge attach`` and real jobs: two ranks under torchrun, the real CUDA build of torch, on fake GPUs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from integration.attach.attached_jobs import AttachedJob, attach
from integration.attach.conftest import OWN, rig_of
from integration.needs import missing
from matrix import pythons
from tidegauge.agent.processes.procfs import DATA_WORKER
from tidegauge.cli.attach.process import see
from tidegauge.core.samples import EventCode, RecordKind, Sample
from tidegauge.osproc.processes import descendants

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

CONTAINER = [
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"),
    *("sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"),
]
"""Begins a command that sees other pids and another /dev/shm, as in Docker or a pod."""


def steps_of(samples: list[Sample]) -> list[int]:
    return [sample.step for sample in samples if sample.kind is RecordKind.STEP]


def events_of(samples: list[Sample]) -> list[EventCode]:
    return [sample.event for sample in samples if sample.kind is RecordKind.EVENT]


@pytest.mark.parametrize("python", [OWN, *pythons("3.12", "3.13")])
def test_a_dormant_job_of_two_ranks_is_watched_and_left_alone_again(
    python: str, start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(rig_of(python), level="dormant")
    pids = job.pids()
    assert not list(job.run_dir.glob("*/*.ring")), "a dormant rank records nothing"

    job.moment()
    code, said = attach(capsys, job.process.pid, "--level", "stats")
    assert (code, [(one["pid"], one["rank"], one["state"]) for one in said]) == (
        0,
        [(pids[0], 0, "watched"), (pids[1], 1, "watched")],
    )
    job.wait_for(lambda: [len(steps_of(samples)) > 5 for _, samples in job.rings()] == [True, True])
    assert [identity.rank for identity, _ in job.rings()] == [0, 1]

    job.moment()
    code, said = attach(capsys, job.process.pid, "--detach")
    assert (code, [one["state"] for one in said]) == (0, ["dormant", "dormant"])
    recorded = [steps_of(samples) for _, samples in job.rings()]
    results = job.finish()
    assert [steps_of(samples) for _, samples in job.rings()] == recorded, "nothing is recorded after it"
    assert {events_of(samples)[-1] for _, samples in job.rings()} == {EventCode.DETACHED}
    assert {one["digest"] for one in results} == {job.digest_without(results[0]["steps"])}, job.said()
    assert "tidegauge" not in job.said()
    assert not list(job.run_dir.glob("*/*.sock")), "a rank takes its socket away when it ends"


def test_level_changes_and_second_attaches_are_carried_out(
    start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(rig_of(OWN), level="dormant", ranks=1)
    (pid,) = job.pids()

    def said(*words: str) -> Any:
        code, (one,) = attach(capsys, pid, *words)
        assert code == 0
        return one["state"], one["level"], one["said"].partition(" at step")[0]

    assert said("--detach") == ("dormant", "dormant", "was not watched; the probe is dormant")
    assert said("--level", "stats") == ("watched", "stats", "attached")
    assert said("--level", "stats") == ("watched", "stats", "already watched")
    assert said("--level", "auto")[:2] == ("watched", "auto")
    assert said("--level", "trace")[:2] == ("watched", "trace")
    assert job.rings()[0][0].profile == "trace"
    assert said("--detach") == ("dormant", "dormant", "detached")
    assert said() == ("watched", "auto", "attached")
    assert said("--detach")[0] == "dormant"
    job.finish()
    ((_, samples),) = job.rings()
    watched = [event for event in events_of(samples) if event in (EventCode.ATTACHED, EventCode.DETACHED)]
    assert watched == [EventCode.ATTACHED, EventCode.DETACHED] * 2


def test_a_dormant_job_that_has_not_initialised_cuda_is_asked_for_later(
    start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    rig = rig_of(OWN)
    job = start(rig, level="dormant", ranks=1, arguments=["--no-cuda-before", "go"])
    job.wait_for(lambda: (job.folder / "loaded").exists())
    code, (one,) = attach(capsys, job.process.pid)
    assert (code, one["state"]) == (3, "refused")
    assert "takes no commands until the process initialises CUDA" in one["said"]
    (job.output.parent / "go").touch()
    job.pids()
    code, (one,) = attach(capsys, job.process.pid)
    assert (code, one["state"]) == (0, "watched")
    job.finish()


def test_a_job_without_the_probe_is_refused_with_how_to_start_it(
    start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(rig_of(OWN), level=None)
    job.pids()
    code, said = attach(capsys, job.process.pid)
    assert (code, [(one["rank"], one["state"]) for one in said]) == (3, [(0, "refused"), (1, "refused")])
    assert "tidegauge run --memory-profile=dormant" in said[0]["said"]
    assert "tidegauge" not in job.said()


def test_a_job_is_found_by_its_id(start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]) -> None:
    job = start(rig_of(OWN), level="dormant", ranks=1, variables={"TIDEGAUGE_JOB_ID": "attach-test-17"})
    (pid,) = job.pids()
    code, said = attach(capsys, "attach-test-17")
    assert (code, [(one["pid"], one["state"]) for one in said]) == (0, [(pid, "watched")])
    job.finish()


def test_a_dormant_job_in_a_container_is_reached_through_its_own_root(
    start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0:
        missing("making namespaces takes root")
    job = start(
        rig_of(OWN), level="dormant", ranks=1, inside=CONTAINER, variables={"TIDEGAUGE_RUN_DIR": "/dev/shm/tidegauge"}
    )
    assert job.pids() == [1], "its pid in there"
    code, (one,) = attach(capsys, job.process.pid, "--level", "stats")
    assert (code, one["state"], one["way"]) == (0, "watched", "probe")
    assert one["pid"] in [stat.process.pid for stat in descendants(job.process.pid)]
    code, (one,) = attach(capsys, job.process.pid, "--detach")
    assert (code, one["state"]) == (0, "dormant")
    job.finish()


def test_forks_of_a_rank_are_not_attached_to(
    start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(
        rig_of(OWN),
        level="dormant",
        ranks=1,
        arguments=["--forks"],
        variables={"TIDEGAUGE_JOB_ID": "attach-test-forks"},
    )
    (pid,) = job.pids()
    forked = descendants(pid)
    workers = [one.process.pid for one in forked if one.name == DATA_WORKER]
    others = [one.process.pid for one in forked if one.name != DATA_WORKER and see(one.process.pid) is not None]
    assert (len(workers), len(others)) == (1, 1)
    code, said = attach(capsys, pid)
    assert (code, [(one["pid"], one["state"]) for one in said]) == (0, [(pid, "watched")])
    code, said = attach(capsys, "--job", "attach-test-forks")
    assert [one["pid"] for one in said] == [pid], "by its job's name, which they all have in their environment"
    assert attach(capsys, workers[0]) == (3, [])
    code, (one,) = attach(capsys, others[0])
    assert (code, one["state"]) == (3, "refused")
    assert f"attach to its parent: pid {pid}" in one["said"]
    os.kill(others[0], signal.SIGKILL)
    code, said = attach(capsys, pid, "--detach")
    assert (code, [one["state"] for one in said]) == (0, ["dormant"]), (
        "the fork's end has left its parent's socket alone"
    )
    job.finish()
