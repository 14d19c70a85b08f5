"""A training process with forked DataLoader workers, and a forked child that tries to use its parent's CUDA."""

from __future__ import annotations

import json
import os
import sys

import rig_inside  # type: ignore[import-not-found]  # found on the job's PYTHONPATH
import torch
from torch.utils.data import DataLoader


class Squares:
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, index**2])


held = torch.arange(1000).to("cuda")
free_before = torch.cuda.mem_get_info()[0]
loader = DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork", pin_memory=True)
batches = [batch.to("cuda", non_blocking=True).cpu() for batch in loader]

reader, writer = os.pipe()
child = os.fork()
if child == 0:
    try:
        torch.zeros(1, device="cuda")
        through_torch = "worked"
    except RuntimeError as error:
        through_torch = str(error)
    try:
        rig_inside.OutsideMemory(1 << 20)
        through_runtime = "worked"
    except MemoryError as error:
        through_runtime = str(error)
    os.write(writer, json.dumps([through_torch, through_runtime]).encode())
    os._exit(0)
os.close(writer)
through_torch, through_runtime = json.loads(os.read(reader, 10000))
os.waitpid(child, 0)
seen = {
    "sum": sum(int(batch[:, 1].sum()) for batch in batches),
    "pinned": next(iter(loader)).is_pinned(),
    "child_through_torch": through_torch,
    "child_through_runtime": through_runtime,
    "parents_tensor": held[-1].item(),
    "still_taken": torch.cuda.mem_get_info()[0] <= free_before,
}
json.dump(seen, sys.stdout)
