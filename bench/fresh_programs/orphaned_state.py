"""The head is replaced each step; the optimizer keeps the state of the heads that are gone."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": [".state"], "cause": ["optimizer_rebuilt"]}


def new_head():
    return nn.Linear(256, 512, device="cuda")  # LEAK


def main():
    body = nn.Linear(256, 256).cuda()
    head = new_head()
    optimizer = torch.optim.Adam([{"params": body.parameters()}, {"params": head.parameters()}])
    for _ in steps():
        head(body(torch.rand(64, 256, device="cuda"))).mean().backward()
        optimizer.step()  # LEAK  # HELD
        optimizer.zero_grad()
        head = new_head()  # CALLER
        optimizer.param_groups[1]["params"] = list(head.parameters())


main()
