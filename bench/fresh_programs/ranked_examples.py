"""Examples in the order of their loss, by bisect.insort, for quantiles of a curriculum that reads the middle alone."""

import bisect

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["ranked"], "cause": ["python_container"]}


class Curriculum:
    def __init__(self):
        self.ranked = []

    def put(self, loss, step, batch):
        entry = (float(loss), step, batch.half())  # LEAK
        bisect.insort(self.ranked, entry, key=lambda one: one[:2])  # HELD

    def middle(self):
        return self.ranked[len(self.ranked) // 2][2]


curriculum = Curriculum()
model = nn.Linear(512, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in steps():
    batch = torch.rand(800, 512, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    curriculum.put(loss.detach().cpu(), step, batch)  # CALLER
    model(curriculum.middle().float()).detach()
