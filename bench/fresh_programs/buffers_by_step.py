"""Centroids of each step, registered as buffers of the module."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["centroids_"], "cause": ["python_container"]}


class Clusters(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.project = nn.Linear(width, width)

    def remember(self, step, features):
        centroids = features.view(4, -1, 256).mean(0)  # LEAK
        self.register_buffer(f"centroids_{step}", centroids, persistent=False)  # HELD


def run():
    clusters = Clusters().cuda()
    optimizer = torch.optim.Adam(clusters.parameters())
    for step in steps():
        features = clusters.project(torch.rand(4096, 256, device="cuda"))
        features.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        clusters.remember(step, features.detach())  # CALLER


run()
