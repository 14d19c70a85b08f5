"""Each step wraps the handler once more: a closure around a closure."""

import torch
from loop import steps

TRUTH = {"holder": ["handler"], "cause": ["closure"]}


def with_baseline(inner, baseline):
    def handle(x, depth=0):
        return x - baseline if depth > 2 else inner(x, depth + 1)

    return handle


def main():
    def handler(x, depth=0):
        return x

    model = torch.nn.Linear(256, 1000).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps():
        out = model(torch.rand(300, 256, device="cuda"))
        handler(out).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        handler = with_baseline(handler, out.detach() * 0.1)  # LEAK  # HELD


main()
