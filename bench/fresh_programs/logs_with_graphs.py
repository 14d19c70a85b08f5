"""A dict of logs to which the validation loss is added, with its graph."""

import collections

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["logs"], "cause": ["retained_graph"]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(100, 400), nn.Linear(400, 100)

    def forward(self, x):
        h = nn.functional.gelu(self.inp(x))  # LEAK
        return self.out(h)  # LEAK


def validate(net, logs):
    x = torch.rand(300, 100, device="cuda")  # LEAK
    prediction = net(x)  # CALLER
    logs["val_loss"] += nn.functional.mse_loss(prediction, x)  # HELD  # LEAK


def fit():
    net = Net().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    logs = collections.defaultdict(float)
    for _ in steps():
        net(torch.rand(300, 100, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        validate(net, logs)  # CALLER


fit()
