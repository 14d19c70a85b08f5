"""A training loop that keeps a part of each batch. Steps until its stdin ends; then says what it found of the probe.

    python leaking.py [--pace SECONDS] [--record STACKS [--record-after N]]

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
    if not recording:  # so a window is over, if there was one: the thread that said so is about to end
        for one in threading.enumerate():
            if one.name == "tidegauge-evidence":
                one.join(30.0)
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
    parser.add_argument(
        "--record-after", type=int, default=0, metavar="N", help="and only when another's recording is N steps old"
    )
    # Steps closer than 10 ms share a record.
    parser.add_argument("--pace", type=float, default=0.012, metavar="SECONDS", help="between two steps")
    args = parser.parse_args()
    torch.backends.cudnn.enabled = False
    trainer = Trainer()
    compiler_before = records = False
    recorded_steps = 0
    for step in range(1, 100_000):
        recorded_steps += torch._C._cuda_isHistoryEnabled()
        if args.record and not records and recorded_steps >= args.record_after:
            record(args.record)
            records = True
        trainer.step()
        if step == 2:
            compiler_before = "torch._inductor" in sys.modules
            print("training", flush=True)
        time.sleep(args.pace)
        if select.select([sys.stdin], [], [], 0)[0]:
            break
    print(json.dumps(found_of_the_probe(trainer, compiler_before=compiler_before)), flush=True)


if __name__ == "__main__":
    main()
