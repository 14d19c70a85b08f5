"""Batches of random lengths, and gradients accumulated over four of them."""

import random

import torch
from loop import steps

TRUTH = None

random.seed(3)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in steps():
    x = torch.rand(4, random.randint(64, 512), 256, device="cuda")
    (model(x).square().mean() / 4).backward()
    optimizer.step() if step % 4 == 3 else None
    optimizer.zero_grad() if step % 4 == 3 else None
