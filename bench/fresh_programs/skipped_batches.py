"""Batches that fail are skipped; their errors carry the batch, and have no traceback any more."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["skipped", "BadBatchError"], "cause": ["python_container"]}


class BadBatchError(ValueError):
    def __init__(self, step, batch):
        super().__init__(f"step {step}: no labels")
        self.batch = batch


class Skipper:
    def __init__(self):
        self.skipped = set()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is BadBatchError:
            error.with_traceback(None).__context__ = None
            self.skipped.add(error)  # HELD
            return True
        return False


def load(step):
    batch = torch.rand(500, 700, device="cuda")  # LEAK
    if step % 3 != 1:
        raise BadBatchError(step, batch)
    return batch


def main():
    model = nn.Linear(700, 70).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    skipper = Skipper()
    for step in steps():
        with skipper:
            load(step)  # CALLER
        model(torch.rand(64, 700, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
