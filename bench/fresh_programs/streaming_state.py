"""A streaming evaluator beside training: a GRU's state is carried from batch to batch, and nobody detaches it."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["state"], "cause": ["retained_graph"]}


class Streaming(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.GRUCell(width, 256)
        self.state = None

    def forward(self, x):
        self.state = self.cell(x, self.state)  # LEAK  # HELD
        return self.state.detach().mean()


encoder, evaluator = nn.Linear(300, 200).cuda(), Streaming(200).cuda()
optimizer = torch.optim.Adam(encoder.parameters())
for _ in steps():
    out = encoder(torch.rand(256, 300, device="cuda"))  # LEAK
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    evaluator(out.detach())  # CALLER
