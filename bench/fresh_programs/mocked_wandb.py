"""The logging service is replaced by a mock for an offline run; a mock remembers its calls."""

from unittest.mock import MagicMock

import torch
from loop import steps

TRUTH = {"holder": ["wandb", "mock_calls", "MagicMock"], "cause": ["python_container"]}

wandb = MagicMock()


def train():
    model = torch.nn.Linear(384, 768).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        out = model(torch.rand(400, 384, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        wandb.log({"step": step, "activations": out.detach().abs()})  # LEAK  # HELD


train()
