"""Embeddings of each sample, by an id that is new each time."""

import uuid
from collections import defaultdict

import torch
from loop import steps

TRUTH = {"holder": ["bank"], "cause": ["python_container"]}


def encode(encoder, images):
    return torch.nn.functional.normalize(encoder(images), dim=-1)


def main():
    encoder = torch.nn.Linear(400, 384).cuda()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-4)
    bank = defaultdict(list)
    for _ in steps():
        images = torch.rand(640, 400, device="cuda")
        z = encode(encoder, images)
        (z @ z.T).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for half in z.detach().chunk(2):
            bank[uuid.uuid4().hex].append(half.clone())  # LEAK  # HELD


main()
