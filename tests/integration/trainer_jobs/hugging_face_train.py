"""Hugging Face's Trainer on the rig. Prints one JSON line after ``train``, then waits for the file ``stop``.

``accumulate``: two batches a step, evaluation in between. ``saves``: until ``stop``, with the Trainer saving by itself
at every step that ends in 0. ``model-only``: as ``accumulate``, with ``save_only_model``. ``broken``: Tidegauge raises.
``profiled``: as ``accumulate``, with a memory profile.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any

import torch

import tidegauge
from tidegauge.integrations.huggingface import TidegaugeCallback

transformers: Any = importlib.import_module("transformers")
parser = argparse.ArgumentParser()
parser.add_argument("how", choices=("accumulate", "saves", "model-only", "broken", "profiled"))
args = parser.parse_args()
STOP = Path("stop")
saved: list[int] = []
written: list[int] = []


def broken() -> None:
    raise ZeroDivisionError("Tidegauge is broken")


if args.how == "broken":
    tidegauge.step = broken


class Watcher(transformers.TrainerCallback):  # type: ignore[misc] # SAFETY: not there where mypy runs
    def on_step_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        time.sleep(0.012)  # steps closer than 10 ms share a record
        control.should_training_stop = control.should_training_stop or STOP.exists()

    def on_save(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        saved.append(state.global_step)


class CountingTrainer(transformers.Trainer):  # type: ignore[misc] # SAFETY: not there where mypy runs
    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        written.append(self.state.global_step)
        super()._save_checkpoint(*args, **kwargs)


config = transformers.GPT2Config(
    vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
tokens = torch.zeros(16, dtype=torch.int64)
examples = [{"input_ids": tokens, "labels": tokens}] * 64
trainer = CountingTrainer(
    model=transformers.GPT2LMHeadModel(config),
    args=transformers.TrainingArguments(
        output_dir="output",
        max_steps=1_000_000 if args.how == "saves" else 20,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        eval_strategy="no" if args.how == "saves" else "steps",
        eval_steps=5,
        save_strategy="steps" if args.how == "saves" else "no",
        save_steps=10,
        save_only_model=args.how == "model-only",
        save_total_limit=2,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=examples,
    eval_dataset=examples[:4],
    callbacks=[Watcher()],
)
profiled = args.how == "profiled"
trainer.add_callback(
    TidegaugeCallback(
        level="stats" if profiled else "trace", save_with=trainer, profile="profile.html" if profiled else False
    )
)
trainer.train()
print(json.dumps({"global_step": trainer.state.global_step, "saved": saved, "written": written}), flush=True)
while not STOP.exists():
    time.sleep(0.05)
