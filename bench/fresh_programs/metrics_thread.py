"""A thread that is handed metrics and collects them in a variable of its own, for a flush at the end."""

import queue
import threading

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["unflushed"], "cause": ["python_container"]}


def collect(inbox, chunk):
    unflushed = {}
    while (item := inbox.get()) is not None:
        step, name, value = item
        unflushed.setdefault(name, {})[step] = value  # HELD
        if len(unflushed) >= chunk:  # meant: all values, not names
            unflushed.clear()


inbox = queue.SimpleQueue()
thread = threading.Thread(target=collect, args=(inbox, 100), name="metrics", daemon=True)
thread.start()
model = nn.Linear(256, 500).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in steps():
    out = model(torch.rand(300, 256, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    inbox.put((step, "histogram", out.detach().abs()))  # LEAK
    inbox.put((step, "quantiles", out.detach()[:150] + 1))  # LEAK
inbox.put(None)
thread.join()
