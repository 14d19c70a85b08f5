"""A small job that ``tidegauge estimate estimated_steps.py:build`` estimates, and that records itself when it runs as
``python estimated_steps.py OUT`` on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

STEPS, WIDTH, VOCABULARY, BATCH, LENGTH = 4, 256, 4096, 8, 128


def build() -> tuple[Any, Any, Callable[[], None]]:
    layers = [
        part
        for _ in range(4)
        for part in (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    ]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=100_000)
    _, _, train_step = build()
    for _ in range(STEPS):
        train_step()
    torch.cuda.memory._dump_snapshot(sys.argv[1])
