"""A rank of a training job to attach to. Runs under the rig's Python, or that of a GPU machine; knows no Tidegauge.

    training.py FOLDER [--exactly N] [--no-cuda-before FILE] [--nccl] [--forks]

Each rank trains a model on the GPU, and a small one on the CPU whose figures do not depend on the device, together with
the other ranks over gloo. It ends after the step in which FOLDER/stop has come, and writes FOLDER/RANK.json: how many
steps it made, what came out, the longest gap between two beats of a thread that does nothing but beat, and the longest
step, over all and around the moments in FOLDER/attach.
"""

import argparse
import hashlib
import json
import os
import threading
import time
from pathlib import Path

import torch

BEAT_S = 0.002


class Beats:
    """How long other threads of this process were held up: the longest pause of one that wants to run all the time."""

    def __init__(self) -> None:
        self.gaps: list[tuple[float, float]] = []
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(BEAT_S)
            now = time.monotonic()
            self.gaps.append((now, now - before))
            before = now


def reference_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int, world: int) -> None:
    """On the CPU, the same on every rank, so that the mean over the ranks is each one's own value exactly. Never done:
    what it is taught changes from step to step."""
    optimizer.zero_grad()
    (model(torch.arange(32.0).reshape(4, 8) / 32) - number % 7).square().sum().backward()
    for parameter in model.parameters():
        if world > 1:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= world
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--exactly", type=int, default=0)
    parser.add_argument("--no-cuda-before", type=Path)
    parser.add_argument("--nccl", action="store_true", help="ranks also meet on their GPUs, one each")
    parser.add_argument("--forks", action="store_true", help="with a DataLoader's worker, and a fork of its own")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    small = torch.nn.Linear(8, 8)
    small_optimizer = torch.optim.SGD(small.parameters(), lr=0.01)
    if args.exactly:
        for number in range(args.exactly):
            reference_step(small, small_optimizer, number, 1)
        print(digest(small))
        return
    if world > 1:
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if args.nccl else "gloo")
    (args.folder / "loaded").touch()
    while args.no_cuda_before is not None and not args.no_cuda_before.exists():
        time.sleep(0.02)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    large = torch.nn.Linear(512, 512, device="cuda")
    large_optimizer = torch.optim.AdamW(large.parameters())
    batches = iter(torch.utils.data.DataLoader(range(10**9), num_workers=1)) if args.forks else None
    if args.forks and os.fork() == 0:
        time.sleep(1e6)
    beats, stop, begun = Beats(), torch.zeros(1), False
    steps: list[float] = []
    while not stop.item():
        large(torch.zeros(64, 512, device="cuda")).sum().backward()
        if args.nccl:
            torch.distributed.all_reduce(large.weight.grad)
        large_optimizer.step()
        large_optimizer.zero_grad()
        reference_step(small, small_optimizer, len(steps), world)
        if batches is not None:
            next(batches)
        stop.fill_(float((args.folder / "stop").exists()))
        if world > 1:
            torch.distributed.all_reduce(stop, op=torch.distributed.ReduceOp.MAX)
        steps.append(time.monotonic())
        if not begun and len(steps) > 10:
            begun = True
            (args.folder / f"{rank}.pid").write_text(str(os.getpid()))
        time.sleep(0.01)
    result = {"steps": len(steps), "digest": digest(small), **held_up(beats.gaps, steps, args.folder / "moments")}
    (args.folder / f"{rank}.json").write_text(json.dumps(result))
    if world > 1:
        torch.distributed.destroy_process_group()


def held_up(gaps: list[tuple[float, float]], steps: list[float], moments: Path) -> dict[str, float]:
    """The longest gap and step in the second around each line of ``moments`` (CLOCK_MONOTONIC), and otherwise."""
    at = [float(line) for line in moments.read_text().split()] if moments.exists() else []
    lasted = [(end, end - begin) for begin, end in zip(steps, steps[1:])]

    def longest(of: list[tuple[float, float]], *, near: bool) -> float:
        return max((length for end, length in of if near == any(-0.1 < end - one < 1.0 for one in at)), default=0.0)

    return {
        "gap_s": longest(gaps, near=True), "gap_otherwise_s": longest(gaps, near=False),
        "step_s": longest(lasted, near=True), "step_otherwise_s": longest(lasted, near=False),
    }  # fmt: skip


def digest(model: torch.nn.Module) -> str:
    data = b"".join(bytes(parameter.detach().view(torch.uint8).flatten().tolist()) for parameter in model.parameters())
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main()
