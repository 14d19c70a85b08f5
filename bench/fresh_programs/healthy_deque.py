"""A deque with a maxlen that is reached after a while."""

from collections import deque

import torch
from loop import steps

TRUTH = None


def main():
    recent = deque(maxlen=80)
    model = torch.nn.Linear(256, 768).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps():
        out = model(torch.rand(400, 256, device="cuda"))
        out.mean().backward()
        recent.append(out.detach().clone())
        optimizer.step()
        optimizer.zero_grad()


main()
