"""A small training run that leaks: python leaky_train.py [--fixed] [--steps N]. Needs a CUDA device.

One line of it keeps a tensor of each step. docs/researcher/one_leak.md finds it.
"""

from __future__ import annotations

import argparse
import time

import torch

VOCABULARY, LENGTH, BATCH, WIDTH = 4096, 256, 8, 256
PAUSE_S = 0.03
"""For the data, which a real run would have to wait for."""


class Model(torch.nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.mix = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
        )
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(tokens)))


class Trainer:
    """Trains, and remembers how sure the model was."""

    def __init__(self, *, fixed: bool) -> None:
        self.fixed = fixed
        self.model = Model().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.certainties = []

    def step(self) -> None:
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
        logits = self.model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        certainty = logits.detach().softmax(dim=-1)
        self.certainties.append(certainty.max(dim=-1).values.mean().item() if self.fixed else certainty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--fixed", action="store_true", help="keep a number of each step instead")
    args = parser.parse_args()
    trainer = Trainer(fixed=args.fixed)
    for _ in range(args.steps):
        trainer.step()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
