"""PCGrad: gradients of two tasks are projected, and each pair's conflict is kept for a plot."""

import collections

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["conflicts"], "cause": ["python_container"]}


class PCGrad:
    def __init__(self, optimizer, parameters):
        self.optimizer, self.parameters = optimizer, list(parameters)
        self.conflicts = collections.defaultdict(list)

    def step(self, losses):
        flat = [self._gradient(loss) for loss in losses]
        for i in range(len(flat)):
            for j in range(len(flat)):
                if i != j:
                    flat[i] = flat[i] - self._projection(i, j, flat)  # CALLER
        self._write(sum(flat))
        self.optimizer.step()

    def _gradient(self, loss):
        grads = torch.autograd.grad(loss, self.parameters, retain_graph=True)
        return torch.cat([grad.flatten() for grad in grads])

    def _projection(self, i, j, flat):
        along = flat[j] * (flat[i] @ flat[j] / (flat[j] @ flat[j] + 1e-8)).clamp(max=0)  # LEAK
        self.conflicts[i, j].append(along)  # HELD
        return along

    def _write(self, total):
        begin = 0
        for parameter in self.parameters:
            parameter.grad = total[begin : begin + parameter.numel()].view_as(parameter).clone()
            begin += parameter.numel()


trunk, heads = nn.Linear(300, 400).cuda(), [nn.Linear(400, 10).cuda() for _ in range(2)]
surgeon = PCGrad(torch.optim.Adam(trunk.parameters()), trunk.parameters())
for _ in steps():
    features = torch.relu(trunk(torch.rand(256, 300, device="cuda")))
    surgeon.step([head(features).square().mean() for head in heads])  # CALLER
