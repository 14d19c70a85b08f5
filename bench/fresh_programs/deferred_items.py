"""Metrics that are not computed before somebody asks: bound methods of tensors, in a queue for the log."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["deferred"], "cause": ["python_container"]}


class Log:
    def __init__(self):
        self.deferred = []

    def scalar(self, name, compute):
        self.deferred.append((name, compute))  # HELD

    def flush(self):
        return {name: compute().item() for name, compute in self.deferred}


log = Log()
model = nn.Linear(200, 500).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    out = model(torch.rand(500, 200, device="cuda"))
    distance = (out.detach() - 1).abs()  # LEAK
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    log.scalar("distance", distance.mean)
