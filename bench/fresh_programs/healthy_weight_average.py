"""The latest average of weights: snapshots of all parameters in a deque of 60, one every third step."""

import collections

import torch
from loop import steps
from torch import nn

TRUTH = None

latest = collections.deque(maxlen=60)
model = nn.Sequential(nn.Linear(512, 600), nn.ReLU(), nn.Linear(600, 100)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in steps():
    model(torch.rand(128, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 0:
        latest.append([parameter.detach().clone() for parameter in model.parameters()])
    if step % 100 == 99:
        averages = [torch.stack(copies).mean(dim=0) for copies in zip(*latest, strict=True)]
        del averages
