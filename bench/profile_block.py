"""How long training waits at the end of `with tidegauge.profile()`, and what its profile and its advice take later.

    PYTHONPATH=collector python bench/profile_block.py                                            # with a GPU
    .venv/bin/python tests/fakegpu/rig.py run -- env PYTHONPATH=collector python bench/profile_block.py

Transformers of 6, 30 and 40 blocks whose batches differ from step to step, with AdamW parameter by parameter. Processor
seconds of the training thread. Prints one line for each.
"""

from __future__ import annotations

import time

import torch
from torch import nn

import tidegauge

WIDTH = 160
RUNS = ((6, 3), (30, 3), (40, 6))
"""Blocks, and steps in the profiled block."""


class Block(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mix = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](x)
        query, key, value = (part(normed) for part in self.parts[:3])
        x = x + self.parts[3](torch.softmax(query @ key.transpose(-1, -2) / 8, -1) @ value)
        return x + self.mix(self.norms[1](x))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    batch = torch.randn(4 + step % 3, 64 + 16 * (step % 5), WIDTH, device="cuda")
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def measured(blocks: int, steps: int) -> str:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(blocks))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    train(model, optimizer, 0)
    with tidegauge.profile(model, optimizer) as profiled:
        for step in range(steps):
            train(model, optimizer, step)
        trained_s = time.thread_time()
    ended_s = time.thread_time()
    events = profiled.profile.events
    made_s = time.thread_time()
    advised = profiled.advice.measures
    advised_s = time.thread_time()
    return (
        f"{events:,} events: {ended_s - trained_s:.2f} s at the end of the block, {made_s - ended_s:.2f} s for the "
        f"profile, {advised_s - made_s:.2f} s for the advice, {len(advised)} measures"
    )


if __name__ == "__main__":
    for run in RUNS:
        print(measured(*run), flush=True)
