"""Trains a small transformer until its stdin ends: python profiled_rank.py MODE [RANK PORT].

MODE: eager, amp, checkpoint, compile; ddp, fsdp1, fsdp2 of two ranks; recorded, which records its history itself.
``PROFILED_BACKEND``: of torch.distributed, if not gloo. Prints ``training`` after its second step, and at the end one
JSON object with what PyTorch and the model say.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

import torch
import torch.nn.modules.module as modules
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, BLOCKS, VOCABULARY, BATCH, LENGTH = 256, 4, 4096, 8, 128
MODE = sys.argv[1]
RANK, PORT = (int(sys.argv[2]), sys.argv[3]) if len(sys.argv) > 2 else (0, "")


class Block(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.norm(x)) * self.scale


class Model(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if MODE == "checkpoint" else block(x)
        return self.head(x)


def distributed() -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, RANK=str(RANK), WORLD_SIZE="2", LOCAL_RANK=str(RANK))
    torch.cuda.set_device(RANK)
    torch.distributed.init_process_group(os.environ.get("PROFILED_BACKEND", "gloo"))


def wrapped(model: Model) -> Any:
    if MODE == "compile":
        return torch.compile(model, backend="aot_eager")
    if MODE == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if MODE == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, wrap

        return FullyShardedDataParallel(
            model, auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), use_orig_params=True, device_id=RANK
        )
    if MODE == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    return model


def is_over() -> bool:
    """Whether stdin has ended, on any rank."""
    ended = bool(select.select([sys.stdin], [], [], 0)[0])
    if not PORT:
        return ended
    said: list[bool | None] = [None, None]
    torch.distributed.all_gather_object(said, ended)
    return any(said)


def bytes_of(tensors: list[Any]) -> int:
    storages = {}
    for tensor in tensors:
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def compiled_graphs() -> int:
    """So far, also those that were compiled again."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    return int(sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"])


def main() -> None:
    torch.backends.cudnn.enabled = False
    if PORT:
        distributed()
    if MODE == "recorded":
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=5_000)
    model = wrapped(Model().cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    peaks: list[int] = []
    durations_s: list[float] = []
    graphs: list[int] = []
    while True:
        began_s = time.perf_counter()
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.float16, enabled=MODE == "amp"):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        durations_s.append(time.perf_counter() - began_s)
        graphs.append(compiled_graphs())
        peaks.append(torch.cuda.memory_stats()["allocated_bytes.all.peak"])
        torch.cuda.reset_peak_memory_stats()
        if len(peaks) == 2:
            print("training", flush=True)
        if is_over():
            break
        time.sleep(0.05 if MODE == "recorded" else 0.0)  # a snapshot lists so many events at most
    states = [value for state in optimizer.state.values() for value in state.values() if value.is_cuda]
    parameters = list(model.parameters())
    found = {
        "peaks": peaks,
        "durations_s": durations_s,
        "parameter_bytes": bytes_of(parameters),
        "gradient_bytes": bytes_of([one.grad for one in parameters if one.grad is not None]),
        "buffer_bytes": bytes_of(list(model.buffers())),
        "state_bytes": bytes_of(states),
        "names": [name for name, _ in model.named_parameters()],
        "compiled_graphs": graphs,
        "hooks": len(modules._global_forward_pre_hooks) + len(modules._global_forward_hooks),
        "recording": torch._C._cuda_isHistoryEnabled(),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
