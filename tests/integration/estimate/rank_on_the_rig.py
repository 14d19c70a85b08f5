"""Runs on the fake-GPU rig: the example's job as a rank of several, on PyTorch's own allocator, DDP and FSDP2.

Usage: rank_on_the_rig.py KIND OUT, where KIND is none, ddp, ddp_view or fsdp2. OUT gets, as JSON, the size of every
request to the allocator and whether it was made on a stream of its own; of fsdp2 those since the model was sharded.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SIZES = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 64}
"""Large enough for several of DDP's buckets of 25 MiB."""
WORLD_SIZE = 2


def main(kind: str, out: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "estimate"))
    train = importlib.import_module("train")
    if kind.startswith("ddp"):
        dist.init_process_group("gloo")
        torch.cuda.set_device(dist.get_rank())
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
    if kind == "fsdp2":
        step = sharded(train)
        ready = len(requests())
    else:
        make = train.build_parallel if kind.startswith("ddp") else train.build
        options = {"bucket_view": True} if kind == "ddp_view" else {}
        _, _, step = make(**SIZES, **options)
        ready = 0
    for _ in range(3):
        step()
    if not dist.is_initialized() or dist.get_rank() == 0:
        out.write_text(json.dumps(requests()[ready:]))


def sharded(train: Any) -> Any:
    """As a user would: blocks first, then the rest. The process group is PyTorch's fake one, the allocator is real."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=WORLD_SIZE, store=FakeStore())
    mesh = init_device_mesh("cuda", (WORLD_SIZE,))

    def shard(model: Any) -> Any:
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return train.build(wrap=shard, **SIZES)[2]


def requests() -> list[tuple[int, bool]]:
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    return [(entry["size"], entry["stream"] != 0) for entry in trace if entry["action"] == "alloc"]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
