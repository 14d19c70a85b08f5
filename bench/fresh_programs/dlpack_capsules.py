"""As in bridges to other frameworks: DLPack capsules that nobody consumes hold their tensors in C++."""

import torch
from loop import steps
from torch.utils.dlpack import to_dlpack

TRUTH = {"holder": ["capsules"], "cause": ["python_container"]}


class Bridge:
    def __init__(self):
        self.capsules = []

    def export(self, tensor):
        self.capsules.append(to_dlpack(tensor))  # HELD


def embed(model, x):
    with torch.no_grad():
        return model(x).tanh()  # LEAK


def main():
    bridge = Bridge()
    model = torch.nn.Linear(300, 600).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        x = torch.rand(300, 300, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bridge.export(embed(model, x))  # CALLER


main()
