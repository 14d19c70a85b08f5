"""A plain PyTorch loop, data parallel. It is watched without a line of code; the lines that name ``tidegauge`` let it
save its state when Tidegauge asks.

    tidegauge run -- torchrun --nproc-per-node 2 train.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import tidegauge

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--backend", default="nccl")
parser.add_argument("--checkpoint", type=Path, default=Path("last.pt"))
args = parser.parse_args()


def main() -> None:
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(args.backend)
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location="cuda")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"goes on from step {step}", flush=True)

    @tidegauge.on_checkpoint_request
    def save() -> None:
        if rank == 0:
            unfinished = args.checkpoint.with_suffix(".tmp")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, unfinished)
            unfinished.replace(args.checkpoint)

    while step < args.steps:
        optimizer.zero_grad()
        model(torch.randn(32, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        step += 1
        tidegauge.step()  # a step ends here, with the counter right: this is where save() is called

    tidegauge.on_checkpoint_request(None)


main()
dist.destroy_process_group()
