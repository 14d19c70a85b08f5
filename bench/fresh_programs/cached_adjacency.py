"""A graph network on sampled subgraphs, whose normalised sparse adjacency is cached by the sample's seeds."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["_adjacency", "GraphConv"], "cause": ["python_container"]}

NODES, EDGES = 900, 40000


class GraphConv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self._adjacency = {}

    def adjacency(self, seeds):
        if seeds not in self._adjacency:
            edges = torch.randint(0, NODES, (2, EDGES), device="cuda")  # LEAK
            weights = torch.rand(EDGES, device="cuda").add_(1e-6)  # LEAK
            sparse = torch.sparse_coo_tensor(edges, weights, (NODES, NODES), check_invariants=False)
            self._adjacency[seeds] = sparse  # HELD
        return self._adjacency[seeds]

    def forward(self, x, seeds):
        sparse = self.adjacency(seeds)  # CALLER
        source, target = sparse._indices()
        messages = self.linear(x)[source] * sparse._values()[:, None]
        return torch.zeros_like(x).index_add(0, target, messages)


random.seed(6)
conv = GraphConv(32).cuda()
optimizer = torch.optim.Adam(conv.parameters())
for _ in steps():
    seeds = frozenset(random.sample(range(100000), 8))
    conv(torch.rand(NODES, 32, device="cuda"), seeds).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
