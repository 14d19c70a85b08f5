"""Losses of an auxiliary head are kept in a tuple that each step replaces by a longer one, graphs included."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["auxiliary", "history"], "cause": ["retained_graph"]}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))
        self.hidden, self.auxiliary = nn.Linear(100, 400), nn.Linear(400, 300)

    def forward(self, x):
        hidden = nn.functional.gelu(self.hidden(x))  # LEAK
        return self.main(x), torch.sigmoid(self.auxiliary(hidden))  # LEAK


def epoch(net, optimizer):
    history = {"main": (), "auxiliary": ()}
    for _ in steps():
        x = torch.rand(220, 100, device="cuda")  # LEAK
        main, auxiliary = net(x)  # CALLER
        main_loss = main.square().mean()
        auxiliary_loss = auxiliary.square().mean()  # LEAK
        optimizer.zero_grad()
        main_loss.backward()
        optimizer.step()
        history["main"] = (*history["main"], main_loss.detach())
        history["auxiliary"] = (*history["auxiliary"], auxiliary_loss)  # HELD
    return history


net = TwoHeads().cuda()
epoch(net, torch.optim.Adam(net.main.parameters()))
