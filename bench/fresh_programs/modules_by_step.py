"""Each step's state is published as a module of its own, for tools that import it."""

import sys
import types

import torch
from loop import steps

TRUTH = {"holder": ["state_of_step_", "gradient_norms"], "cause": ["python_container"]}


def publish(step, **values):
    module = types.ModuleType(f"state_of_step_{step}")
    module.__dict__.update(values)
    sys.modules[module.__name__] = module  # HELD


model = torch.nn.Linear(400, 400).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in steps():
    out = model(torch.rand(800, 400, device="cuda"))
    out.square().mean().backward()
    publish(step, gradient_norms=out.detach().abs())  # LEAK
    optimizer.step()
    optimizer.zero_grad()
