"""A small training run that ends out of memory in the way that it is asked for: python oom_cases.py CASE.

Runs on the fake-GPU rig with GPUs of 8 GiB. The files below tests/data/oom were made with it.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

MIB = 1 << 20
GIB = 1 << 30


def tensor(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


class Model(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where mypy runs
    """Three layers, the first of which keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(3))
        self.cache: list[torch.Tensor] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = layer(batch)
        self.cache.append(tensor(64 * MIB))
        return batch


def train(steps: int = 1000) -> None:
    """Ends out of memory: each step keeps 64 MiB."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.zeros(32, 256, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def needed() -> None:
    """Tensors alone fill the GPU."""
    train()


def cap() -> None:
    """The GPU has room, the fraction does not allow it."""
    torch.cuda.set_per_process_memory_fraction(0.25)
    train()


def pieces() -> None:
    """Half of what is reserved is free, in pieces of 31 MiB."""
    held, holes = [], []
    for _ in range(100):
        whole = tensor(64 * MIB)
        del whole
        held.append(tensor(33 * MIB))
        holes.append(tensor(31 * MIB))
    del holes
    tensor(2 * GIB)


def outside() -> None:
    """Another library of the same process has taken most of it."""
    import rig_inside  # type: ignore[import-not-found]  # found on the job's PYTHONPATH

    library = rig_inside.OutsideMemory(5 * GIB)
    try:
        train()
    finally:
        library.give_back()


def neighbour() -> None:
    """Another process has taken most of it; it says so, and waits to be ended."""
    held = tensor(5 * GIB)
    print("holds", held.numel(), flush=True)
    sys.stdin.read()


def too_big() -> None:
    """One request that no GPU of this size can serve."""
    hidden = torch.zeros(32, 4096, 16, device="cuda")
    torch.nn.functional.linear(hidden, torch.zeros(32_000, 16, device="cuda"))


def huge() -> None:
    """A request beyond what PyTorch is willing to name."""
    torch.empty(1 << 61, dtype=torch.uint8, device="cuda")


def pools() -> None:
    """Free memory lies in a private pool."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        mine, kept = tensor(2 * GIB), tensor(16 * MIB)
    del mine
    train()
    del kept


def pool_each_step(steps: int = 20_000) -> None:
    """Each step leaves a private pool of 20 MiB behind, as a CUDA graph does that is recorded for each shape."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    pools = []
    for _ in range(steps):
        model(torch.zeros(32, 256, device="cuda")).sum().backward()
        model.cache.clear()
        optimizer.step()
        optimizer.zero_grad()
        pools.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(pools[-1]):
            tensor(16 * MIB)
        time.sleep(0.012)  # each step has its record


CASES = {
    case.__name__: case for case in (needed, cap, pieces, outside, neighbour, too_big, huge, pools, pool_each_step)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--history", action="store_true", help="with Python stacks, as for a snapshot")
    parser.add_argument("--caught", action="store_true", help="go on to a clean end")
    parser.add_argument("--snapshot", metavar="FILE", help="dump one in the handler of the error")
    args = parser.parse_args()
    if args.history:
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=20_000)
    try:
        CASES[args.case]()
    except torch.OutOfMemoryError:
        if args.snapshot:
            torch.cuda.memory._dump_snapshot(args.snapshot)
        if not args.caught:
            raise
        print("caught", flush=True)


if __name__ == "__main__":
    main()
