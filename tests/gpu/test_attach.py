"""``tidegauge attach`` and a dormant job of two ranks on a real GPU: watched, left alone again, unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.attach.attached_jobs import AttachedJob, attach
from tidegauge.core.samples import EventCode, RecordKind

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture
def job(gpu_python: str, gpu_count: int, tmp_path: Path) -> Iterator[AttachedJob]:
    """Two ranks: over NCCL on a GPU each where there are two, else both on one."""
    arguments = ["--nccl"] if gpu_count >= 2 else []
    job = AttachedJob(gpu_python, os.environ, tmp_path, level="dormant", arguments=arguments)
    yield job
    job.end()


def test_a_dormant_job_is_watched_and_left_alone_again(job: AttachedJob, capsys: pytest.CaptureFixture[str]) -> None:
    pids = job.pids()
    assert not job.rings()
    for _ in range(3):
        job.moment()
        code, said = attach(capsys, job.process.pid, "--level", "stats")
        assert (code, [(one["pid"], one["rank"], one["state"]) for one in said]) == (
            0,
            [(pids[0], 0, "watched"), (pids[1], 1, "watched")],
        )
        seen = [len(samples) for _, samples in job.rings()]
        job.wait_for(lambda seen=seen: all(len(new) > old for (_, new), old in zip(job.rings(), seen)))  # type: ignore[misc]
        job.moment()
        code, said = attach(capsys, job.process.pid, "--detach")
        assert (code, [one["state"] for one in said]) == (0, ["dormant", "dormant"])
    recorded = [len(samples) for _, samples in job.rings()]
    results = job.finish()
    rings = job.rings()
    assert [identity.rank for identity, _ in rings] == [0, 1]
    assert [len(samples) for _, samples in rings] == recorded, "nothing is recorded after it"
    for _, samples in rings:
        assert samples[-1].event is EventCode.DETACHED
        assert max(sample.reserved_bytes for sample in samples if sample.kind is RecordKind.STEP) >= 2 << 20
    assert {one["digest"] for one in results} == {job.digest_without(results[0]["steps"])}
    assert "tidegauge" not in job.said()
    print([{name: round(1e3 * one[name], 1) for name in ("gap_s", "gap_otherwise_s", "step_s", "step_otherwise_s")}
           for one in results])  # fmt: skip
