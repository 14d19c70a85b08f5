"""Sparse gradients of an embedding that no optimizer owns: nobody zeroes them, and each backward appends to them."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": [".grad", "table"], "cause": ["python_container"]}


def main():
    table = nn.Embedding(5000, 256, sparse=True).cuda()
    head = nn.Linear(256, 16).cuda()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    words = torch.zeros(1024, dtype=torch.long, device="cuda")
    for _ in steps():
        head(table(words)).mean().backward()  # LEAK  # HELD
        optimizer.step()
        optimizer.zero_grad()


main()
