"""As in pruning code: each parameter carries notes as an attribute, among them the gradient of each step."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["notes"], "cause": ["python_container"]}


def note_gradients(model):
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.notes["gradients"].append(parameter.grad.abs())  # LEAK  # HELD


model = nn.Sequential(nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 100)).cuda()
for parameter in model.parameters():
    parameter.notes = {"gradients": [], "pruned": False}
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    model(torch.rand(64, 400, device="cuda")).square().mean().backward()
    note_gradients(model)  # CALLER
    optimizer.step()
    optimizer.zero_grad()
