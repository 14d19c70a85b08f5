"""Sliding windows with a maxlen each, in a dict that gets a new window each step."""

from collections import deque

import torch
from loop import steps

TRUTH = {"holder": ["windows"], "cause": ["python_container"]}


class SmoothedValues:
    def __init__(self, size=4):
        self.size = size
        self.windows = {}

    def add(self, key, value):
        self.windows.setdefault(key, deque(maxlen=self.size)).append(value)  # HELD


model = torch.nn.Linear(1000, 100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
smoothed = SmoothedValues()
for step in steps():
    x = torch.rand(300, 1000, device="cuda")
    model(x).mean().backward()
    smoothed.add(f"input/{step}", x * x)  # LEAK
    optimizer.step()
    optimizer.zero_grad()
