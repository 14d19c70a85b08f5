"""An exponential average of activations for a normaliser, which is computed aside of the loss and never detached."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["mean"], "cause": ["retained_graph"]}


class ActivationAverage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.probe = nn.Linear(width, 64)
        self.mean = torch.zeros(64, device="cuda")

    def observe(self, x):
        seen = torch.tanh(self.probe(x)).square().mean(dim=0)  # LEAK
        self.mean = self.mean.lerp(seen, 0.05)  # HELD

    def forward(self, x):
        self.observe(x * 2)  # LEAK  # CALLER
        return x - self.mean.detach().mean()


body, average = nn.Linear(512, 400).cuda(), ActivationAverage(400).cuda()
optimizer = torch.optim.AdamW(body.parameters())
for _ in steps():
    hidden = torch.relu(body(torch.rand(400, 512, device="cuda")))
    loss = hidden.square().mean()
    with torch.no_grad():
        features = hidden.clone()
    normal = average(features)  # CALLER
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
