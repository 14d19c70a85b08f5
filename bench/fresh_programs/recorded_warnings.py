"""As in scripts that record warnings for the whole run: each warning knows the activations that it is about."""

import warnings

import torch
from loop import steps

TRUTH = {"holder": ["caught"], "cause": ["python_container"]}


class OutOfRange(UserWarning):
    def __str__(self):
        return f"activations out of range in step {self.args[0]}"


def check(step, out):
    clipped = out.clamp(-1, 1)  # LEAK
    warnings.warn(OutOfRange(step, clipped), stacklevel=2)
    return clipped


def train():
    model = torch.nn.Linear(128, 512).cuda()
    optimizer = torch.optim.RMSprop(model.parameters())
    for step in steps():
        out = model(torch.rand(512, 128, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 50:
            check(step, out.detach())  # CALLER


with warnings.catch_warnings(record=True) as caught:  # HELD
    warnings.simplefilter("always")
    train()  # CALLER
