"""A window of a fixed length turns over once in thirty steps; what grows is an archive of blocks of the same size."""

from collections import deque

import torch
from loop import steps

TRUTH = {"holder": ["archive"], "cause": ["python_container"]}


class Recorder:
    def __init__(self):
        self.window = deque(maxlen=32)
        self.archive = {}

    def record(self, step, out):
        self.window.append(out * 2)
        self.archive[step] = out + 1  # LEAK  # HELD


def main():
    recorder = Recorder()
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        out = model(torch.rand(512, 512, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.record(step, out.detach())  # CALLER


main()
