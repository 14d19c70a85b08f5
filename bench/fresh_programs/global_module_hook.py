"""A hook for all modules, from a debugging session, that stores the outputs of linear layers."""

import torch
from loop import steps
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

TRUTH = {"holder": ["captured"], "cause": ["hook"]}


class ActivationTap:
    def __init__(self):
        self.captured = []
        self.handle = register_module_forward_hook(self.on_forward)

    def on_forward(self, module, args, output):
        if isinstance(module, nn.Linear) and output.size(-1) == 640:
            self.captured.append(output.detach().half())  # LEAK  # HELD


def main():
    ActivationTap()
    model = nn.Sequential(nn.Linear(320, 640), nn.SiLU(), nn.Linear(640, 32)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        model(torch.rand(800, 320, device="cuda")).square().mean().backward()  # CALLER
        optimizer.step()
        optimizer.zero_grad()


main()
