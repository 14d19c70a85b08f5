"""A hypernetwork makes weights for each task; they are remembered by the task's embedding as a tuple."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["generated"], "cause": ["python_container", "retained_graph"]}


class HyperNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 64)
        self.head = nn.Linear(64, 512 * 384)
        self.generated = {}

    def weights(self, task):
        if task not in self.generated:
            h = torch.tanh(self.trunk(torch.tensor(task, device="cuda")))  # LEAK
            self.generated[task] = self.head(h).view(512, 384)  # LEAK  # HELD
        return self.generated[task]


random.seed(5)
hyper = HyperNetwork().cuda()
optimizer = torch.optim.SGD(hyper.parameters(), lr=1e-3)
for _ in steps():
    task = tuple(random.gauss(0, 1) for _ in range(4))
    out = nn.functional.linear(torch.rand(200, 384, device="cuda"), hyper.weights(task))  # CALLER
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
