"""Settings for a later attempt in real training processes: torch's CUDA build on the fake-GPU rig."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from tidegauge.agent.job_settings import JobSettingsFiles
from tidegauge.core.jobs.settings import JobSettings
from tidegauge.probe.activation.launch import activation_environ

pytestmark = [pytest.mark.rig, pytest.mark.timeout(180)]

GIB = 1 << 30
JOB = """
import json, os, pathlib, sys, torch
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
small = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
facts = {"expandable": [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()],
         "fraction": torch.cuda.get_per_process_memory_fraction(), "refused": None,
         "conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF")}
try:
    torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    facts["refused"] = str(error)
pathlib.Path(sys.argv[1], "rank" + os.environ.get("RANK", "0")).write_text(json.dumps(facts))
"""


class SlurmJob:
    """Job 4711 on a node with an agent, and the attempts that it makes on two GPUs of 8 GiB."""

    def __init__(self, rig: Rig, scratch: Path) -> None:
        self._rig = rig
        self._scratch = scratch
        self.run_dir = scratch / "run"
        (scratch / "job.py").write_text(JOB)

    def is_to_change(self, torch_version: str | None) -> None:
        """From the second attempt on."""
        settings = JobSettings(
            "4711", os.getuid(), 1, environ={"TIDEGAUGE_MEMORY_FRACTION": "0.5"},
            alloc_conf={"expandable_segments": "True"}, torch_version=torch_version,
        )  # fmt: skip
        JobSettingsFiles([self.run_dir]).write([settings])

    def runs(self, *, restarts: int, ranks: int = 1, **more: str) -> tuple[list[dict[str, Any]], list[str]]:
        """What each rank found, and what the job was told."""
        environ = self._rig.environ(devices=2, total_bytes=8 * GIB, state=self._scratch / "gpus")
        for name in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(name, None)
        environ |= activation_environ("stats", environ, pythonpath=True)
        environ |= {"TIDEGAUGE_RUN_DIR": str(self.run_dir), "SLURM_JOB_ID": "4711", "OMP_NUM_THREADS": "1"}
        if restarts:
            environ["SLURM_RESTART_COUNT"] = str(restarts)  # Slurm sets it from the second attempt on
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        found = self._scratch / f"found-{restarts}"
        found.mkdir(exist_ok=True)
        result = subprocess.run(
            [str(self._rig.python), *torchrun, str(self._scratch / "job.py"), str(found)],
            env=environ | more, capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr[-3000:]
        said = [line for line in result.stderr.splitlines() if line.startswith("tidegauge:")]
        return [json.loads((found / f"rank{rank}").read_text()) for rank in range(ranks)], said

    def torch_version(self) -> str:
        (record,) = self._rig.venv.glob("lib/python*/site-packages/torch-*.dist-info")
        return record.name.removeprefix("torch-").removesuffix(".dist-info")


@pytest.fixture
def job(rig: Rig, tmp_path: Path) -> SlurmJob:
    return SlurmJob(rig, tmp_path)


LINE = (
    "tidegauge: attempt 1 of job 4711 runs with expandable_segments:True, TIDEGAUGE_MEMORY_FRACTION=0.5"
    " (cluster policy)"
)


@pytest.mark.parametrize("torch_is_known", [True, False])
def test_the_second_attempt_runs_with_them_and_the_first_as_it_was_submitted(
    job: SlurmJob, torch_is_known: bool
) -> None:
    job.is_to_change(job.torch_version() if torch_is_known else None)
    (first,), said = job.runs(restarts=0)
    assert (set(first["expandable"]), first["fraction"], first["refused"], said) == ({False}, 1.0, None, [])
    (second,), said = job.runs(restarts=1)
    assert (set(second["expandable"]), second["fraction"], said) == ({True}, 0.5, [LINE])
    assert "4.00 GiB allowed" in second["refused"]


def test_both_ranks_of_torchrun_run_with_them_and_the_job_is_told_once(job: SlurmJob) -> None:
    job.is_to_change(None)
    ranks, said = job.runs(restarts=1, ranks=2)
    assert [(set(rank["expandable"]), rank["fraction"]) for rank in ranks] == [({True}, 0.5)] * 2
    assert all("4.00 GiB allowed" in rank["refused"] for rank in ranks)
    assert said == [LINE]


def test_the_owners_settings_stay_in_force_beside_them(job: SlurmJob) -> None:
    job.is_to_change(job.torch_version())
    (found,), said = job.runs(
        restarts=1, TIDEGAUGE_MEMORY_FRACTION="0.25", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"
    )
    assert (set(found["expandable"]), found["fraction"]) == ({True}, 0.25)
    assert "2.00 GiB allowed" in found["refused"]
    assert found["conf"] == "max_split_size_mb:64,expandable_segments:True"
    assert [line for line in said if "MEMORY_FRACTION" in line] == []
