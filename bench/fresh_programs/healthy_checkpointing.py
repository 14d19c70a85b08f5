"""Activation checkpointing of a stack with stochastic depth; some layers are skipped in each step."""

import random

import torch
from loop import steps
from torch import nn
from torch.utils.checkpoint import checkpoint

TRUTH = None


class Stack(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.SiLU()) for _ in range(depth))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if random.random() > number / len(self.layers) * 0.5:
                x = x + checkpoint(layer, x, use_reentrant=False)
        return x


random.seed(1)
stack = Stack(10).cuda()
optimizer = torch.optim.Adam(stack.parameters())
for _ in steps():
    stack(torch.rand(random.randint(400, 900), 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
