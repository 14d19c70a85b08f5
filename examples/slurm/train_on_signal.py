"""A PyTorch loop that saves its state at SIGUSR2 and goes on where it was. It does not import ``tidegauge``.

sbatch --memory-profile --memory-profile-signal=USR2 signal.sbatch
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
args = parser.parse_args()
args.checkpoints.mkdir(parents=True, exist_ok=True)

model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
step = 0
asked = False


def ask(*_: object) -> None:
    """Only notes it: a handler may run in the middle of anything."""
    global asked
    asked = True


def save() -> None:
    """Under a temporary name first, so that a checkpoint is whole or not there."""
    file = args.checkpoints / f"step-{step}.pt"
    unfinished = file.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, unfinished)
    unfinished.replace(file)
    print(f"saved {file}", flush=True)


signal.signal(signal.SIGUSR2, ask)
saved = sorted(args.checkpoints.glob("step-*.pt"), key=lambda file: int(file.stem.removeprefix("step-")))
if saved:
    state = torch.load(saved[-1], map_location="cuda")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    print(f"goes on from step {step}", flush=True)

while step < args.steps:
    optimizer.zero_grad()
    model(torch.randn(32, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    step += 1
    if asked:
        asked = False
        save()
