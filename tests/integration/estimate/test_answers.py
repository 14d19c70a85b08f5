"""`tidegauge estimate` on the example: the number, what changes save, the largest batch, ranks, errors for people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from integration.estimate.interpreter import EXAMPLE, estimate_python
from tidegauge.core.wire import from_wire
from tidegauge.estimator.results import Estimate, FitVerdict

pytestmark = pytest.mark.timeout(400)
SMALL_GPT = """
import train
def build(batch_size=8):
    return train.build(batch_size, layers=4, hidden=256, heads=4, sequence=128)
def without_batch():
    return build()
def build_sharded():
    import torch
    from torch import distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    dist.init_process_group("nccl")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    def wrap(model):
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        return fully_shard(model, mp_policy=policy)
    return train.build(8, layers=4, hidden=256, heads=4, sequence=128, wrap=wrap)
"""


class Done(NamedTuple):
    """What the command said."""

    code: int
    out: str
    err: str

    @property
    def estimate(self) -> Estimate:
        assert self.out, self.err
        data: dict[str, Any] = json.loads(self.out)
        return from_wire(Estimate, data)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(EXAMPLE.read_text())
    (folder / "job.py").write_text(SMALL_GPT)
    return folder


@pytest.fixture(scope="module")
def alone(job: Path) -> Estimate:
    """The job as one rank."""
    return estimate(job, "job:build", "--json", "--quick", "--steps", "2").estimate


def estimate(folder: Path, *arguments: str, **environ: str) -> Done:
    command = [sys.executable, "-m", "tidegauge", "estimate", *arguments, "--python", estimate_python()]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH")}
    done = subprocess.run(
        command, cwd=folder, env=inherited | environ, capture_output=True, text=True, check=False, timeout=380
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_the_parts_add_up_and_every_change_is_tried(job: Path) -> None:
    found = estimate(job, "job:build", "--json").estimate
    assert sum(found.breakdown) == found.device_bytes
    assert found.device_bytes == found.peak_reserved_bytes + found.breakdown.context
    assert found.breakdown.parameters == 4 * found.parameters
    assert found.breakdown.optimizer_state == pytest.approx(8 * found.parameters, rel=0.01)
    assert [saving.device_bytes is not None for saving in found.savings] == [True] * 4
    states = found.closed_forms[0]
    assert states.estimate_bytes == pytest.approx(states.bytes, rel=0.01)
    assert {batch.gpu for batch in found.largest_batches} == {fit.gpu for fit in found.fits}
    assert found.steps[1].allocated_bytes > found.steps[0].allocated_bytes


def test_a_batch_that_is_told_to_fit_does_and_the_next_one_does_not(job: Path) -> None:
    (found,) = estimate(job, "job:build", "--json", "--gpu", "t4", "--steps", "2").estimate.largest_batches
    at_it = estimate(
        job, "job:build", "--json", "--gpu", "t4", "--quick", "--steps", "2", "--batch-size", str(found.batch_size)
    )
    above = estimate(
        job, "job:build", "--json", "--gpu", "t4", "--quick", "--steps", "2", "--batch-size", str(found.batch_size + 1)
    )
    assert (at_it.code, at_it.estimate.device_bytes) == (0, found.device_bytes)
    assert above.code == 1
    assert above.estimate.fits[0].verdict is not FitVerdict.FITS


def test_a_function_without_a_batch_is_told_how_to_take_one(job: Path) -> None:
    found = estimate(job, "job:without_batch", "--json", "--steps", "2").estimate
    assert found.largest_batches == ()
    assert "FUNCTION(batch_size=8)" in found.batch_note


def test_shards_hold_their_share_and_ranks_hold_nccl(job: Path, alone: Estimate) -> None:
    shard = estimate(
        job, "job:build", "--json", "--quick", "--steps", "2", "--world-size", "8", "--strategy", "fsdp2"
    ).estimate
    copies = estimate(
        job, "job:build", "--json", "--quick", "--steps", "2", "--world-size", "8", "--strategy", "ddp"
    ).estimate
    assert shard.breakdown.optimizer_state == pytest.approx(alone.breakdown.optimizer_state / 8, rel=0.01)
    assert copies.breakdown.other == pytest.approx(alone.breakdown.parameters, rel=0.01)  # DDP's buckets
    assert min(shard.breakdown.nccl, copies.breakdown.nccl) > 0 == alone.breakdown.nccl


def test_a_function_that_sets_up_its_ranks_itself_is_one_of_them(job: Path) -> None:
    found = estimate(job, "train.py:build_parallel", "--json", "--quick", "--steps", "2", "--world-size", "4").estimate
    assert (found.world_size, found.strategy) == (4, "own")
    assert found.breakdown.other == pytest.approx(found.breakdown.parameters, rel=0.01)


def test_a_function_that_shards_its_model_itself_holds_its_share(job: Path, alone: Estimate) -> None:
    shard = estimate(job, "job:build_sharded", "--json", "--quick", "--steps", "2", "--world-size", "4").estimate
    assert shard.breakdown.optimizer_state == pytest.approx(alone.breakdown.optimizer_state / 4, rel=0.01)
    assert shard.breakdown.activations < 0.7 * alone.breakdown.activations  # 16 bits


def test_allocator_settings_come_from_the_option_or_the_environment(job: Path) -> None:
    conf = "expandable_segments:True"
    by_option = estimate(job, "job:build", "--json", "--quick", "--steps", "2", "--alloc-conf", conf).estimate
    by_environment = estimate(job, "job:build", "--json", "--quick", "--steps", "2", PYTORCH_ALLOC_CONF=conf).estimate
    assert by_option == by_environment
    assert by_option.alloc_conf == conf


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def build():\n    raise RuntimeError('no data here')\n", "RuntimeError: no data here"),
        ("import nonexistent_data_set\n", "No module named 'nonexistent_data_set'"),
        ("def make(): ...\n", "has no function 'build'; functions: make"),
        ("def build():\n    return 1\n", "must return (model, optimizer, step)"),
        ("def build(batch_size):\n    return 1\n", "give a batch size"),
    ],
)
def test_estimate_reports_what_is_wrong_with_build(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    done = estimate(tmp_path, "broken:build")
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert "tidegauge/estimator" not in done.err


def test_a_module_that_imports_torchvision_is_read_beside_a_torch_without_cuda(tmp_path: Path) -> None:
    (tmp_path / "vision.py").write_text(
        "import torch\nimport torchvision\n\n"
        "def build():\n"
        "    model = torchvision.models.resnet18(num_classes=10).cuda()\n"
        "    def step():\n"
        "        model(torch.randn(2, 3, 32, 32, device='cuda')).sum().backward()\n"
        "    return model, None, step\n"
    )
    done = estimate(tmp_path, "vision:build", "--quick")
    assert done.code == 0, done.err
    assert done.out.startswith("vision:build needs")


def test_settings_that_this_torch_would_refuse_are_refused(job: Path) -> None:
    done = estimate(job, "job:build", "--quick", "--alloc-conf", "expandable:True")
    assert done.code == 2
    assert "expandable" in done.err


def test_estimate_keeps_prints_of_build_out_of_stdout(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "from torch import nn\nprint('hello')\ndef build():\n    print('{')\n    return 1\n"
    )
    done = estimate(tmp_path, "loud:build", "--json")
    assert done.out == ""
    assert "hello" in done.err
