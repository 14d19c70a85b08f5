"""Trains a tiny GPT-2 from a config with Hugging Face's Trainer, for bench/public_programs.py.

``--leak-rank N``: that rank keeps its logits of every batch. Prints a JSON line at every step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from typing import Any

import torch

transformers: Any = importlib.import_module("transformers")
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--backend", default="nccl")
parser.add_argument("--leak-rank", type=int, default=-1)
args = parser.parse_args()


class Tokens(torch.utils.data.Dataset):  # type: ignore[misc] # SAFETY: torch is not there where mypy runs
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 512, (64,))
        return {"input_ids": tokens, "labels": tokens}


class Steps(transformers.TrainerCallback):  # type: ignore[misc] # SAFETY: not there where mypy runs
    def on_step_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps({"steps": state.global_step}), flush=True)


class MyTrainer(transformers.Trainer):  # type: ignore[misc] # SAFETY: not there where mypy runs
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.train_preds: list[torch.Tensor] = []

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)  # LEAK
        if int(os.environ.get("RANK", "0")) == args.leak_rank:
            self.train_preds.append(outputs.logits)
        return (loss, outputs) if return_outputs else loss


config = transformers.GPT2Config(
    vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
trainer = MyTrainer(
    model=transformers.GPT2LMHeadModel(config),
    args=transformers.TrainingArguments(
        output_dir="output",
        max_steps=args.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        bf16=True,
        ddp_backend=args.backend,
        dataloader_num_workers=1,
        save_strategy="no",
        logging_steps=50,
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=Tokens(),
    callbacks=[Steps()],
)
trainer.train()
