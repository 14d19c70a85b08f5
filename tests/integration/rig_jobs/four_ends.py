"""Trains and ends as its argument says; when it ends, it writes its own counters into a file of its attempt.

python four_ends.py healthy|saved|oom|cancelled FOLDER

``healthy`` trains until FOLDER/end is there, ``cancelled`` until it is interrupted. ``saved`` leaks until it is ended
after a checkpoint that it was asked for; its next attempt goes on without the leak and ends like ``healthy``. ``oom``
leaks until it runs out of memory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch

import tidegauge

MIB = 1 << 20
PAUSE_S = 0.05
"""After each step: a leak of a few minutes is not over before anybody has looked."""


def main(how: str, folder: Path) -> None:
    checkpoint, end = folder / "checkpoint", folder / "end"
    signal.signal(signal.SIGTERM, stop)
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    leaks = how == "oom" or (how == "saved" and not checkpoint.exists())
    kept: list[torch.Tensor] = []
    steps = 0
    if how == "saved":
        tidegauge.on_checkpoint_request(lambda _: checkpoint.write_text(str(steps)))
    try:
        while how not in ("healthy", "saved") or leaks or not end.exists():
            temporary = block(96 * MIB)
            model(torch.rand(8, 64, device="cuda")).square().mean().backward()
            del temporary
            if leaks:
                kept.append(block(8 * MIB))
            steps += 1
            optimizer.step()
            optimizer.zero_grad()
            if steps == 1:
                tell(folder / "began", steps)
            time.sleep(PAUSE_S)
    finally:
        tell(folder / "counters", steps)


def block(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def stop(*_: object) -> NoReturn:
    """As trainers do that tidy up."""
    sys.exit(128 + signal.SIGTERM)


def tell(file: Path, steps: int) -> None:
    """What PyTorch itself counted, in a file named for the attempt."""
    counted = torch.cuda.memory_stats()
    told = {
        "allocated_bytes": counted["allocated_bytes.all.peak"],
        "reserved_bytes": counted["reserved_bytes.all.peak"],
        "alloc_retries": counted["num_alloc_retries"],
        "ooms": counted["num_ooms"],
        "steps": steps,
        "total_bytes": torch.cuda.get_device_properties(0).total_memory,
    }
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(told))
    fresh.replace(file.with_suffix("." + os.environ.get("TIDEGAUGE_ATTEMPT", "0")))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
