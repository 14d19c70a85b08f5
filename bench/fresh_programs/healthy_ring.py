"""A ring buffer in a list of its full length."""

import torch
from loop import steps

TRUTH = None

ring = [None] * 48
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in steps():
    out = model(torch.rand(512, 512, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ring[step % len(ring)] = out.detach() * 2
