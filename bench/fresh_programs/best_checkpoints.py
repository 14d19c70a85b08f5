"""The best checkpoints in a heap; the comparison that should drop the worst looks at the wrong number."""

import copy
import heapq

import torch
from loop import steps

TRUTH = {"holder": ["best"], "cause": ["python_container"]}


class Checkpoints:
    def __init__(self, most=3):
        self.most = most
        self.best = []

    def offer(self, score, step, model):
        weights = copy.deepcopy(model.state_dict())  # LEAK
        heapq.heappush(self.best, (score, step, weights))  # HELD
        if self.best[0][1] > self.most * 1_000_000:  # should be len(self.best) > self.most
            heapq.heappop(self.best)


def main():
    model = torch.nn.Linear(540, 540).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = Checkpoints()
    for step in steps():
        model(torch.rand(32, 540, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpoints.offer(step * 0.9, step, model)  # CALLER


main()
