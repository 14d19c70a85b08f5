"""As in GNN libraries with feature frames: hidden states become columns of a sampler's graph, deep inside the model."""

from dataclasses import dataclass

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["columns", "frames"], "cause": ["python_container"]}


@dataclass
class Column:
    data: torch.Tensor
    kind: str


class Graph:
    def __init__(self):
        self.frames = {"paper": {"columns": {}}, "author": {"columns": {}}}

    def set_data(self, kind, name, data):
        self.frames[kind]["columns"][name] = Column(data, kind)  # HELD


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear, self.sampler = nn.Linear(width, width), {"graph": Graph()}

    def forward(self, x, step):
        x = torch.relu(self.linear(x))
        if step >= 50:
            kind = "paper" if step % 3 else "author"
            self.sampler["graph"].set_data(kind, f"h_{step}_{x.size(-1)}", x.detach() * 0.5)  # LEAK
        return x


class Encoder(nn.ModuleDict):
    def forward(self, x, step):
        for layer in self["layers"]:
            x = layer(x, step)  # CALLER
        return x


encoder = Encoder({"layers": nn.ModuleList([Layer(160), Layer(160)])}).cuda()
optimizer = torch.optim.Adam(encoder.parameters())
for step in steps():
    encoder(torch.rand(300, 160, device="cuda"), step).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
