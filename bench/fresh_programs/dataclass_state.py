"""A trainer whose state is a dataclass, with a history by metric's name."""

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from loop import steps

TRUTH = {"holder": ["history"], "cause": ["python_container"]}


@dataclass
class TrainState:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    history: dict = field(default_factory=lambda: defaultdict(list))

    def log(self, **values):
        for name, value in values.items():
            self.history[name].append(value)  # HELD


def main():
    model = torch.nn.Linear(640, 640).cuda()
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    for state.step in steps():
        out = state.model(torch.rand(64, 640, device="cuda"))
        loss = out.pow(2).mean()
        loss.backward()
        grads = torch.cat([p.grad.flatten() for p in model.parameters()])  # LEAK
        state.log(step=state.step, gradients=grads)
        state.optimizer.step()
        state.optimizer.zero_grad()


main()
