"""Vector quantisation as an autograd.Function, which keeps its codes on the class for a usage histogram."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["Quantise", "usage"], "cause": ["python_container"]}


class Quantise(torch.autograd.Function):
    usage = []

    @staticmethod
    def forward(ctx, x, codebook):
        scores = x @ codebook.T  # LEAK
        Quantise.usage.append(scores)  # HELD
        ctx.save_for_backward(x, codebook)
        return scores.softmax(dim=-1) @ codebook

    @staticmethod
    def backward(ctx, grad):
        x, codebook = ctx.saved_tensors
        return grad, (x @ codebook.T).softmax(dim=-1).T @ grad


codebook = nn.Parameter(torch.rand(320, 64, device="cuda"))
encoder = nn.Linear(100, 64).cuda()
optimizer = torch.optim.Adam([codebook, *encoder.parameters()])
for _ in steps():
    latent = encoder(torch.rand(800, 100, device="cuda"))
    Quantise.apply(latent, codebook).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
