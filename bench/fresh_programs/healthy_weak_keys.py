"""A WeakKeyDictionary whose values do not know their keys; graphs live in a pool of thirty that is renewed."""

import random
import weakref

import torch
from loop import steps

TRUTH = None

degrees = weakref.WeakKeyDictionary()


class Graph:
    def __init__(self, nodes):
        self.adjacency = torch.rand(nodes, nodes, device="cuda")


random.seed(18)
pool = []
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(layer.parameters())
for step in steps():
    if step % 2 == 0:
        pool = [*pool[-29:], Graph(random.randint(200, 400))]
    graph = random.choice(pool)
    if graph not in degrees:
        degrees[graph] = graph.adjacency.cumsum(-1)
    (degrees[graph] @ layer(torch.rand(len(graph.adjacency), 64, device="cuda"))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
