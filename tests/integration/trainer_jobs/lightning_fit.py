"""Lightning on the rig. Prints one JSON line after ``fit``, then waits for the file ``stop``.

``accumulate``: two batches a step, and validation in between. ``two-optimizers``: a GAN's loop, by hand. ``saves``:
over one rank or two, until ``stop``; the folder for checkpoints is ``checkpoints``. ``broken``: Tidegauge itself raises
in every step. ``interrupted``: the training raises after its fifth step. ``profiled``: as ``accumulate``, with a
memory profile.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=("accumulate", "two-optimizers", "saves", "broken", "interrupted", "profiled"))
parser.add_argument("--package", default="lightning.pytorch")
args = parser.parse_args()
pl: Any = importlib.import_module(args.package)

import tidegauge  # noqa: E402
from tidegauge.integrations.lightning import TidegaugeCallback  # noqa: E402


def broken() -> None:
    raise ZeroDivisionError("Tidegauge is broken")


if args.how == "broken":
    tidegauge.step = broken
STOP = Path("stop")


class Model(pl.LightningModule):  # type: ignore[misc] # SAFETY: a package named by an argument
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.automatic_optimization = args.how != "two-optimizers"

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor | None:
        time.sleep(0.012)  # steps closer than 10 ms share a record
        if args.how == "interrupted" and self.trainer.global_step == 5:
            raise ArithmeticError("the loss is not what it was")
        if self.automatic_optimization:
            return self.second(self.first(batch)).mean()
        for layer, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(layer(batch).mean())
            optimizer.step()
        return None

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.first(batch)

    def on_train_batch_end(self, *_: object) -> None:
        stop = torch.tensor([int(STOP.exists())])
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(stop, op=torch.distributed.ReduceOp.MAX)  # all leave in the same step
        self.trainer.should_stop = self.trainer.should_stop or bool(stop.item())

    def configure_optimizers(self) -> Any:
        if self.automatic_optimization:
            return torch.optim.AdamW(self.parameters())
        return [torch.optim.AdamW(self.first.parameters()), torch.optim.SGD(self.second.parameters(), lr=0.1)], []


ranks = int(os.environ.get("WORLD_SIZE", "1"))
ddp = importlib.import_module(f"{args.package}.strategies").DDPStrategy(process_group_backend="gloo")
trainer = pl.Trainer(
    accelerator="gpu",
    devices=ranks,
    strategy=ddp if ranks > 1 else "auto",
    max_steps=20 if args.how in ("accumulate", "two-optimizers", "broken", "interrupted", "profiled") else -1,
    max_epochs=-1,
    accumulate_grad_batches=2 if args.how in ("accumulate", "profiled") else 1,
    callbacks=TidegaugeCallback(
        level="stats" if args.how == "profiled" else "trace",
        checkpoint_dir="checkpoints",
        profile=args.how == "profiled",
    ),
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
data = torch.utils.data.DataLoader(torch.zeros(64, 32), batch_size=4)
raised = None
try:
    trainer.fit(Model(), data, data if args.how == "accumulate" else None)
except ArithmeticError as error:
    raised = str(error)
line = json.dumps({"global_step": trainer.global_step, "raised": raised})
print(f"{line}\n", end="", flush=True)  # in one piece: without a buffer, another rank's line would come before its end
while not STOP.exists():
    time.sleep(0.05)
if ranks > 1:
    del trainer, ddp  # see rig_jobs/ddp.py: gloo's threads and the end of the interpreter
    torch.distributed.destroy_process_group()
