"""A ChainMap as the scope of a step: each step makes a child of the one before it."""

from collections import ChainMap

import torch
from loop import steps

TRUTH = {"holder": ["scope"], "cause": ["python_container"]}


class Interpreter:
    def __init__(self):
        self.scope = ChainMap({"lr": 0.1})

    def enter(self, **names):
        self.scope = self.scope.new_child(names)  # HELD


def main():
    interpreter = Interpreter()
    model = torch.nn.Linear(500, 20).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=interpreter.scope["lr"])
    for step in steps():
        interpreter.enter(step=step, batch=torch.rand(600, 500, device="cuda"))  # LEAK
        model(interpreter.scope["batch"]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
