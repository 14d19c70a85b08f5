"""A training script that can be asked to save its state; runs alone or under torchrun until the file STATE/stop exists.

``--on-request``: ``collective`` (a callback in which the ranks meet, and rank 0 writes), ``fail`` (a callback that
raises), ``signal`` (a handler of SIGUSR1: the first time it leaves a temporary file only), ``nothing``. Each save is
one line in STATE/rankN.saves. It makes no step while STATE/hold is there. Nothing in it knows that the GPUs are fake.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import tidegauge

parser = argparse.ArgumentParser()
parser.add_argument("state", type=Path)
parser.add_argument("--on-request", choices=("collective", "fail", "signal", "nothing"), required=True)
args = parser.parse_args()

rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.cuda.set_device(rank)
network: nn.Module = nn.Linear(64, 64).cuda()
if world_size > 1:
    dist.init_process_group("gloo")
    network = nn.parallel.DistributedDataParallel(network, device_ids=[rank])
optimizer = torch.optim.AdamW(network.parameters())
step = 0
saves = 0


def write(name: str) -> None:
    temporary = args.state / "checkpoints" / f"{name}.tmp"
    temporary.write_text(f"state after step {step}")
    temporary.rename(temporary.with_suffix(""))


def note(request_id: str | None) -> None:
    line = {"request": request_id, "step": step, "in_main": threading.current_thread() is threading.main_thread()}
    with (args.state / f"rank{rank}.saves").open("a") as file:
        file.write(json.dumps(line) + "\n")


def save_together(request: tidegauge.CheckpointRequest) -> None:
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(steps, torch.tensor([request.step]))  # hangs unless both ranks come
    if rank == 0:
        write(f"steps-{'-'.join(str(int(each)) for each in steps)}.pt")
    dist.barrier()
    note(request.request_id)


def fail(request: tidegauge.CheckpointRequest) -> None:
    note(request.request_id)
    raise OSError("the disk is full")


def on_signal(_number: int, _frame: object) -> None:
    global saves
    saves += 1
    note(None)
    if saves == 1:
        (args.state / "checkpoints" / "unfinished.pt.tmp").write_text("half")
    else:
        write(f"save-{saves}.pt")


if args.on_request == "collective":
    tidegauge.on_checkpoint_request(save_together)
elif args.on_request == "fail":
    tidegauge.on_checkpoint_request(fail)
elif args.on_request == "signal":
    signal.signal(signal.SIGUSR1, on_signal)

while True:
    while (args.state / "hold").exists():
        time.sleep(0.01)
    network(torch.randn(4, 64).cuda()).mean().backward()
    step += 1
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    stop = torch.tensor([int((args.state / "stop").exists())])
    if world_size > 1:
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)  # all leave in the same step
    if stop.item():
        break
if world_size > 1:
    dist.barrier()
    del network  # with the process group: see ddp.py
    dist.destroy_process_group()
