"""One of two ranks whose memory differs: python uneven_ranks.py CASE RANK PORT. Rank 0 has more.

CASE: copy, stage, batch, loss, sharded; even. Prints the profile of two steps as JSON (``core.wire``).
"""

from __future__ import annotations

import copy
import os
import sys

import torch
from torch import nn

import tidegauge
from tidegauge.core.wire import to_json

CASE, RANK, PORT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
WIDTH, VOCABULARY = 256, 12_000
IS_FULLER = RANK == 0 and CASE != "even"


class Stage(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self, *, embeds: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if embeds else None
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.ones(*tokens.shape, WIDTH, device="cuda") if self.embed is None else self.embed(tokens)
        for block in self.blocks:
            x = nn.functional.gelu(block(x))
        return x


def main() -> None:
    torch.cuda.set_device(RANK)
    model = Stage(embeds=CASE != "stage" or IS_FULLER).cuda()
    if CASE == "sharded":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, RANK=str(RANK), WORLD_SIZE="2")
        torch.distributed.init_process_group("gloo")
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    else:
        optimizer = torch.optim.AdamW(model.parameters())
    kept = copy.deepcopy(model) if CASE == "copy" and IS_FULLER else None
    batch = 24 if CASE == "batch" and IS_FULLER else 8

    def step() -> None:
        loss = model(torch.zeros(batch, 256, dtype=torch.long, device="cuda"))
        if CASE == "loss" and IS_FULLER:
            loss = loss.repeat(1, 8, 1).log_softmax(-1)
        loss.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    states = [getattr(optimizer, "optim", optimizer)]
    with tidegauge.profile(model, states) as recorded:
        for _ in range(2):
            step()
    print(to_json(recorded.profile).decode(), flush=True)
    del kept


if __name__ == "__main__":
    main()
