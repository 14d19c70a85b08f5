"""A training script that leaks a little, or not, and writes down each of its steps: the chaos suite's ranks.

Run under ``torchrun``. ``FOLDER/NAME.RANK.steps`` gets a line a step (pid, step, monotonic nanoseconds), written to the
kernel at once, so that it tells of the last step however the process ends. ``FOLDER/NAME.story`` is what the job knows
itself of its attempts and of the checkpoints that it was asked for. Nothing in it knows that the GPUs are fake.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import tidegauge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--leak-rank", type=int, default=-1)
    parser.add_argument("--leak-bytes", type=int, default=1 << 20, help="a step")
    parser.add_argument("--step-seconds", type=float, default=0.2)
    parser.add_argument("--save-seconds", type=float, default=0.0, help="how long a checkpoint takes")
    args = parser.parse_args()

    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    dist.init_process_group("gloo")
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
    model = nn.parallel.DistributedDataParallel(network, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    story, state = args.folder / f"{args.name}.story", args.folder / f"{args.name}.state"
    step = json.loads(state.read_text())["step"] if state.exists() else 0

    def tell(what: str, **more: object) -> None:
        line = {"what": what, "rank": rank, "step": step, "pid": os.getpid(), "mono_s": time.monotonic(), **more}
        line["attempt"] = int(os.environ.get("TIDEGAUGE_ATTEMPT") or "0")
        with story.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def save(request: tidegauge.CheckpointRequest) -> None:
        tell("saving", request=request.request_id)
        time.sleep(args.save_seconds)
        dist.barrier()
        if rank == 0:
            fresh = state.with_suffix(".tmp")
            fresh.write_text(json.dumps({"step": step, "request": request.request_id}))
            fresh.replace(state)
        tell("saved", request=request.request_id)

    tidegauge.on_checkpoint_request(save)
    tell("began")
    steps = os.open(args.folder / f"{args.name}.{rank}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kept: list[torch.Tensor] = []
    while True:
        began_s = time.monotonic()
        loss = model(torch.randn(16, 64).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if rank == args.leak_rank:
            kept.append(torch.empty(args.leak_bytes, dtype=torch.uint8, device="cuda"))
        step += 1
        os.write(steps, f"{os.getpid()} {step} {time.monotonic_ns()}\n".encode())
        optimizer.step()
        time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began_s)))


if __name__ == "__main__":
    main()
