"""Programs of several processes run unchanged on the rig: torchrun with gloo and DDP, forked DataLoader workers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig

pytestmark = pytest.mark.rig

JOBS = Path(__file__).parent / "rig_jobs"
MIB = 1 << 20
CONTEXT_BYTES = 300 * MIB


@pytest.fixture(scope="module")
def ranks(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two ranks of one torchrun job saw."""
    scratch = tmp_path_factory.mktemp("ddp")
    torchrun = [str(rig.python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(JOBS / "ddp.py"), str(scratch)],
        env=rig.environ(devices=2, context_bytes=CONTEXT_BYTES, state=scratch / "gpus"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((scratch / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_ddp_trains_on_one_device_a_rank(ranks: list[dict[str, Any]]) -> None:
    assert [rank["device"] for rank in ranks] == [0, 1]
    for rank in ranks:
        assert rank["allocated_bytes"][0] > 0
        assert rank["allocated_bytes"][-1] == rank["allocated_bytes"][-2]  # a healthy job is level after warm-up


def test_ddp_gives_both_ranks_the_weights_of_rank_0(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["weights_before"] != ranks[1]["weights_before"]
    assert ranks[0]["weights_in_ddp"] == ranks[1]["weights_in_ddp"] == ranks[0]["weights_before"]


def test_collectives_on_device_tensors_give_right_values(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["all_reduce"] == [1.0, 3.0, 5.0, 7.0]
        assert rank["broadcast"] == [5.0, 5.0, 5.0]
        assert rank["all_gather"] == [[0.0, 10.0], [1.0, 11.0]]


def test_each_rank_sees_the_bytes_of_the_other(ranks: list[dict[str, Any]]) -> None:
    """Read by rank 1 after both trained: device 0 holds what rank 0 reserved and its context at least."""
    assert ranks[1]["taken_bytes"][0] >= ranks[0]["reserved_bytes"] + CONTEXT_BYTES


def test_forked_loader_workers_run_and_forked_children_cannot_touch_cuda(rig: Rig, tmp_path: Path) -> None:
    environ = {**rig.environ(state=tmp_path / "gpus"), "PYTHONPATH": str(rig.inside)}
    done = subprocess.run(
        [rig.python, JOBS / "forks.py"], env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["sum"] == sum(index**2 for index in range(32))
    assert seen["pinned"] is True
    assert "Cannot re-initialize CUDA in forked subprocess" in seen["child_through_torch"]
    assert seen["child_through_runtime"].endswith("gave error 3")  # cudaErrorInitializationError
    assert seen["parents_tensor"] == 999
    assert seen["still_taken"] is True
