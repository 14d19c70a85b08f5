"""Prioritised replay: a sum tree of fixed capacity, full after a third of the run."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = None


class SumTree:
    def __init__(self, capacity):
        self.capacity, self.next = capacity, 0
        self.tree, self.data = [0.0] * (2 * capacity - 1), [None] * capacity

    def add(self, priority, transition):
        self.data[self.next] = transition
        index = self.next + self.capacity - 1
        change = priority - self.tree[index]
        while True:
            self.tree[index] += change
            if index == 0:
                break
            index = (index - 1) // 2
        self.next = (self.next + 1) % self.capacity

    def sample(self):
        return random.choice([item for item in self.data if item is not None])


random.seed(3)
tree = SumTree(130)
q = nn.Linear(512, 18).cuda()
optimizer = torch.optim.Adam(q.parameters())
for _ in steps():
    state = torch.rand(400, 512, device="cuda")
    tree.add(random.random(), (state, q(state).detach()))
    state, target = tree.sample()
    nn.functional.smooth_l1_loss(q(state), target).backward()
    optimizer.step()
    optimizer.zero_grad()
