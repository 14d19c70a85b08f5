"""Speculative decoding as an auxiliary task: keys and values of drafted tokens are put aside for a rollback."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["rollback"], "cause": ["python_container"]}

LAYERS, HEADS, WIDTH = 3, 8, 64


class Draft(nn.Module):
    def __init__(self):
        super().__init__()
        self.kv = nn.ModuleList(nn.Linear(HEADS * WIDTH, 2 * HEADS * WIDTH) for _ in range(LAYERS))
        self.rollback = {layer: [] for layer in range(LAYERS)}

    def forward(self, x, tokens):
        for layer, kv in enumerate(self.kv):
            keys, values = kv(x).chunk(2, dim=-1)
            drafted = keys[-tokens:].detach().clone(), values[-tokens:].detach().clone()  # LEAK
            self.rollback[layer].append(drafted)  # HELD
            x = x + keys * values
        return x


draft = Draft().cuda()
optimizer = torch.optim.AdamW(draft.parameters())
for step in steps():
    hidden = draft(torch.rand(160, HEADS * WIDTH, device="cuda"), tokens=(96, 128)[step % 2])  # CALLER
    hidden.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
