"""Ray Train on the rig: two workers train until the file ``stop`` exists. Worker 1 fails to save the first time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_model

from tidegauge.integrations import ray_train as tidegauge_ray


def loop(config: dict[str, Any]) -> None:
    tidegauge_ray.attach("trace")
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(torch.nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    asked = 0

    def save(folder: str) -> None:
        nonlocal asked
        asked += 1
        if rank == 1 and asked == 1:
            raise OSError("the disk is full")
        torch.save(model.state_dict(), os.path.join(folder, f"rank{rank}.pt"))

    tidegauge_ray.save_on_request(save)
    stop = torch.zeros(1, dtype=torch.int64)
    while not stop.item():
        model(torch.zeros(4, 32, device=get_device())).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.012)
        stop += int(Path(config["stop"]).exists())
        torch.distributed.all_reduce(stop)  # all leave in the same step
    checkpoint = ray.train.get_checkpoint()
    ray.train.report({"files": sorted(os.listdir(checkpoint.path)) if checkpoint else None})


result = TorchTrainer(
    loop,
    train_loop_config={"stop": os.path.abspath("stop")},
    torch_config=TorchConfig(backend="gloo"),
    scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=True),
    run_config=ray.train.RunConfig(name="two-workers", storage_path=os.path.abspath("runs")),
).fit()
assert result.checkpoint is not None
print(sorted(os.listdir(result.checkpoint.path)), os.path.basename(result.checkpoint.path), flush=True)
