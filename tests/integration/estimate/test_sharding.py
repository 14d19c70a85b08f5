"""What the estimate has a rank allocate is what PyTorch's own DDP and FSDP2 allocate on the fake-GPU rig."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.estimate.interpreter import estimate_python

HERE = Path(__file__).parent
SMALL_BYTES = 1 << 20
"""Tables of pointers that DDP's checks and FSDP2's copies pass to the device; the estimate leaves them out."""
pytestmark = pytest.mark.timeout(600)
Requests = Counter[tuple[int, bool]]
"""How often which size was asked for, and whether on a stream of its own."""


def on_the_rig(rig: Rig, kind: str, tmp_path: Path) -> Requests:
    out = tmp_path / f"{kind}-real.json"
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if kind.startswith("ddp") else []
    run(
        [str(rig.python), *ranks, str(HERE / "rank_on_the_rig.py"), kind, str(out)], rig.environ(state=tmp_path / "gpu")
    )
    return read(out)


def estimated(kind: str, tmp_path: Path) -> Requests:
    out = tmp_path / f"{kind}-estimated.json"
    run([estimate_python(), str(HERE / "rank_estimated.py"), kind, str(out)], None)
    return read(out)


def run(command: list[str], environ: dict[str, str] | None) -> None:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


def read(path: Path) -> Requests:
    return Counter((size, bool(side)) for size, side in json.loads(path.read_text()))


@pytest.fixture(scope="module")
def kernels(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> set[int]:
    """Sizes that kernels take for themselves: what one rank alone asks for on the rig and not in the estimate."""
    folder = tmp_path_factory.mktemp("alone")
    return {size for size, _ in on_the_rig(rig, "none", folder) - estimated("none", folder)}


@pytest.fixture(scope="module")
def ddp_on_the_rig(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Requests:
    return on_the_rig(rig, "ddp", tmp_path_factory.mktemp("ddp"))


def largest_unknown(theirs: Requests, ours: Requests, kernels: set[int]) -> int:
    """Of what only PyTorch's own asks for, beside the workspaces of kernels that a job of one rank has as well."""
    return max((size for size, _ in theirs - ours if size not in kernels), default=0)


@pytest.mark.rig
@pytest.mark.parametrize("way", ["ddp", "ddp_own"])
def test_ddp_asks_for_the_same_buckets_and_copies(
    ddp_on_the_rig: Requests, kernels: set[int], way: str, tmp_path: Path
) -> None:
    ours = estimated(way, tmp_path)
    assert ours - ddp_on_the_rig == Counter()
    assert largest_unknown(ddp_on_the_rig, ours, kernels) < SMALL_BYTES


@pytest.mark.rig
def test_ddp_with_gradients_as_views_of_its_buckets(rig: Rig, kernels: set[int], tmp_path: Path) -> None:
    theirs, ours = on_the_rig(rig, "ddp_view", tmp_path), estimated("ddp_view", tmp_path)
    assert ours - theirs == Counter()
    assert largest_unknown(theirs, ours, kernels) < SMALL_BYTES


@pytest.mark.rig
def test_fsdp2_gathers_and_reduces_the_same_on_the_same_streams(rig: Rig, kernels: set[int], tmp_path: Path) -> None:
    theirs, ours = on_the_rig(rig, "fsdp2", tmp_path), estimated("fsdp2", tmp_path)
    assert ours - theirs == Counter()
    assert largest_unknown(theirs, ours, kernels) < SMALL_BYTES
    assert sum(count for (_, side), count in ours.items() if side) > 20


def test_the_process_is_left_as_it_was() -> None:
    code = (
        "import os, torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "from tidegauge.estimator.sharding import lone_rank\n"
        "before = (dist.init_process_group, nn.parallel.DistributedDataParallel, dict(os.environ))\n"
        "with lone_rank(4):\n"
        "    assert dist.get_world_size() == 4 and os.environ['WORLD_SIZE'] == '4'\n"
        "assert not dist.is_initialized()\n"
        "assert before == (dist.init_process_group, nn.parallel.DistributedDataParallel, dict(os.environ))\n"
    )
    environ = {"PYTHONPATH": str(HERE.parents[2] / "collector"), "PATH": "/usr/bin:/bin"}
    run([estimate_python(), "-c", code], environ)
