"""Directional derivatives by torch.func.jvp, kept for each probe direction."""

import collections
import functools

import torch
from loop import steps
from torch import nn
from torch.func import functional_call, jvp

TRUTH = {"holder": ["curvature", "tangents"], "cause": ["python_container"]}

Row = collections.namedtuple("Row", "probe tangents")


def outputs(model, x, parameters):
    return torch.tanh(functional_call(model, parameters, (x,)))  # LEAK


def probe_all(model, x, number, curvature):
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    direction = {name: torch.randn_like(parameter) for name, parameter in parameters.items()}
    _, tangents = jvp(functools.partial(outputs, model, x), (parameters,), (direction,))  # LEAK  # CALLER
    curvature.setdefault(number % 3, []).append(Row(number, tangents))  # HELD


model = nn.Linear(200, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
curvature = {}
for step in steps():
    x = torch.rand(400, 200, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    probe_all(model, x, step, curvature)  # CALLER
