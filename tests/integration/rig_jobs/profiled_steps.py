"""Trains a small transformer and records its allocations: python profiled_steps.py eager|amp|checkpoint|accumulate OUT.

Writes the snapshot to OUT.pickle, and what PyTorch's counters and the model itself say to OUT.json.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS, WIDTH, BLOCKS, VOCABULARY, BATCH, LENGTH = 3, 256, 4, 4096, 8, 128
MODE, OUT = sys.argv[1:]


class Block(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.norm(x))


class Model(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if MODE == "checkpoint" else block(x)
        return self.head(x)


def step(model: Model, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2 if MODE == "accumulate" else 1):
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.float16, enabled=MODE == "amp"):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=100_000)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    step(model, optimizer)
states = [value for state in optimizer.state.values() for value in state.values() if value.is_cuda]
statistics = torch.cuda.memory_stats()
torch.cuda.memory._dump_snapshot(f"{OUT}.pickle")
with open(f"{OUT}.json", "w") as file:
    json.dump({
        "peak_allocated_bytes": statistics["allocated_bytes.all.peak"],
        "peak_reserved_bytes": statistics["reserved_bytes.all.peak"],
        "parameter_bytes": bytes_of(list(model.parameters())),
        "state_bytes": bytes_of(states),
    }, file)  # fmt: skip
