"""A context variable for the current batch is set each step; the tokens, which know the old value, are kept."""

import contextvars

import torch
from loop import steps

TRUTH = {"holder": ["tokens"], "cause": ["python_container"]}

current = contextvars.ContextVar("current", default=None)


class Scope:
    def __init__(self):
        self.tokens = []

    def enter(self, value):
        self.tokens.append(current.set(value))  # HELD

    def leave(self):
        pass  # forgotten: current.reset(self.tokens.pop())


def train(scope):
    layer = torch.nn.Linear(350, 350).cuda()
    optimizer = torch.optim.Adagrad(layer.parameters())
    for _ in steps():
        batch = torch.rand(900, 350, device="cuda")  # LEAK
        scope.enter(batch)
        layer(batch).relu().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scope.leave()


train(Scope())
