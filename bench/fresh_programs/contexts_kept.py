"""A custom autograd function puts its contexts into a list, for a plot of the quantisation that nobody draws."""

import torch
from loop import steps

TRUTH = {"holder": ["contexts"], "cause": ["python_container", "retained_graph"]}


class Quantize(torch.autograd.Function):
    contexts = []

    @staticmethod
    def forward(ctx, x):
        ctx.rounded = torch.round(x * 16) / 16  # LEAK
        Quantize.contexts.append(ctx)  # HELD
        return ctx.rounded.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def main():
    layer = torch.nn.Linear(600, 600).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
    for _ in steps():
        out = Quantize.apply(layer(torch.rand(450, 600, device="cuda")))  # CALLER
        out.abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
