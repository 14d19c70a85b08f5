"""What the estimate has a rank allocate is what PyTorch's own DDP and FSDP2 allocate on the fake-GPU rig."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.estimate.interpreter import estimate_python
from integration.estimate.warm_python import WarmPython
from matrix import turn

HERE = Path(__file__).parent
SMALL_BYTES = 1 << 20
"""Tables of pointers that DDP's checks and FSDP2's copies pass to the device; the estimate leaves them out."""
pytestmark = pytest.mark.timeout(600)
Requests = Counter[tuple[int, bool]]
"""How often which size was asked for, and whether on a stream of its own."""
OfKind = Callable[[str], Requests]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharding")


@pytest.fixture(scope="module")
def estimated(laptop: WarmPython, scratch: Path) -> OfKind:
    return lambda kind: requests(laptop.told(HERE / "rank_estimated.py", kind, out=scratch / "estimated.json"))


@pytest.fixture(scope="module")
def on_the_rig(gpu_node: WarmPython, scratch: Path) -> OfKind:
    return lambda kind: requests(gpu_node.told(HERE / "rank_on_the_rig.py", kind, out=scratch / "real.json"))


def two_ranks(rig: Rig, kind: str, tmp_path: Path) -> Requests:
    """What the first of them asks for."""
    out = tmp_path / "real.json"
    torchrun = [str(rig.python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run([*torchrun, str(HERE / "rank_on_the_rig.py"), kind, str(out)], rig.environ(state=tmp_path / "gpu"))
    return requests(json.loads(out.read_text()))


def run(command: list[str], environ: dict[str, str]) -> None:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


def requests(told: Any) -> Requests:
    return Counter((size, bool(side)) for size, side in told)


@pytest.fixture(scope="module")
def kernels(on_the_rig: OfKind, estimated: OfKind) -> set[int]:
    """Sizes that kernels take for themselves: what one rank alone asks for on the rig and not in the estimate."""
    return {size for size, _ in on_the_rig("none") - estimated("none")}


@pytest.fixture(scope="module")
def ddp_on_the_rig(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Requests:
    return two_ranks(rig, "ddp", tmp_path_factory.mktemp("ddp"))


def largest_unknown(theirs: Requests, ours: Requests, kernels: set[int]) -> int:
    """Of what only PyTorch's own asks for, beside the workspaces of kernels that a job of one rank has as well."""
    return max((size for size, _ in theirs - ours if size not in kernels), default=0)


@pytest.mark.rig
@turn(2)
@pytest.mark.parametrize("way", ["ddp", "ddp_own"])
def test_ddp_asks_for_the_same_buckets_and_copies(
    ddp_on_the_rig: Requests, estimated: OfKind, kernels: set[int], way: str
) -> None:
    ours = estimated(way)
    assert ours - ddp_on_the_rig == Counter()
    assert largest_unknown(ddp_on_the_rig, ours, kernels) < SMALL_BYTES


@pytest.mark.rig
@turn(2)
def test_ddp_with_gradients_as_views_of_its_buckets(
    rig: Rig, estimated: OfKind, kernels: set[int], tmp_path: Path
) -> None:
    theirs, ours = two_ranks(rig, "ddp_view", tmp_path), estimated("ddp_view")
    assert ours - theirs == Counter()
    assert largest_unknown(theirs, ours, kernels) < SMALL_BYTES


@pytest.mark.rig
@turn(2)
def test_fsdp2_gathers_and_reduces_the_same_on_the_same_streams(
    on_the_rig: OfKind, estimated: OfKind, kernels: set[int]
) -> None:
    theirs, ours = on_the_rig("fsdp2"), estimated("fsdp2")
    assert ours - theirs == Counter()
    assert largest_unknown(theirs, ours, kernels) < SMALL_BYTES
    assert sum(count for (_, side), count in ours.items() if side) > 20


@turn(2)
def test_the_process_is_left_as_it_was() -> None:
    code = (
        "import os, torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "from tidegauge.estimator.distributed import lone_rank\n"
        "before = (dist.init_process_group, nn.parallel.DistributedDataParallel, dict(os.environ))\n"
        "with lone_rank(4):\n"
        "    assert dist.get_world_size() == 4 and os.environ['WORLD_SIZE'] == '4'\n"
        "assert not dist.is_initialized()\n"
        "assert before == (dist.init_process_group, nn.parallel.DistributedDataParallel, dict(os.environ))\n"
    )
    environ = {"PYTHONPATH": str(HERE.parents[2] / "collector"), "PATH": "/usr/bin:/bin"}
    run([estimate_python(), "-c", code], environ)
