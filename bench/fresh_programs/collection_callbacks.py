"""Each step asks to be told of the collector's next run, by a callback in gc.callbacks that nobody takes out again."""

import gc

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["callbacks", "on_collection", "residual"], "cause": ["closure", "python_container"]}

pauses = []


def watch(residual):
    def on_collection(phase, info):
        if phase == "stop" and info["generation"] == 2:
            pauses.append(len(residual))

    gc.callbacks.append(on_collection)  # HELD


model = nn.Linear(400, 300).cuda()
optimizer = torch.optim.RMSprop(model.parameters())
for _ in steps():
    out = model(torch.rand(500, 400, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    watch(out.detach() - 1)  # LEAK
