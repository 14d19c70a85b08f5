"""Ray Train: two lines in the training function.

python train.py            (or: ray job submit -- python train.py)
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_model

import tidegauge
from tidegauge.integrations import ray_train as tidegauge_ray


def train_loop_per_worker(config: dict[str, Any]) -> None:
    tidegauge_ray.attach()
    model = prepare_model(torch.nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), map_location=get_device())
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"goes on from step {step}", flush=True)

    def save(folder: str) -> None:
        if ray.train.get_context().get_world_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, os.path.join(folder, "state.pt"))

    tidegauge_ray.save_on_request(save)
    while step < config["steps"]:
        optimizer.zero_grad()
        model(torch.randn(32, 256, device=get_device())).square().mean().backward()
        optimizer.step()
        step += 1
        tidegauge.step()  # a step ends here, with the counter right: this is where save() is called


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--storage", default=os.path.abspath("ray-runs"))
    args = parser.parse_args()
    TorchTrainer(
        train_loop_per_worker,
        train_loop_config={"steps": args.steps},
        torch_config=TorchConfig(backend=args.backend),
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers, use_gpu=True),
        run_config=ray.train.RunConfig(name="tidegauge-example", storage_path=args.storage),
    ).fit()
