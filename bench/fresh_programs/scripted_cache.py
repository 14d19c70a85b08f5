"""A TorchScript module with a list of keys, which grows in C++."""

import warnings

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["Streaming", "streaming"], "cause": ["python_container"]}


class Streaming(nn.Module):
    keys: list[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(512, 512)
        self.keys = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = self.project(x)
        self.keys.append(key.detach() * 1.5)  # LEAK  # HELD
        return key


def main():
    warnings.simplefilter("ignore")
    streaming = torch.jit.script(Streaming().cuda())
    optimizer = torch.optim.Adam(streaming.parameters())
    for _ in steps():
        x = torch.rand(512, 512, device="cuda")
        out = streaming(x)  # LEAK  # CALLER
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
