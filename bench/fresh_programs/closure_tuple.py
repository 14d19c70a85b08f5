"""A logging function that a factory makes; the factory's tuple grows."""

import torch
from loop import steps

TRUTH = {"holder": ["seen"], "cause": ["closure"]}


def make_recorder(every):
    seen = ()

    def record(step, tensor):
        nonlocal seen
        if step % every == 0:
            seen = (*seen, tensor.mul(0.5))  # LEAK  # HELD
        return len(seen)

    return record


def train():
    net = torch.nn.Sequential(torch.nn.Linear(128, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 1024)).cuda()
    opt = torch.optim.AdamW(net.parameters())
    record = make_recorder(every=1)
    for step in steps():
        y = net(torch.rand(320, 128, device="cuda"))
        y.abs().mean().backward()
        record(step, y.detach())  # CALLER
        opt.step()
        opt.zero_grad()


train()
