"""Gathered metrics of each rank, in a list of lists, for an all-gather that comes at the end."""

import torch
from loop import steps

TRUTH = {"holder": ["gathered"], "cause": ["python_container"]}

WORLD_SIZE, RANK = 4, 0


class Gatherer:
    def __init__(self):
        self.gathered = [[] for _ in range(WORLD_SIZE)]

    def __call__(self, tensor):
        self.gathered[RANK] += [tensor.detach().clone()]  # LEAK  # HELD


gather = Gatherer()
model = torch.nn.Linear(450, 450).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in steps():
    out = model(torch.rand(600, 450, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    gather(out)  # CALLER
