"""A second phase of training, from step 120 on, keeps what it distils from; the first phase is without fault."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["targets", "Distill"], "cause": ["python_container"]}


class Pretrain:
    def __call__(self, model, x):
        return model(x).square().mean()


class Distill:
    targets = {}

    def __init__(self, teacher):
        self.teacher = teacher

    def __call__(self, model, x):
        with torch.no_grad():
            target = self.teacher(x)  # LEAK
        Distill.targets[id(target)] = target  # HELD
        return (model(x) - target).square().mean()


model, teacher = nn.Linear(256, 700).cuda(), nn.Linear(256, 700).cuda()
optimizer = torch.optim.Adam(model.parameters())
phases = [Pretrain(), Distill(teacher)]
for step in steps():
    phase = phases[step >= 120]
    phase(model, torch.rand(400, 256, device="cuda")).backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
