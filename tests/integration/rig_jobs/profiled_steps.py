"""Trains a small transformer, recorded: python profiled_steps.py MODE OUT, with MODE
eager|amp|checkpoint|accumulate|block|lbfgs|parallel|replaced.

Writes the snapshot to OUT.pickle, and what PyTorch's counters and the model itself say to OUT.json; `block`: what
`tidegauge.profile()` says, there as well; `lbfgs`: with an optimizer that calls a closure several times in a step;
`parallel`: of a model in DistributedDataParallel; `replaced`: the weights move behind the steps.
"""

from __future__ import annotations

import json
import sys
from typing import Any

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
    if MODE == "lbfgs":
        optimizer.step(lambda: loss_of(model, optimizer))
        return
    for _ in range(2 if MODE == "accumulate" else 1):
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.float16, enabled=MODE == "amp"):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def loss_of(model: Model, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def on_gpu(value: Any) -> bool:
    return bool(torch.is_tensor(value) and value.is_cuda)


def truth(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    states = [value for state in optimizer.state.values() for value in state.values() if on_gpu(value)]
    statistics = torch.cuda.memory_stats()
    return {
        "peak_allocated_bytes": statistics["allocated_bytes.all.peak"],
        "peak_reserved_bytes": statistics["reserved_bytes.all.peak"],
        "parameter_bytes": bytes_of(list(model.parameters())),
        "state_bytes": bytes_of(states),
    }


def recorded() -> dict[str, object]:
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=100_000)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        step(model, optimizer)
    found = truth(model, optimizer)
    torch.cuda.memory._dump_snapshot(f"{OUT}.pickle")
    return found


def in_a_block() -> dict[str, object]:
    """The profile that the program makes of itself, of a model that was there before."""
    import tidegauge

    model = Model().cuda()
    if MODE == "parallel":
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(model)
    if MODE == "lbfgs":
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_grad=-1, tolerance_change=-1)
    else:
        optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    torch.cuda.reset_peak_memory_stats()
    with tidegauge.profile(model, optimizer) as p:
        for number in range(STEPS):
            step(model, optimizer)
            if MODE == "replaced" and number == STEPS - 1:
                for parameter in model.parameters():
                    parameter.data = parameter.data.clone()
    return {
        **truth(model, optimizer),
        "problem": p.problem,
        "profiled_peak_bytes": p.peak.allocated_bytes,
        "by_category": {category.value: held for category, held in p.peak.by_category.items()},
        "modules": [one.path for one in p.profile.modules],
        "measures": [one.measure.value for one in p.advice.measures],
        "batch_times": p.advice.room and p.advice.room.safe_times,
        "page": str(p),
        "drawn": p.to_html(f"{OUT}.html").read_text(),
        "still_recording": torch._C._cuda_isHistoryEnabled(),
    }


with open(f"{OUT}.json", "w") as file:
    json.dump(in_a_block() if MODE in ("block", "lbfgs", "parallel", "replaced") else recorded(), file)
