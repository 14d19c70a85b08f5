"""As in per-graph caches of GNN code: a WeakKeyDictionary whose values know their keys, so that no entry ever dies."""

import random
import weakref

import torch
from loop import steps

TRUTH = {"holder": ["laplacians"], "cause": ["python_container"]}

laplacians = weakref.WeakKeyDictionary()


class Graph:
    def __init__(self, nodes):
        self.adjacency = torch.rand(nodes, nodes, device="cuda")  # LEAK


class Laplacian:
    def __init__(self, graph):
        self.graph = graph
        self.matrix = graph.adjacency / graph.adjacency.size(0)  # LEAK


def laplacian_of(graph):
    if graph not in laplacians:
        laplacians[graph] = Laplacian(graph)  # CALLER  # HELD
    return laplacians[graph].matrix


def main():
    random.seed(5)
    layer = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(layer.parameters())
    for _ in steps():
        graph = Graph(random.randint(200, 400))  # CALLER
        nodes = torch.rand(graph.adjacency.size(0), 64, device="cuda")
        (laplacian_of(graph) @ layer(nodes)).square().mean().backward()  # CALLER
        optimizer.step()
        optimizer.zero_grad()


main()
