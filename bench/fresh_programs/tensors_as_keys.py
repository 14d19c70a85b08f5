"""Visits are counted in a Counter, with the states themselves as keys."""

from collections import Counter

import torch
from loop import steps

TRUTH = {"holder": ["visits"], "cause": ["python_container"]}


class Explorer:
    def __init__(self):
        self.visits = Counter()
        self.q = torch.nn.Linear(300, 6).cuda()

    def bonus(self, state):
        self.visits[state] += 1  # HELD
        return self.visits[state] ** -0.5


explorer = Explorer()
optimizer = torch.optim.Adam(explorer.q.parameters())
for _ in steps():
    state = torch.rand(1000, 300, device="cuda")  # LEAK
    (explorer.q(state).logsumexp(-1).mean() * explorer.bonus(state)).backward()
    optimizer.step()
    optimizer.zero_grad()
