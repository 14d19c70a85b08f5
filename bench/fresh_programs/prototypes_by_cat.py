"""As in few-shot learners: new prototypes are concatenated to the old ones, which nobody merges by class."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["prototypes"], "cause": ["python_container"]}


class PrototypeHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("prototypes", torch.zeros(1, width))

    @torch.no_grad()
    def enrol(self, features):
        self.prototypes = torch.cat([self.prototypes, features])  # LEAK  # HELD

    def forward(self, features):
        return features @ self.prototypes[-200:].T


def main():
    random.seed(9)
    encoder, head = nn.Linear(128, 320).cuda(), PrototypeHead(320).cuda()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    for _ in steps():
        features = encoder(torch.rand(random.randint(60, 140), 128, device="cuda"))
        head(features).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        head.enrol(features.detach())  # CALLER


main()
