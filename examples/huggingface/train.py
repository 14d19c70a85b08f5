"""Hugging Face Trainer: one callback, added to the trainer that is to save, and ``resume_from_checkpoint``.

python train.py            (or: torchrun --nproc-per-node 2 train.py)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tidegauge.integrations.huggingface import TidegaugeCallback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--output", default="output")
parser.add_argument("--ddp-backend", default=None)
args = parser.parse_args()


config = GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
tokens = torch.randint(128, (512, 32))
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir=args.output,
        max_steps=args.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        ddp_backend=args.ddp_backend,
    ),
    train_dataset=[{"input_ids": each, "labels": each} for each in tokens],
)
trainer.add_callback(TidegaugeCallback(save_with=trainer))
last = get_last_checkpoint(args.output) if Path(args.output).is_dir() else None
print(f"goes on from {last}", flush=True)
trainer.train(resume_from_checkpoint=last)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # its threads must not outlive the interpreter
