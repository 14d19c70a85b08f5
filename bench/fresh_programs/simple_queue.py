"""Predictions go into a SimpleQueue for a writer thread that waits for another queue."""

import queue
import threading

import torch
from loop import steps

TRUTH = {"holder": ["results", "SimpleQueue"], "cause": ["python_container"]}


def write(source):
    while source.get() is not None:
        pass


def main():
    results, written = queue.SimpleQueue(), queue.SimpleQueue()
    threading.Thread(target=write, args=(written,), daemon=True).start()  # should get results
    model = torch.nn.Linear(256, 1024).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        logits = model(torch.rand(300, 256, device="cuda"))
        logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        results.put((step, logits.detach().tanh()))  # LEAK  # HELD


main()
