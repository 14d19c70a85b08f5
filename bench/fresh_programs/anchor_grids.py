"""As in an old torchvision AnchorGenerator: grids are cached by image size, and sizes are all different."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["_cache"], "cause": ["python_container"]}


class AnchorGenerator(nn.Module):
    def __init__(self, stride=4):
        super().__init__()
        self.stride = stride
        self._cache = {}

    def grid_anchors(self, height, width):
        ys = torch.arange(0, height, device="cuda", dtype=torch.float32)
        xs = torch.arange(0, width, device="cuda", dtype=torch.float32)
        ys, xs = torch.meshgrid(ys, xs, indexing="ij")
        return torch.stack((xs, ys, xs + self.stride, ys + self.stride), dim=-1)  # LEAK

    def cached_grid_anchors(self, *size):
        key = str([size])
        if key not in self._cache:
            self._cache[key] = self.grid_anchors(*size)  # CALLER  # HELD
        return self._cache[key]

    def forward(self, features):
        return self.cached_grid_anchors(*features.shape[-2:])  # CALLER


random.seed(6)
anchors = AnchorGenerator()
backbone = nn.Conv2d(3, 4, 1).cuda()
optimizer = torch.optim.SGD(backbone.parameters(), lr=0.01)
for _ in steps():
    features = backbone(torch.rand(1, 3, random.randint(80, 240), random.randint(80, 240), device="cuda"))
    (features[0].movedim(0, -1) - anchors(features)).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
