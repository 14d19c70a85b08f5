"""Runs workloads on the rig's torch and keeps what its allocator recorded: ``record.py FOLDER NAME...``.

torch is imported once; every workload then gets a process of its own by fork, before CUDA is initialised, so that its
settings are read as in any other job. Of each workload NAME (all, if none is named) it writes ``NAME.pickle``, which is
``torch.cuda.memory._snapshot()``, and ``NAME.json``: the final statistics and what a snapshot does not say.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import rig_inside  # type: ignore[import-not-found]  # found on the job's PYTHONPATH
import torch

from integration.allocator import workloads
from integration.allocator.workloads import Workload


def record(workload: Workload, folder: Path) -> None:
    """The whole life of one process."""
    torch.cuda.init()
    torch.empty(1, device="cuda")  # a context
    torch.cuda.empty_cache()
    if workload.room_bytes is not None:
        rig_inside.OutsideMemory(torch.cuda.mem_get_info()[0] - workload.room_bytes)
    if workload.fraction is not None:
        torch.cuda.set_per_process_memory_fraction(workload.fraction)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    room_bytes = torch.cuda.mem_get_info()[0]
    torch.cuda.memory._record_memory_history(max_entries=workload.ring_entries, context=None)
    held = train(workload.training_steps) if workload.training_steps else obey(workload)
    statistics = torch.cuda.memory_stats()
    with open(folder / f"{workload.name}.pickle", "wb") as out:
        pickle.dump(torch.cuda.memory._snapshot(), out)
    facts = {
        "torch_version": torch.__version__,
        "conf": workload.conf,
        "total_bytes": torch.cuda.get_device_properties(0).total_memory,
        "room_bytes": room_bytes,
        "cap_bytes": int(workload.fraction * workloads.DEVICE_BYTES) if workload.fraction is not None else None,
        "statistics": statistics,
        "live_objects": len(held),
    }
    (folder / f"{workload.name}.json").write_text(json.dumps(facts))


def obey(workload: Workload) -> dict[int, Any]:
    """Carries the plan out; returns the blocks that live at its end."""
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(workload.streams - 1))]
    pools = [None, *(torch.cuda.MemPool() for _ in range(workload.memory_pools))]
    live: dict[int, Any] = {}
    for step in workloads.plan(workload):
        if step.what == "allocate":
            pool = pools[step.pool]
            inside = torch.cuda.use_mem_pool(pool) if pool is not None else contextlib.nullcontext()
            with contextlib.suppress(torch.OutOfMemoryError), torch.cuda.stream(streams[step.stream]), inside:
                live[step.block] = torch.empty(step.size_bytes, dtype=torch.uint8, device="cuda")
        elif step.what == "free":
            live.pop(step.block, None)
        elif step.what == "share" and step.block in live:
            live[step.block].record_stream(streams[step.stream])
        elif step.what in ("hold", "release"):
            rig_inside.hold_events(step.what == "hold")
        elif step.what == "flush":
            torch.cuda.empty_cache()
    # A pool that is garbage gives its blocks back at a moment of the collector's choosing: keep them to the end.
    live[-1] = pools
    return live


def train(steps: int) -> dict[int, Any]:
    """Steps of a small transformer on sequences of different lengths, as the allocator sees them."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(5000, 256), torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        tokens = torch.zeros(8, 128 + 96 * (step % 3), dtype=torch.long, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del loss, tokens
    gc.collect()
    return {0: model, 1: optimizer}


def start(workload: Workload, folder: Path) -> int:
    """The pid of a process that records the workload and exits with 0 when all is written."""
    child = os.fork()
    if child:
        return child
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = workload.conf
    # GPUs of its own: another workload may run beside it.
    os.environ["FAKEGPU_STATE"] = str(folder / f"{workload.name}.gpus")
    try:
        record(workload, folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> int:
    folder, wanted = Path(sys.argv[1]), set(sys.argv[2:])
    major, minor = torch.__version__.split(".")[:2]
    runnable = workloads.workloads((int(major), int(minor)))
    waiting = [workload for workload in runnable if not wanted or workload.name in wanted]
    running: dict[int, str] = {}
    failed: list[str] = []
    while running or (waiting and not failed):
        while waiting and not failed and len(running) < (os.cpu_count() or 1):
            workload = waiting.pop()
            running[start(workload, folder)] = workload.name
        child, status = os.wait()
        name = running.pop(child)
        if status:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
