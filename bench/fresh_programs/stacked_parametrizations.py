"""As in low-rank fine-tuning by parametrization: each task registers its delta on top of those of the tasks before."""

import torch
from loop import steps
from torch import nn
from torch.nn.utils import parametrize

TRUTH = {"holder": ["parametrizations"], "cause": ["python_container"]}


class Delta(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.delta = nn.Parameter(torch.zeros(width, width, device="cuda"), requires_grad=False)  # LEAK

    def forward(self, weight):
        return weight + self.delta


def begin_task(layer):
    parametrize.register_parametrization(layer, "weight", Delta(512), unsafe=True)  # CALLER  # HELD


def main():
    layer = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in steps():
        if step % 5 == 0:
            begin_task(layer)  # CALLER
        layer(torch.rand(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
