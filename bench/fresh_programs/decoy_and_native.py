"""The same window; what grows is known to atexit alone."""

import atexit
from collections import deque

import torch
from loop import steps

TRUTH = {"holder": ["atexit"], "cause": ["python_container"]}


def main():
    window = deque(maxlen=32)
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        out = model(torch.rand(512, 512, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        window.append(out.detach() * 2)
        atexit.register(torch.Tensor.dim, out.detach() + 1)  # LEAK  # HELD


main()
