"""Each step starts a generator for its metrics, which is advanced once and never finished."""

import torch
from loop import steps

TRUTH = {"holder": ["pending"], "cause": ["python_container"]}


def metrics_of(logits):
    probabilities = torch.softmax(logits, dim=-1)  # LEAK
    yield probabilities.shape
    yield probabilities.amax(-1).mean()


def main():
    model = torch.nn.Linear(300, 700).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    pending = []
    for _ in steps():
        logits = model(torch.rand(500, 300, device="cuda"))  # LEAK
        logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        metrics = metrics_of(logits.detach())
        next(metrics)  # CALLER
        pending.append(metrics)  # HELD


if __name__ == "__main__":
    main()
