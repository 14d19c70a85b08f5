"""The well-known AverageMeter, fed with the loss and its graph."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["AverageMeter.sum", "AverageMeter.avg", "meters"], "cause": ["retained_graph"]}


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count, self.avg = name, 0.0, 0, 0.0

    def update(self, value, n=1):
        self.sum = self.sum + value * n  # HELD
        self.count += n
        self.avg = self.sum / self.count


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(128, 512), nn.Linear(512, 512)

    def forward(self, x):
        x = torch.relu(self.fc1(x))  # LEAK
        return torch.tanh(self.fc2(x))  # LEAK


def train(model, optimizer, meters):
    for _ in steps():
        x = torch.rand(256, 128, device="cuda")  # LEAK
        out = model(x)  # CALLER
        loss = nn.functional.smooth_l1_loss(out, torch.ones_like(out))  # LEAK  # CALLER
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        validation = model(x).square().mean()  # CALLER  # LEAK
        meters["val"].update(validation, x.size(0))


net = Net().cuda()
train(net, torch.optim.Adam(net.parameters()), {"val": AverageMeter("val")})
