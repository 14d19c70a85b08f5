"""As in tree models with gc switched off: an inner function that calls itself is a cycle, with what it closes over."""

import gc

import torch
from loop import steps

TRUTH = {"holder": ["visit"], "cause": ["cycle", "closure"]}


def encode_tree(model, leaves):
    states = model(leaves).detach()  # LEAK

    def visit(first, last):
        if last - first == 1:
            return states[first]
        middle = (first + last) // 2
        return visit(first, middle) + visit(middle, last)  # HELD

    return visit(0, 8)


def main():
    gc.disable()
    model = torch.nn.Linear(192, 384).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        leaves = torch.rand(8, 64, 192, device="cuda")
        model(leaves).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        encode_tree(model, leaves)  # CALLER


main()
