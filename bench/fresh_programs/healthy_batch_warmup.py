"""A warm-up of the batch size: it grows for 150 steps, with the peak, and ends."""

import torch
from loop import steps
from torch import nn

TRUTH = None

WARM_UP = 150


def batch_size(step):
    return 64 + 8 * min(step, WARM_UP)


model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in steps():
    x = torch.rand(batch_size(step), 256, device="cuda")
    (model(x) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
