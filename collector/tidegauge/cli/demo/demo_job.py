"""The demo's training script: a small transformer under DistributedDataParallel, with one planted mistake.

Started by ``torchrun`` with the job's own Python, as a file: it imports torch and nothing of Tidegauge, because a
researcher's script does not either. ``--leak-rank R`` makes rank R keep its outputs, as a metrics list that nobody
empties does; every other rank, and every rank of a job without the flag, is healthy but not boring: sequence
lengths vary, and every 25 steps there is an evaluation.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

VOCABULARY = 2048
WIDTH = 256
EVALUATE_EVERY = 25


class LanguageModel(nn.Module):
    """Embedding, two transformer layers, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leak-rank", type=int, default=-1)
    parser.add_argument("--backend", help="of torch.distributed (default: nccl where each rank has a GPU, else gloo)")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="least time a step takes")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this long")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    # NCCL wants a GPU for each rank; with fewer, gloo does, and memory behaves the same.
    nccl = dist.is_nccl_available() and torch.cuda.device_count() >= world_size
    dist.init_process_group(args.backend or ("nccl" if nccl else "gloo"))
    model = nn.parallel.DistributedDataParallel(LanguageModel().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    lengths = random.Random(1234 + rank)
    outputs = []  # the planted mistake lives here

    step, end = 0, time.monotonic() + args.seconds
    while time.monotonic() < end:
        began = time.monotonic()
        tokens = torch.randint(0, VOCABULARY, (8, lengths.randrange(32, 129, 8))).to(device)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == args.leak_rank:
            outputs.append(logits.detach())
        step += 1
        if step % EVALUATE_EVERY == 0:
            evaluate(model, device)
        time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began)))


@torch.no_grad()
def evaluate(model: nn.Module, device: torch.device) -> None:
    model(torch.randint(0, VOCABULARY, (16, 256)).to(device))


if __name__ == "__main__":
    main()
