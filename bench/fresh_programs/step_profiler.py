"""A home-made profiler: spans are records with slots, which wait for a report that nobody asks for."""

import dataclasses
import time

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["pending", "spans"], "cause": ["python_container"]}


@dataclasses.dataclass(slots=True)
class Span:
    name: str
    begun_s: float
    ended_s: float | None = None
    result: torch.Tensor | None = None


class Profiler:
    def __init__(self):
        self.pending = {}

    def __call__(self, name, function, *args):
        span = Span(name, time.perf_counter())
        span.result = function(*args)  # CALLER
        span.ended_s = time.perf_counter()
        self.pending[name, span.begun_s] = span  # HELD
        return span.result

    def report(self):
        return sorted((name, span.ended_s - span.begun_s) for (name, _), span in self.pending.items())


def augment(x):
    return x + torch.randn_like(x) * 0.1  # LEAK


profile = Profiler()
model = nn.Linear(512, 64).cuda()
optimizer = torch.optim.RMSprop(model.parameters())
for _ in steps():
    x = profile("augment", augment, torch.rand(600, 512, device="cuda"))  # CALLER
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
