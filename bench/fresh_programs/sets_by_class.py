"""Hard examples in a dict of sets, by class."""

import collections

import torch
from loop import steps

TRUTH = {"holder": ["hard_examples"], "cause": ["python_container"]}


class Miner:
    def __init__(self):
        self.hard_examples = collections.defaultdict(set)

    def mine(self, label, batch):
        hard = batch[: batch.size(0) // 2] * 1.0  # LEAK
        self.hard_examples[label].add(hard)  # HELD


def main():
    miner = Miner()
    model = torch.nn.Linear(500, 20).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        batch = torch.rand(1000, 500, device="cuda")
        model(batch).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        miner.mine(step % 20, batch)  # CALLER


main()
