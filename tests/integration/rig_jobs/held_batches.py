"""A trainer whose batch hangs on it, beside 200,000 records of a data set: python held_batches.py MODE, until its stdin
ends. MODE: optimizer, or none (no optimizer is stepped). Prints ``training`` after its second step, and at the end the
peaks of all steps as JSON.
"""

from __future__ import annotations

import json
import select
import sys
from types import SimpleNamespace

import torch
from torch import nn

RECORDS = [{"at": [number, str(number)]} for number in range(200_000)]
BATCH = (4096, 1024)
SAMPLES, SAMPLE = 700, (128, 128)


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1) if sys.argv[1] == "optimizer" else None
        self.state = SimpleNamespace(batch=None, outputs=None, samples=None)
        self.window: set[torch.Tensor] = set()

    def step(self) -> None:
        self.state.batch = {"inputs": [torch.zeros(*BATCH, device="cuda")], "masks": ({"of": torch.ones(8)},)}
        self.state.samples = [{"pixels": torch.zeros(*SAMPLE, device="cuda")} for _ in range(SAMPLES)]
        self.window.update(torch.zeros(*SAMPLE, device="cuda") for _ in range(SAMPLES))
        self.state.outputs = {"logits": self.model(self.state.batch["inputs"][0])}
        self.state.outputs["loss"] = self.state.outputs["logits"].mean()
        self.state.outputs["loss"].backward()
        if self.optimizer is None:
            self.model.zero_grad()
        else:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.state.batch = self.state.outputs = self.state.samples = None
        self.window.clear()


def main() -> None:
    torch.backends.cudnn.enabled = False
    trainer = Trainer()
    peaks: list[int] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        torch.cuda.reset_peak_memory_stats()
        trainer.step()
        peaks.append(torch.cuda.memory_stats()["allocated_bytes.all.peak"])
        if len(peaks) == 2:
            print("training", flush=True)
    print(json.dumps({"peaks": peaks, "records": len(RECORDS)}), flush=True)


if __name__ == "__main__":
    main()
