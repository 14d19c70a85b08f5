"""As in Optuna searches in one process: the trainer of each trial is one of the trial's user attributes."""

import itertools
from dataclasses import dataclass, field

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["trials"], "cause": ["python_container", "optimizer_rebuilt"]}


@dataclass
class Trial:
    number: int
    user_attrs: dict = field(default_factory=dict)


class Study:
    def __init__(self):
        self.trials = []

    def optimize(self, objective):
        done = True
        while done:
            self.trials.append(Trial(len(self.trials)))  # HELD
            done = objective(self.trials[-1])  # CALLER


def main():
    clock = steps()

    def objective(trial):
        model = nn.Sequential(nn.Linear(256, 512, device="cuda"), nn.ReLU(), nn.Linear(512, 8, device="cuda"))  # LEAK
        optimizer = torch.optim.Adam(model.parameters(), lr=10.0 ** -(1 + trial.number % 4))
        trial.user_attrs["trainer"] = (model, optimizer)
        done = 0
        for _ in itertools.islice(clock, 6):
            optimizer.zero_grad()
            model(torch.rand(64, 256, device="cuda")).square().mean().backward()  # LEAK
            optimizer.step()  # LEAK
            done += 1
        return done

    Study().optimize(objective)  # CALLER


main()
