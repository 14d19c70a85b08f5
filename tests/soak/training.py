"""A training script for the fake-GPU rig: a small model, the same work each step. Runs until it is killed.

    python training.py [--leak] [--pause-s 0.1]

``--leak`` keeps a tensor of each step in a list.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

KEPT_FLOATS = 1 << 19


class Trainer:
    """One model, one optimizer, and what is kept of the steps."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 8)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.kept: list[Any] = []

    def step(self, *, leak: bool) -> None:
        batch = torch.zeros(32, 256, device="cuda")
        self.model(batch).sum().backward()
        if leak:
            self.kept.append(torch.empty(KEPT_FLOATS, device="cuda"))
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leak", action="store_true")
    parser.add_argument("--pause-s", type=float, default=0.1)
    args = parser.parse_args()
    torch.backends.cudnn.enabled = False
    torch.set_num_threads(1)
    trainer = Trainer()
    while True:
        trainer.step(leak=args.leak)
        time.sleep(args.pause_s)


if __name__ == "__main__":
    main()
