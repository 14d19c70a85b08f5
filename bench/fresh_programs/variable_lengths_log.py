"""Attention maps of batches that are padded to lengths of their own, kept by a subclass of list."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["maps", "AttentionMaps"], "cause": ["python_container"]}


class AttentionMaps(list):
    def add(self, scores):
        self.append((len(self), scores))  # HELD


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.maps = nn.Linear(width, 3 * width), AttentionMaps()

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        attention = torch.softmax(q @ k.transpose(1, 2), dim=-1)
        self.maps.add(attention.detach().to(torch.bfloat16))  # LEAK
        return attention @ v


random.seed(2)
attention = Attention(32).cuda()
optimizer = torch.optim.AdamW(attention.parameters())
for _ in steps():
    for _ in range(2):
        x = torch.rand(8, random.randint(90, 260), 32, device="cuda")
        attention(x).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
