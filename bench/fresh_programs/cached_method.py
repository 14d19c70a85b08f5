"""functools.cache on a method that is called with the step."""

import functools

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["dropout_mask"], "cause": ["python_container"]}


class Scheduled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.layer = nn.Linear(width, width)

    @functools.cache  # HELD
    def dropout_mask(self, step):
        return torch.full((self.width, self.width), 1.0 / (1 + step), device="cuda")  # LEAK

    def forward(self, x, step):
        return self.layer(x) * self.dropout_mask(step)  # CALLER


def main():
    model = Scheduled(520).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        model(torch.rand(520, 520, device="cuda"), step).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
