"""The learning rate range test, whose smoothed loss is a tensor with its graph."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["smooth", "LRFinder"], "cause": ["retained_graph"]}


class LRFinder:
    def __init__(self, model, optimizer, gamma=1.01, beta=0.98):
        self.model, self.optimizer, self.gamma, self.beta = model, optimizer, gamma, beta
        self.smooth, self.rates = 0.0, []

    def probe(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)  # LEAK  # CALLER
        self.smooth = self.beta * self.smooth + (1 - self.beta) * loss  # HELD

    def update(self, x, y):
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(x), y).backward()
        self.optimizer.step()
        for group in self.optimizer.param_groups:
            group["lr"] *= self.gamma
            self.rates.append(group["lr"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.gate, self.head = nn.Linear(200, 384), nn.Linear(200, 384), nn.Linear(384, 20)

    def forward(self, x):
        body, gate = self.body(x), torch.sigmoid(self.gate(x))  # LEAK
        return self.head(body * gate)  # LEAK


net = Net().cuda()
finder = LRFinder(net, torch.optim.SGD(net.parameters(), lr=1e-7))
for _ in steps():
    x, y = torch.rand(256, 200, device="cuda"), torch.rand(256, 20, device="cuda")  # LEAK
    finder.update(x, y)
    finder.probe(x * 0.9, y)  # LEAK  # CALLER
