"""A singleton metaclass that keeps one instance for each set of arguments."""

import torch
from loop import steps

TRUTH = {"holder": ["_instances"], "cause": ["python_container"]}


class Singleton(type):
    _instances = {}

    def __call__(cls, *args):
        key = (cls, args)
        if key not in cls._instances:
            cls._instances[key] = super().__call__(*args)  # HELD  # CALLER
        return cls._instances[key]


class CausalMask(metaclass=Singleton):
    def __init__(self, length, offset):
        self.mask = torch.ones(length, length, device="cuda") * offset  # LEAK


attention = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(attention.parameters())
for step in steps():
    mask = CausalMask(512, step).mask  # CALLER
    scores = attention(torch.rand(512, 512, device="cuda")) + mask
    scores.softmax(-1).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
