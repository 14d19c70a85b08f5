"""A metric with update() and compute(); predictions come with their graphs, and compute() is never called."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["preds"], "cause": ["retained_graph"]}


class Metric:
    def __init__(self):
        self.preds, self.target = [], []

    def update(self, preds, target):
        self.preds.append(preds)  # HELD
        self.target.append(target)

    def compute(self):
        return (torch.cat(self.preds) - torch.cat(self.target)).abs().mean()


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(3)])
        self.last = nn.Linear(256, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(layer(x))  # LEAK
        return self.last(x)  # LEAK


def main():
    model, mae = Regressor().cuda(), Metric()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        x, y = torch.rand(384, 256, device="cuda"), torch.rand(384, 1, device="cuda")  # LEAK
        preds = model(x)  # CALLER
        loss = (preds - y).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        mae.update(preds, y)


main()
