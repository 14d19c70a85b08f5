"""As in pytorch-grad-cam: a forward hook hooks the output's gradient, and gradients are put before the older ones."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["gradients"], "cause": ["hook"]}


class ActivationsAndGradients:
    def __init__(self, layer):
        self.gradients = []
        self.explaining = False
        layer.register_forward_hook(self.save_gradient)

    def save_gradient(self, module, inputs, output):
        def store(gradient):
            self.gradients = [gradient.detach().clone(), *self.gradients]  # LEAK  # HELD

        if self.explaining:
            output.register_hook(store)


def main():
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    cam = ActivationsAndGradients(model[0])
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        cam.explaining = step % 5 == 0
        model(torch.rand(1024, 256, device="cuda")).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
