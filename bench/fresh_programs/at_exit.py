"""Things to save at exit are registered with atexit, each with its tensor."""

import atexit

import torch
from loop import steps

TRUTH = {"holder": ["atexit"], "cause": ["python_container"]}


def save(step, tensor):
    assert step >= 0
    assert tensor.dim() == 2


model = torch.nn.Linear(256, 640).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in steps():
    out = model(torch.rand(512, 256, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    atexit.register(save, step, out.detach().exp())  # LEAK  # HELD
