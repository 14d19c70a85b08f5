"""weakref.finalize is to return workspaces to a pool when their owner goes; but owners do not go."""

import weakref

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["finalize", "_registry", "owners"], "cause": ["python_container"]}


class Owner:
    __slots__ = ("__weakref__", "number")

    def __init__(self, number):
        self.number = number


class Pool:
    def __init__(self):
        self.free, self.owners = [], []

    def lend(self, number):
        workspace = self.free.pop() if self.free else torch.empty(300_000, device="cuda")  # LEAK
        owner = Owner(number)
        weakref.finalize(owner, self.free.append, workspace)  # HELD
        self.owners.append(owner)  # the reason
        return workspace


pool = Pool()
model = nn.Linear(300, 1000).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in steps():
    workspace = pool.lend(step).view(300, 1000)  # CALLER
    out = model(torch.rand(300, 300, device="cuda"))
    workspace.copy_(out.detach())
    (out - workspace).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
