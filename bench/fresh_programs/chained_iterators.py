"""Hard batches are chained behind the stream of batches to come, and nobody reads that far."""

import itertools

import torch
from loop import steps

TRUTH = {"holder": ["stream", "chain"], "cause": ["python_container"]}


def main():
    stream = iter(())
    model = torch.nn.Linear(512, 32).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps():
        batch = torch.rand(600, 512, device="cuda")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stream = itertools.chain(stream, [batch.flip(0)])  # LEAK  # HELD
    del stream


main()
