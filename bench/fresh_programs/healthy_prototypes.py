"""Prototypes are concatenated for classes that are new, of which there are thirty, and averaged for others."""

import random

import torch
from loop import steps

TRUTH = None

random.seed(15)
known, prototypes = [], torch.empty(0, 64, 512, device="cuda")
encoder = torch.nn.Linear(128, 512).cuda()
optimizer = torch.optim.Adam(encoder.parameters())
for _ in steps():
    label = random.randrange(30)
    features = encoder(torch.rand(64, 128, device="cuda"))
    features.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if label not in known:
        known.append(label)
        prototypes = torch.cat([prototypes, features.detach()[None]])
    else:
        prototypes[known.index(label)].lerp_(features.detach(), 0.1)
