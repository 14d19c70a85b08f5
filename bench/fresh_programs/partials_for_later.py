"""Work for "after the epoch" as functools.partial objects with their tensors."""

import functools

import torch
from loop import steps

TRUTH = {"holder": ["deferred"], "cause": ["python_container"]}


def write_image(grid, step):
    return grid.cpu(), step


class Deferred:
    def __init__(self):
        self.deferred = []

    def later(self, function, *args, **more):
        self.deferred.append(functools.partial(function, *args, **more))  # HELD


def main():
    later = Deferred()
    decoder = torch.nn.Linear(64, 1024).cuda()
    optimizer = torch.optim.Adam(decoder.parameters())
    for step in steps():
        images = decoder(torch.rand(256, 64, device="cuda"))
        images.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        later.later(write_image, images.detach().clamp(0, 1), step=step)  # LEAK


main()
