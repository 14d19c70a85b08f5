"""An evolution strategy, without gradients or a torch optimizer; noise of each generation is kept for the ranking."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["generations", "noises"], "cause": ["python_container"]}


class Strategy:
    def __init__(self, model, population, sigma=0.02):
        self.model, self.population, self.sigma, self.generations = model, population, sigma, []

    @torch.no_grad()
    def generation(self, x):
        parameter, fitnesses, noises = self.model.weight, [], []
        for _ in range(self.population):
            noise = torch.randn_like(parameter) * self.sigma  # LEAK
            fitnesses.append(nn.functional.linear(x, parameter + noise).mean())
            noises.append(noise)
        self.generations.append({"noises": noises, "fitness": torch.stack(fitnesses)})  # HELD
        parameter += sum(noise * fitness for noise, fitness in zip(noises, fitnesses, strict=True))


strategy = Strategy(nn.Linear(250, 200, bias=False).cuda(), population=6)
for _ in steps():
    strategy.generation(torch.rand(128, 250, device="cuda"))  # CALLER
