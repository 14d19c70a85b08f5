"""Running statistics as a generator-based coroutine, whose local list is all that it was ever sent."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["sent"], "cause": ["python_container"]}


def percentiles(levels):
    sent, answer = [], None
    while True:
        value = yield answer
        sent.append(value)  # HELD
        answer = [sent[int(level * (len(sent) - 1))] for level in levels]


def started(generator):
    next(generator)
    return generator


class Trainer:
    def __init__(self):
        self.model = nn.Linear(300, 300).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.statistics = {"norms": started(percentiles([0.1, 0.5, 0.9]))}

    def step(self):
        out = self.model(torch.rand(900, 300, device="cuda"))
        self.statistics["norms"].send(out.detach().abs())  # LEAK
        out.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


trainer = Trainer()
for _ in steps():
    trainer.step()  # CALLER
