"""MoCo's queue of negatives, without the pointer that wraps around."""

import copy

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["queue"], "cause": ["python_container"]}


class MoCo(nn.Module):
    def __init__(self, encoder, width):
        super().__init__()
        self.encoder_q, self.encoder_k = encoder, copy.deepcopy(encoder)
        self.register_buffer("queue", torch.zeros(1, width))

    @torch.no_grad()
    def enqueue(self, keys):
        self.queue = torch.cat([self.queue, keys])  # LEAK  # HELD

    def forward(self, query_images, key_images):
        q = nn.functional.normalize(self.encoder_q(query_images), dim=1)
        with torch.no_grad():
            k = nn.functional.normalize(self.encoder_k(key_images), dim=1)
        positive = (q * k).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue[-4096:].clone().T], dim=1)
        self.enqueue(k)  # CALLER
        return logits


moco = MoCo(nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 512)), 512).cuda()
optimizer = torch.optim.SGD(moco.encoder_q.parameters(), lr=0.03, momentum=0.9)
for _ in steps():
    images = torch.rand(384, 300, device="cuda")
    logits = moco(images, images.flip(1))  # CALLER
    loss = nn.functional.cross_entropy(logits, torch.zeros(len(images), dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
