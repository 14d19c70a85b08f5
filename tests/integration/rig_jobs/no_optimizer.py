"""Loops that step no optimizer of torch, each with a leak: python no_optimizer.py by_hand|inference."""

from __future__ import annotations

import sys
import time

import torch

WIDTH, BATCH, RATE = 64, 512, 0.01
PACE_S = 0.02
"""A pause after each step, so that a leak does not fill the device before its window is over."""


class Model(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where mypy runs
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(batch)))


def by_hand() -> None:
    """Training with a hand-written update, and a hook that keeps what the model puts out."""
    model, loss_of, seen = Model().cuda(), torch.nn.MSELoss(), []

    def keep(_module: object, _inputs: object, output: torch.Tensor) -> None:
        seen.append(output.detach().abs())  # LEAK

    model.register_forward_hook(keep)
    while True:
        batch = torch.zeros(BATCH, WIDTH, device="cuda")
        loss = loss_of(model(batch), batch)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
        time.sleep(PACE_S)


def inference() -> None:
    """Features of batches, which are all kept on the device."""
    model, features = Model().cuda().eval(), []
    with torch.inference_mode():
        while True:
            out = model(torch.zeros(BATCH, WIDTH, device="cuda"))
            features.append(torch.nn.functional.normalize(out.softmax(-1)))  # LEAK
            time.sleep(PACE_S)


if __name__ == "__main__":
    torch.backends.cudnn.enabled = False
    {"by_hand": by_hand, "inference": inference}[sys.argv[1]]()
