"""Two ranks on two GPUs over NCCL: the rank that leaks is named, the other is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.watching import DEMO_JOB, agent_for, poll_until, rank, watched
from tidegauge.core.verdicts import LeakState, Signal

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def two_gpus(gpu_count: int) -> None:
    if gpu_count < 2:
        pytest.skip(f"needs 2 GPUs, this machine has {gpu_count}")


def torchrun(python: str, *command: str) -> list[str]:
    return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]


def test_the_rank_that_keeps_its_outputs_is_named(gpu_python: str, run_dir: Path) -> None:
    command = torchrun(gpu_python, str(DEMO_JOB), "--leak-rank", "1", "--step-seconds", "0.03")
    with watched(command, run_dir=run_dir), agent_for(run_dir) as agent:
        view = poll_until(
            agent, lambda v: (r := rank(v, 1)) is not None and r.verdict.state is LeakState.LEAK, within_s=120
        )
        leaking, healthy = rank(view, 1), rank(view, 0)
        assert leaking is not None
        assert healthy is not None
        assert leaking.verdict.signal is Signal.ALLOCATED
        assert healthy.verdict.state is LeakState.OK
        assert leaking.uuid != healthy.uuid
        assert leaking.identity.world_size == 2
        # NCCL's buffers are outside the allocator: context and communicator together.
        assert leaking.nontorch_bytes is not None
        assert leaking.nontorch_bytes > 300 << 20


def test_communicators_that_are_never_destroyed_are_seen(gpu_python: str, run_dir: Path, tmp_path: Path) -> None:
    script = tmp_path / "groups.py"
    script.write_text(
        "import os, time, torch, torch.distributed as dist\n"
        "rank = int(os.environ['LOCAL_RANK']); torch.cuda.set_device(rank); dist.init_process_group('nccl')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda(), device_ids=[rank])\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1); groups = []; n = 0; end = time.monotonic() + 120\n"
        "while time.monotonic() < end:\n"
        "    optimizer.zero_grad(); model(torch.randn(64, 512, device='cuda')).sum().backward(); optimizer.step()\n"
        "    n += 1\n"
        "    if n > 60 and n % 10 == 0:\n"
        "        groups.append(dist.new_group([0, 1]))\n"
        "        dist.all_reduce(torch.ones(1, device='cuda'), group=groups[-1])\n"
        "    time.sleep(0.05)\n"
    )
    with watched(torchrun(gpu_python, str(script)), run_dir=run_dir), agent_for(run_dir) as agent:
        view = poll_until(
            agent,
            lambda v: all((r := rank(v, n)) is not None and r.verdict.state is LeakState.LEAK for n in (0, 1)),
            within_s=110,
        )
        assert {r.verdict.signal for r in view.ranks} == {Signal.NONTORCH}
