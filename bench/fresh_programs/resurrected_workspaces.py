"""As in buffer pools that recycle in __del__: a workspace puts itself back, under a size that nobody asks for."""

import random
from collections import defaultdict

import torch
from loop import steps

TRUTH = {"holder": ["free"], "cause": ["python_container"]}

free = defaultdict(list)


class Workspace:
    def __init__(self, rows):
        self.rows = (rows // 64 + 1) * 64
        self.buffer = torch.zeros(self.rows, 512, device="cuda")  # LEAK

    def __del__(self):
        free[self.rows].append(self)  # HELD


def borrow(rows):
    if free[rows]:
        return free[rows].pop()
    return Workspace(rows)  # CALLER


def main():
    random.seed(1)
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        rows = random.randrange(101, 320, 2)
        workspace = borrow(rows)  # CALLER
        model(workspace.buffer[:rows]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
