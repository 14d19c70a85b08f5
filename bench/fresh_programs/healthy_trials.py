"""Trials of a hyper-parameter search one after the other; the model of the best one is kept."""

import itertools
import random

import torch
from loop import steps
from torch import nn

TRUTH = None


def run_trial(clock, width):
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 256)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    done = 0
    for _ in itertools.islice(clock, 8):
        model(torch.rand(128, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
    return (random.random(), model) if done else None


random.seed(13)
clock, best, tried = steps(), None, []
while (result := run_trial(clock, random.choice((256, 512, 768, 1024)))) is not None:
    tried.append(result[0])
    if best is None or result[0] > best[0]:
        best = result
