"""The values() of each step's dict of metrics, kept instead of the values' means."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["rows"], "cause": ["python_container"]}


def metrics(out):
    return {
        "positive": out.clamp(min=0),  # LEAK
        "negative": out.clamp(max=0),  # LEAK
    }


def fit(model, rows):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps():
        out = model(torch.rand(300, 128, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        rows.append(metrics(out.detach()).values())  # CALLER  # HELD


fit(nn.Linear(128, 400).cuda(), [])
