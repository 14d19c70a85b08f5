"""Lightning: one callback, and ``ckpt_path`` for the next start.

python train.py
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
import torch

from tidegauge.integrations.lightning import TidegaugeCallback, latest_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--checkpoints", default="checkpoints")
parser.add_argument("--devices", type=int, default=-1)
parser.add_argument("--strategy", default="auto")
args = parser.parse_args()


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(256, 256)

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())

    def on_train_start(self) -> None:
        if self.trainer.global_step:
            print(f"goes on from step {self.trainer.global_step}", flush=True)


trainer = pl.Trainer(
    max_steps=args.steps,
    accelerator="gpu",
    devices=args.devices,
    strategy=args.strategy,
    accumulate_grad_batches=2,
    callbacks=[TidegaugeCallback(checkpoint_dir=args.checkpoints)],
    enable_checkpointing=False,
    enable_progress_bar=False,
    logger=False,
)
data = torch.utils.data.DataLoader(torch.randn(4096, 256), batch_size=32)
trainer.fit(Model(), data, ckpt_path=latest_checkpoint(args.checkpoints))
