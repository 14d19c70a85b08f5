"""Continual learning: an optimizer of its own for each task, which the task's scheduler in a list keeps alive."""

import torch
from loop import steps
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

TRUTH = {"holder": ["schedulers"], "cause": ["optimizer_rebuilt"]}

STEPS_OF_TASK = 4


def optimizer_of(model, schedulers):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedulers.append(LambdaLR(optimizer, lambda step: 0.99**step))  # HELD
    return optimizer


model = nn.Sequential(nn.Linear(512, 800), nn.ReLU(), nn.Linear(800, 100)).cuda()
schedulers = []
for step in steps():
    if step % STEPS_OF_TASK == 0:
        optimizer = optimizer_of(model, schedulers)
    model(torch.rand(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()  # LEAK
    optimizer.zero_grad()
    schedulers[-1].step()
