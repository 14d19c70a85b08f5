"""A replay buffer of one tensor, filled slice by slice."""

import torch
from loop import steps

TRUTH = None

buffer = torch.zeros(200, 64, 512, device="cuda")
model = torch.nn.Linear(512, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in steps():
    state = torch.rand(64, 512, device="cuda")
    buffer[step % len(buffer)] = state
    model(buffer[max(0, step % len(buffer) - 4) :][:4]).logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
