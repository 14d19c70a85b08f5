"""Layers are unfrozen one by one during the first ninety steps, and Adam makes their state then."""

import torch
from loop import steps
from torch import nn

TRUTH = None

model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).cuda().requires_grad_(False)
model[-1].requires_grad_(True)
optimizer = torch.optim.Adam(model[-1].parameters())
for step in steps():
    if step % 18 == 17 and step < 90:
        layer = model[-2 - step // 18].requires_grad_(True)
        optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-4})
    model(torch.rand(128, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
