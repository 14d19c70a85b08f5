"""Predictions of each validation stay, for the confusion matrix of the last one; there is one every 30 steps."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["validations", "predictions"], "cause": ["python_container"]}


class Validation:
    def __init__(self, epoch):
        self.epoch, self.predictions = epoch, []

    @torch.no_grad()
    def run(self, model):
        for _ in range(24):
            scores = model(torch.rand(500, 128, device="cuda"))
            self.predictions.append(scores.softmax(dim=-1))  # LEAK
        return self


def main():
    model = nn.Linear(128, 800).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    validations = {}
    for step in steps():
        model(torch.rand(256, 128, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 30 == 29:
            validations[step // 30] = Validation(step // 30).run(model)  # CALLER  # HELD


main()
