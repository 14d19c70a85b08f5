"""Makes the snapshots of this folder: runs on the fake-GPU rig, or on a real GPU (README.md beside this file)."""

from __future__ import annotations

import gzip
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

STEPS = 400
MIB = 1 << 20


def requests(seed: int, steps: int = STEPS, *, largest: int = 30 * MIB, device: int = 0) -> None:
    """Takes and gives back tensors on two streams, some of them used on the other one."""
    chance = random.Random(seed)
    streams = [torch.cuda.default_stream(device), torch.cuda.Stream(device)]
    live: list[torch.Tensor] = []
    for _ in range(steps):
        if live and chance.random() < 0.47:
            live.pop(chance.randrange(len(live)))
            continue
        size = chance.randint(1, MIB) if chance.random() < 0.5 else chance.randint(MIB, largest)
        with torch.cuda.stream(chance.choice(streams)):
            try:
                live.append(torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}"))
            except torch.OutOfMemoryError:
                del live[: len(live) // 2]
        if chance.random() < 0.05:
            live[chance.randrange(len(live))].record_stream(streams[1])


@contextmanager
def history(**arguments: Any) -> Iterator[None]:
    torch.cuda.memory._record_memory_history(**{"max_entries": 100_000, "context": None, **arguments})
    yield
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.empty_cache()


def keep(folder: Path, name: str) -> None:
    snapshot = torch.cuda.memory._snapshot()
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            _shorten(block.get("frames", []))
    for history_of_device in snapshot["device_traces"]:
        for entry in history_of_device:
            _shorten(entry.get("frames", []))
    # No time in the file: the same run is the same file.
    (folder / f"{name}.pickle.gz").write_bytes(gzip.compress(pickle.dumps(snapshot), mtime=0))


def _shorten(frames: list[dict[str, Any]]) -> None:
    """Paths of the machine that made it are nobody's business."""
    for frame in frames:
        frame["filename"] = "/".join(Path(frame["filename"]).parts[-2:])


def main(folder: Path) -> None:
    # First, while the process has allocated nothing: a complete history.
    with history(context="alloc", stacks="python"):
        requests(1)
        keep(folder, "stacks")
    with history(max_entries=500):
        requests(2)
        keep(folder, "ring")
    torch.cuda.set_per_process_memory_fraction(150 * MIB / torch.cuda.get_device_properties(0).total_memory)
    with history():
        requests(3)
        keep(folder, "out_of_memory")
    torch.cuda.set_per_process_memory_fraction(1.0)
    with history():
        requests(4, 150)
        requests(5, 150, device=1)
        keep(folder, "two_devices")
    with history():
        requests(6, 150)
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            requests(7, 150)
            keep(folder, "own_pool")
    with history(max_entries=600):
        requests(8, 300)
        torch.cuda.memory._record_memory_history(max_entries=100, context=None)
        requests(9, 100)
        keep(folder, "shrunk_ring")
    with history(skip_actions=["free_completed"]):
        requests(10, 100)
        keep(folder, "skipped_actions")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    with history():
        requests(11)
        keep(folder, "expandable")
    with history(max_entries=500):
        requests(12)
        keep(folder, "expandable_ring")
    kept = torch.empty(MIB, device="cuda")
    keep(folder, "no_history")
    del kept


if __name__ == "__main__":
    main(Path(sys.argv[1]))
