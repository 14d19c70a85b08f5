"""The five best checkpoints in a heap."""

import copy
import heapq
import random

import torch
from loop import steps

TRUTH = None

random.seed(7)
best = []
model = torch.nn.Linear(600, 600).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in steps():
    model(torch.rand(64, 600, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        heapq.heappush(best, (random.random(), step, copy.deepcopy(model.state_dict())))
        if len(best) > 5:
            heapq.heappop(best)
