"""An optimizer of one's own with Anderson acceleration: the iterates in its state are used up to the fifth last."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["iterates", "state"], "cause": ["optimizer_rebuilt", "python_container"]}


class Anderson(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                iterates = self.state[p].setdefault("iterates", [])
                iterates.append(p - group["lr"] * p.grad)  # LEAK  # HELD
                p.copy_(torch.stack(iterates[-5:]).mean(dim=0))


model = nn.Linear(500, 400).cuda()
optimizer = Anderson(model.parameters())
for _ in steps():
    model(torch.rand(128, 500, device="cuda")).square().mean().backward()
    optimizer.step()  # CALLER
    optimizer.zero_grad()
