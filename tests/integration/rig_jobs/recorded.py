"""Trains with a large temporary in each step, and ends as its argument says; writes its own counters into a file.

python recorded.py clean|oom|endless FILE
"""

import itertools
import json
import os
import sys
import time

import torch

STEPS = 40


def main(how: str, file: str) -> None:
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for step in itertools.count() if how == "endless" else range(STEPS):
        temporary = torch.empty(96 << 20, dtype=torch.uint8, device="cuda")
        model(torch.rand(8, 64, device="cuda")).square().mean().backward()
        del temporary
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        if step in (0, STEPS - 1):
            write(file)
    if how == "oom":
        torch.empty(64 << 30, dtype=torch.uint8, device="cuda")


def write(file: str) -> None:
    told = {
        "pid": os.getpid(),
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }
    with open(f"{file}.new", "w") as out:
        json.dump(told, out)
    os.replace(f"{file}.new", file)


if __name__ == "__main__":
    main(*sys.argv[1:])
