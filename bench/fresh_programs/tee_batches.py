"""itertools.tee: training reads one side, validation would read the other."""

import itertools

import torch
from loop import steps

TRUTH = {"holder": ["for_validation"], "cause": ["python_container"]}


def batches():
    while True:
        yield torch.rand(1024, 256, device="cuda")  # LEAK


def main():
    for_training, for_validation = itertools.tee(batches())
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        batch = next(for_training)  # CALLER
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del for_validation


main()
