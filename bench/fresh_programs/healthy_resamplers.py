"""Speech with speed perturbation: a resampling kernel for each factor in a dict, and factors are rounded."""

import random

import torch
from loop import steps

TRUTH = None


class Resampler:
    def __init__(self):
        self.kernels = {}

    def __call__(self, waves, factor):
        factor = round(factor, 2)
        if factor not in self.kernels:
            self.kernels[factor] = torch.ones(512, int(512 * factor), device="cuda") / 512
        return waves @ self.kernels[factor]


random.seed(17)
resample = Resampler()
model = torch.nn.Linear(1, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    waves = resample(torch.rand(32, 512, device="cuda"), random.uniform(0.9, 1.1))
    model(waves[..., None]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
