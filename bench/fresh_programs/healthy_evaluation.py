"""An evaluation every 25 steps with averaged weights: predictions pile up within it and are reduced to numbers."""

import copy

import torch
from loop import steps
from torch import nn

TRUTH = None


@torch.no_grad()
def average(averaged, model, decay=0.99):
    for mine, theirs in zip(averaged.parameters(), model.parameters(), strict=True):
        mine.lerp_(theirs, 1 - decay)


@torch.no_grad()
def evaluate(model):
    predictions = []
    for size in range(300, 700, 10):
        predictions += [model(torch.rand(size, 128, device="cuda"))]
    return torch.cat(predictions).mean().item()


def main():
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 200)).cuda()
    averaged = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scores = []
    for step in steps():
        model(torch.rand(256, 128, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average(averaged, model)
        if step % 25 == 24:
            scores.append(evaluate(averaged))


main()
