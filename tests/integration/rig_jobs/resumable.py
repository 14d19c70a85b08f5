"""A training script that saves its state when Tidegauge asks and goes on from there: the closed loop's job.

Run by ``tidegauge run --requeue -- torchrun … resumable.py``, or by ``srun torchrun`` in a batch job. ``--leak-rank R``
makes rank R keep its outputs; ``--fragment`` makes every rank ask for ever larger passing blocks with small long-lived
ones between them, so that reserved memory grows unless segments can expand. ``--until FILE`` goes on beyond ``--steps``
until that file is there, however long what must happen before that takes; with ``--fill`` it then runs out of memory.
With ``--counters`` each rank prints PyTorch's own counters at the end of an attempt, and a SIGTERM ends it after its
step. Nothing in it knows that the GPUs are fake.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import tidegauge

MIB = 1 << 20


def block(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True, help="in all attempts together, at least")
    parser.add_argument("--state", type=Path, required=True, help="the checkpoint, and each attempt's story beside it")
    parser.add_argument("--until", type=Path, help="goes on until this file is there")
    parser.add_argument("--leak-rank", type=int, default=-1)
    parser.add_argument("--leak-bytes", type=int, default=4 * MIB)
    parser.add_argument("--no-callback", action="store_true", help="cannot be asked to save its state")
    parser.add_argument("--fragment", action="store_true")
    parser.add_argument("--fill", action="store_true", help="runs out of memory when it may end")
    parser.add_argument("--idle-after", type=int, metavar="N", help="waits to be killed after N steps")
    parser.add_argument("--counters", action="store_true", help="prints PyTorch's counters at the end of an attempt")
    parser.add_argument("--pause-seconds", type=float, default=0.06, help="after each step")
    args = parser.parse_args()

    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    dist.init_process_group("gloo")
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    model = nn.parallel.DistributedDataParallel(network, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = json.loads(args.state.read_text())["step"] if args.state.exists() else 0
    if rank == 0:
        tell(args.state, "began", step)

    def save(request: tidegauge.CheckpointRequest) -> None:
        # Collective, as saving a sharded model is: it hangs unless every rank comes here in the same step.
        steps = torch.tensor([step])
        dist.all_reduce(steps, op=dist.ReduceOp.MIN)
        assert int(steps) == step, "the ranks were asked in different steps"
        if rank == 0:
            fresh = args.state.with_suffix(".tmp")
            fresh.write_text(json.dumps({"step": step, "request": request.request_id}))
            fresh.replace(args.state)
            tell(args.state, "saved", step)

    if not args.no_callback:
        tidegauge.on_checkpoint_request(save)
    draw = random.Random(1 + rank)
    kept: list[torch.Tensor] = []
    between: list[torch.Tensor] = []
    first, stop = step, Stop(args.counters)
    try:
        while not stop.asked and (step < args.steps or not may_end(args.until)):
            loss = model(torch.randn(64, 64).cuda()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if rank == args.leak_rank:
                kept.append(block(args.leak_bytes))
            if args.fragment:
                del between[:-40]
                passing = block(12 * MIB + step * MIB // 4)
                between.append(block(draw.randint(1100, 1900) << 10))
                del passing
            step += 1
            optimizer.step()
            if step - first == args.idle_after:
                tell_counters(rank, step - first)
                signal.pause()
            # Not what is left of a step's time: on a busy machine that is nothing, and it would get busier.
            time.sleep(args.pause_seconds)
        while args.fill:
            kept.append(block(512 * MIB))
    finally:
        if args.counters:
            tell_counters(rank, step - first)
    if stop.asked:
        return
    if rank == 0:
        tell(args.state, "finished", step)
    dist.barrier()
    del model  # with the process group: see ddp.py
    dist.destroy_process_group()


class Stop:
    """Whether a SIGTERM came, which then ends nothing by itself."""

    asked = False

    def __init__(self, wait_for_it: bool) -> None:
        if wait_for_it:
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def may_end(until: Path | None) -> bool:
    """The same for all ranks, as they must end in the same step; each asks."""
    if until is None:
        return True
    there = torch.tensor([int(until.exists())])
    dist.all_reduce(there, op=dist.ReduceOp.MIN)
    return bool(there)


def tell(state: Path, what: str, step: int) -> None:
    """One line of the story, with what this attempt was given."""
    line = {
        "what": what,
        "step": step,
        "attempt": int(os.environ.get("TIDEGAUGE_ATTEMPT") or os.environ.get("SLURM_RESTART_COUNT") or "0"),
        "alloc_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF"),
        "fraction": os.environ.get("TIDEGAUGE_MEMORY_FRACTION"),
        "reserved_bytes": torch.cuda.memory_reserved(),
    }
    with state.with_suffix(".story").open("a") as story:
        story.write(json.dumps(line) + "\n")


def tell_counters(rank: int, steps: int) -> None:
    """One line in the job's output with what PyTorch and Slurm say of this rank."""
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    line = {
        "rank": rank,
        "attempt": int(os.environ.get("TIDEGAUGE_ATTEMPT") or os.environ.get("SLURM_RESTART_COUNT") or "0"),
        "steps": steps,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "limit_bytes": int(torch.cuda.get_per_process_memory_fraction() * total),
        "nodes": int(os.environ.get("SLURM_JOB_NUM_NODES") or "1"),
        "account": os.environ.get("SLURM_JOB_ACCOUNT"),
        "partition": os.environ.get("SLURM_JOB_PARTITION"),
    }
    print(f"counters {json.dumps(line)}\n", end="", flush=True)


if __name__ == "__main__":
    main()
