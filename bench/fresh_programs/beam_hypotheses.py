"""Beam search within training (minimum risk): live beams are pruned, finished hypotheses stay in a heap."""

import heapq
import itertools
from typing import NamedTuple

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["finished"], "cause": ["python_container"]}


class Hypothesis(NamedTuple):
    score: float
    number: int
    states: torch.Tensor


class Beams:
    def __init__(self, width):
        self.width, self.live, self.finished, self.numbers = width, [], [], itertools.count()

    def advance(self, cell, states):
        states = cell(states).detach()  # LEAK
        number = next(self.numbers)
        hypothesis = Hypothesis(-(number * 7919 % 101) / 101, number, states)
        self.live = heapq.nsmallest(self.width, [*self.live, hypothesis])
        if number % 2 == 0:
            heapq.heappush(self.finished, hypothesis)  # HELD


cell = nn.Linear(600, 600).cuda()
optimizer = torch.optim.Adagrad(cell.parameters())
beams = Beams(4)
for _ in steps():
    batch = torch.rand(500, 600, device="cuda")
    for _ in range(2):
        beams.advance(cell, batch)  # CALLER
    cell(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
