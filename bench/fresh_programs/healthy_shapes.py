"""Twelve image sizes in turn at random, with a grid for each in a dict."""

import random

import torch
from loop import steps

TRUTH = None

random.seed(11)
grids = {}
model = torch.nn.Conv2d(3, 8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in steps():
    size = 128 + 32 * random.randrange(12)
    if size not in grids:
        grids[size] = torch.rand(1, 1, size, size, device="cuda")
    (model(torch.rand(2, 3, size, size, device="cuda")) * grids[size]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
