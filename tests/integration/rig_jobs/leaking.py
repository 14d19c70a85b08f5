"""A training loop that keeps a part of each batch. Steps until its stdin ends; then says what it found of the probe.

    python leaking.py [--record STACKS [--record-at-step N]]

Prints ``training`` after its second step, and at the end one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import select
import sys
import threading
import time
from typing import Any

import torch

KEPT_FLOATS = 1 << 19  # 2 MiB a step: ten fill a segment without a rest
native_recorder = torch._C._cuda_record_memory_history


class Trainer:
    """Keeps what it should not."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 8)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.history: list[torch.Tensor] = []

    def keep(self, batch: torch.Tensor) -> None:
        kept = torch.empty(KEPT_FLOATS, device="cuda")  # LEAK
        self.history.append(kept)

    def step(self) -> None:
        batch = torch.zeros(32, 256, device="cuda")
        self.model(batch).sum().backward()
        self.keep(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()


def record(stacks: str) -> None:
    torch.cuda.memory._record_memory_history(stacks=stacks, max_entries=300)


def tensors_kept_elsewhere(trainer: Trainer) -> int:
    """Objects beside the loop's own list that refer to a kept tensor."""
    gc.collect()
    kept = trainer.history[-1]
    return sum(1 for one in gc.get_referrers(kept) if one is not trainer.history and type(one).__name__ != "frame")


def found_of_the_probe(trainer: Trainer, *, compiler_before: bool) -> dict[str, Any]:
    compiler = "torch._inductor" in sys.modules
    recording = torch._C._cuda_isHistoryEnabled()
    snapshot = torch.cuda.memory._snapshot() if recording else {"device_traces": [[]]}
    return {
        "steps": len(trainer.history),
        "recording": recording,
        "events": len(snapshot["device_traces"][0]),
        "recorder_is_native": torch._C._cuda_record_memory_history is native_recorder,
        "threads": sorted(one.name for one in threading.enumerate()),
        "kept_elsewhere": tensors_kept_elsewhere(trainer),
        "collects": gc.isenabled(),
        "compiler_was_loaded": compiler and not compiler_before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", metavar="STACKS", help="record allocation history from the beginning")
    parser.add_argument("--record-at-step", type=int, metavar="N", help="and no earlier than at this step")
    args = parser.parse_args()
    torch.backends.cudnn.enabled = False
    trainer = Trainer()
    compiler_before = False
    for step in range(1, 100_000):
        if args.record and step == (args.record_at_step or 1):
            record(args.record)
        trainer.step()
        if step == 2:
            compiler_before = "torch._inductor" in sys.modules
            print("training", flush=True)
        time.sleep(0.012)  # steps closer than 10 ms share a record
        if select.select([sys.stdin], [], [], 0)[0]:
            break
    print(json.dumps(found_of_the_probe(trainer, compiler_before=compiler_before)), flush=True)


if __name__ == "__main__":
    main()
