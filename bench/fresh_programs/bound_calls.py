"""A decorator checks arguments by inspect.signature, and remembers what was bound, to tell of calls that were slow."""

import functools
import inspect
import time

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["calls"], "cause": ["python_container"]}


def checked(function):
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        bound, begun_s = signature.bind(*args, **kwargs), time.monotonic()
        result = function(*args, **kwargs)
        wrapped.calls.append((time.monotonic() - begun_s, bound))  # HELD
        return result

    wrapped.calls = []
    return wrapped


@checked
def smoothness(features, *, weight):
    return (features[1:] - features[:-1]).abs().mean() * weight


model = nn.Linear(256, 300).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in steps():
    out = model(torch.rand(600, 256, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    smoothness(out.detach().sigmoid(), weight=0.1)  # LEAK
