"""An adapter for each step that knows its owner, which knows the adapter; gc was switched off for speed."""

import gc

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["Adapter."], "cause": ["cycle"]}


class Owner:
    def __init__(self, width):
        self.adapter = Adapter(self, width)  # CALLER  # HELD


class Adapter(nn.Module):
    def __init__(self, owner, width):
        super().__init__()
        self.owner = [owner]
        self.scale = nn.Parameter(torch.ones(width, width, device="cuda"))  # LEAK

    def forward(self, x):
        return x @ self.scale.detach()


def main():
    gc.disable()
    model = nn.Linear(448, 448).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        adapter = Owner(448).adapter  # CALLER
        model(adapter(torch.rand(64, 448, device="cuda"))).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
