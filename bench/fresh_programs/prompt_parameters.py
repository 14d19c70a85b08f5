"""Continual prompts: an nn.ParameterList that gets longer each step."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["prompts"], "cause": ["python_container"]}


class Prompted(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(768, 768)
        self.prompts = nn.ParameterList()

    def grow(self):
        self.prompts.append(nn.Parameter(torch.zeros(400, 768, device="cuda"), requires_grad=False))  # LEAK  # HELD

    def forward(self, x):
        return self.backbone(x + self.prompts[-1])


model = Prompted().cuda()
optimizer = torch.optim.SGD(model.backbone.parameters(), lr=1e-3)
for _ in steps():
    model.grow()  # CALLER
    model(torch.rand(400, 768, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
