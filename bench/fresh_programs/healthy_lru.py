"""functools.lru_cache over lengths, of which there are many and the cache keeps few."""

import functools

import torch
from loop import steps

TRUTH = None


@functools.lru_cache(maxsize=60)
def mask(length):
    return torch.ones(length, length, device="cuda").tril()


layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(layer.parameters())
for step in steps():
    length = 256 + (step * 37) % 300
    scores = layer(torch.rand(length, 64, device="cuda")) @ torch.rand(64, length, device="cuda")
    (scores * mask(length)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
