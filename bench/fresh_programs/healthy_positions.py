"""Tables of relative positions, extended to twice the length on demand, until the longest length is there."""

import torch
from loop import steps
from torch import nn

TRUTH = None

LONGEST = 2048


class Positions(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.register_buffer("table", torch.zeros(64, width), persistent=False)

    def forward(self, length):
        while len(self.table) < length:
            self.table = torch.cat([self.table, self.table.sin()])
        return self.table[:length]


positions = Positions(256).cuda()
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in steps():
    length = min(64 + 16 * step, LONGEST)
    (model(torch.rand(length, 256, device="cuda")) + positions(length)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
