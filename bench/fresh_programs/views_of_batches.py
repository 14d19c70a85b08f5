"""As in image loggers: the first image of each batch is kept, a view that holds its whole batch."""

import random

import torch
from loop import steps

TRUTH = {"holder": ["examples"], "cause": ["python_container"]}


class ImageLogger:
    def __init__(self):
        self.examples = {}

    def log(self, step, batch):
        self.examples[f"train/{step:06d}"] = batch[0]  # HELD


def load_batch(size):
    return torch.rand(size, 3, 64, 64, device="cuda")  # LEAK


def main():
    random.seed(8)
    logger = ImageLogger()
    model = torch.nn.Linear(64, 16).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps():
        batch = load_batch(random.randint(16, 48))  # CALLER
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        logger.log(step, batch)


main()
