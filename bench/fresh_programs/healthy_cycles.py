"""Cycles in each step, which the garbage collector finds now and then."""

import torch
from loop import steps

TRUTH = None


class Node:
    def __init__(self, tensor):
        self.tensor = tensor
        self.me = self
        self.names = [{"n": number} for number in range(40)]


model = torch.nn.Linear(300, 300).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    out = model(torch.rand(300, 300, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    Node(out.detach() * 2)
