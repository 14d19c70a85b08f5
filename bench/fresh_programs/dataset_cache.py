"""A dataset with a cache on the GPU, whose keys contain the epoch."""

import torch
from loop import steps
from torch.utils.data import DataLoader, Dataset

TRUTH = {"holder": ["_cache"], "cause": ["python_container"]}


class Clips(Dataset):
    def __init__(self, count):
        self.count = count
        self.epoch = 0
        self._cache = {}

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        key = (self.epoch, index)
        if key not in self._cache:
            self._cache[key] = torch.rand(64, 768, device="cuda")  # LEAK  # HELD
        return self._cache[key]


def endless(loader):
    while True:
        yield from loader  # CALLER
        loader.dataset.epoch += 1


def main():
    batches = endless(DataLoader(Clips(32), batch_size=8))
    model = torch.nn.Linear(768, 12).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps():
        model(next(batches)).mean().backward()  # CALLER
        optimizer.step()
        optimizer.zero_grad()


main()
