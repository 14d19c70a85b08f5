"""A home-made profiler: a context manager records each region with its inputs."""

import contextlib
import time

import torch
from loop import steps

TRUTH = {"holder": ["events"], "cause": ["python_container"]}


class Timeline:
    def __init__(self):
        self.events = []

    @contextlib.contextmanager
    def region(self, name, *inputs):
        began = time.perf_counter()
        with torch.profiler.record_function(name):
            yield
        self.events.append({"name": name, "s": time.perf_counter() - began, "inputs": inputs})  # HELD


timeline = Timeline()
model = torch.nn.Linear(720, 720).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    x = torch.rand(350, 720, device="cuda")  # LEAK
    with timeline.region("forward", x):
        loss = model(x).square().mean()
    with timeline.region("backward"):
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
