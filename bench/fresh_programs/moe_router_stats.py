"""A mixture of experts counts where tokens go: each layer keeps its gates by expert."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["routed"], "cause": ["python_container"]}


class MoE(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.routed = [[] for _ in range(experts)]

    def forward(self, x):
        gates = torch.softmax(self.router(x), dim=-1)
        total = 0
        for number, expert in enumerate(self.experts):
            weighted = expert(x) * gates[:, number, None]
            self.routed[number].append(weighted.detach().half())  # LEAK  # HELD
            total = total + weighted
        return x + total


model = nn.Sequential(*[MoE(128, 4) for _ in range(3)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    model(torch.rand(400, 128, device="cuda")).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
