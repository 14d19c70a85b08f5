"""Profiles a small transformer by module: python module_memory.py plain|checkpoint|compiled|raises|backward OUT.

Writes what `tidegauge.profile()` says, and what autograd says that it saves, to OUT.json; the page to OUT.html.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
from torch import nn
from torch.utils.checkpoint import checkpoint

import tidegauge

MODE, OUT = sys.argv[1:]
WIDTH, BLOCKS, VOCABULARY, BATCH, LENGTH = 512, 3, 1024, 8, 256
SCRATCH_BYTES = 1 << 30
"""Behind the forward pass, so that the peak is where all activations are alive; or behind the backward pass."""


class Block(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Net(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if MODE == "checkpoint" else block(x)
        if MODE == "raises" and len(modules._global_forward_hooks):
            raise ValueError
        return self.head(x)


def step(net: Net, optimizer: torch.optim.Optimizer, saved: dict[int, int]) -> None:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    parameters = {one.untyped_storage().data_ptr() for one in net.parameters()}
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
    saved.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = net(tokens)
    if MODE == "backward":
        out.sum().backward()
    scratch = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device="cuda")
    del scratch
    if MODE != "backward":
        out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> dict[str, Any]:
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    if MODE == "compiled":
        torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(3, device="cuda"))
    set_word = getattr(torch._C, "_cuda_setMemoryMetadata", None)
    if set_word is not None:
        set_word("the user's")
    saved: dict[int, int] = {}
    before = {id(module): list(map(id, module._forward_hooks)) for module in net.modules()}
    raised = False
    with tidegauge.profile(net, optimizer) as p:
        try:
            for _ in range(2):
                step(net, optimizer, saved)
        except ValueError:
            raised = True
    assert before == {id(module): list(map(id, module._forward_hooks)) for module in net.modules()}
    return {
        "problem": p.problem,
        "raised": raised,
        "missing": p.profile.modules_missing,
        "modules": {one.path: {name.value: held for name, held in one.own.items()} for one in p.profile.modules},
        "outside_bytes": p.profile.outside_modules_bytes,
        "saved_bytes": sum(saved.values()),
        "parameter_bytes": sum(one.untyped_storage().nbytes() for one in net.parameters()),
        "word": None if set_word is None else torch._C._cuda_getMemoryMetadata(),
        "optimizer_hooks": len(optimizers._global_optimizer_pre_hooks),
        "hooks": [
            len(modules._global_forward_pre_hooks), len(modules._global_forward_hooks),
            len(modules._global_forward_hooks_always_called),
        ],
        "text": str(p),
        "page": p.to_html(f"{OUT}.html").read_text(encoding="utf-8"),
    }  # fmt: skip


with open(f"{OUT}.json", "w") as file:
    json.dump(main(), file)
