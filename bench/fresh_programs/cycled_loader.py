"""itertools.cycle around a loader, for a number of steps that is no multiple of the epoch; cycle keeps each batch."""

import itertools

import torch
from loop import steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {"holder": ["cycle", "batches", "_endless"], "cause": ["python_container"]}


class OnDevice:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for (batch,) in self.loader:
            yield batch.to("cuda")  # LEAK


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps():
        model(next(batches)).square().mean().backward()  # CALLER
        optimizer.step()
        optimizer.zero_grad()


rows = TensorDataset(torch.zeros(100_000, 4))
loader = DataLoader(rows, batch_size=64, shuffle=True, collate_fn=lambda items: (torch.zeros(len(items), 4096),))
train(nn.Linear(4096, 32).cuda(), itertools.cycle(OnDevice(loader)))
