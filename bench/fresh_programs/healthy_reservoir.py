"""A reservoir sample of all batches: it is full after a while, and later ones replace others by chance."""

import random

import torch
from loop import steps

TRUTH = None


class Reservoir:
    def __init__(self, size):
        self.size, self.kept, self.seen = size, [], 0

    def offer(self, batch):
        self.seen += 1
        if len(self.kept) < self.size:
            self.kept.append(batch)
        elif (place := random.randrange(self.seen)) < self.size:
            self.kept[place] = batch


random.seed(16)
reservoir = Reservoir(64)
model = torch.nn.Linear(400, 40).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in steps():
    batch = torch.rand(random.randint(300, 700), 400, device="cuda")
    model(torch.cat([batch, *random.sample(reservoir.kept, min(2, reservoir.seen))])).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    reservoir.offer(batch)
