"""Home-made activation checkpointing: functions that replay a segment, with the segment's input as a default value."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["replays", "replay"], "cause": ["python_container", "closure"]}


class Segments(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks, self.replays = nn.ModuleList(blocks), []

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))  # LEAK
            kept = x.detach()

            def replay(block=block, kept=kept):
                return block(kept)

            self.replays.append(replay)  # HELD
        return x


model = Segments(nn.Linear(256, 256) for _ in range(3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in steps():
    model(torch.rand(400, 256, device="cuda")).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
