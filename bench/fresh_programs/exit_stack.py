"""Clean-up of each step goes onto an ExitStack that is closed when training ends."""

import contextlib

import torch
from loop import steps

TRUTH = {"holder": ["_exit_callbacks"], "cause": ["python_container", "closure"]}


def release(buffer):
    buffer.zero_()


def train(stack):
    model = torch.nn.Linear(384, 384).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        staging = torch.ones(700, 384, device="cuda")  # LEAK
        stack.callback(release, staging)  # HELD
        model(staging).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


with contextlib.ExitStack() as stack:
    train(stack)  # CALLER
