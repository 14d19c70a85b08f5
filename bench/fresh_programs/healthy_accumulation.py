"""Gradients are accumulated over 12 micro-batches; losses and features of these live until the optimizer's step."""

import torch
from loop import steps
from torch import nn

TRUTH = None

MICRO_BATCHES = 12

model = nn.Sequential(nn.Linear(300, 600), nn.Tanh(), nn.Linear(600, 100)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
features = []
for _ in steps():
    out = model(torch.rand(400, 300, device="cuda"))
    features.append(out)
    if len(features) == MICRO_BATCHES:
        rows = torch.cat(features)
        (rows - rows.mean(dim=0)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        features.clear()
        del rows, out
