"""As PyTorch warns of backward(create_graph=True): a probe and its gradients hold each other in C++ after its use."""

import warnings

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": [".grad", "grad_fn", "Parameter"], "cause": ["retained_graph", "cycle"]}


def sharpness(features):
    probe = nn.Linear(400, 400, device="cuda")  # LEAK
    loss = probe(features).square().mean()  # LEAK
    loss.backward(create_graph=True)  # LEAK  # HELD
    return sum(parameter.grad.detach().norm() for parameter in probe.parameters())


def main():
    warnings.simplefilter("ignore")
    body = nn.Linear(100, 400).cuda()
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    for step in steps():
        features = body(torch.rand(256, 100, device="cuda"))  # LEAK
        features.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 50 and step % 5 == 0:
            sharpness(features.detach())  # CALLER


main()
