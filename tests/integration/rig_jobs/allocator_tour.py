"""One process on the rig that does what training scripts do, and prints what it saw as one JSON object."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import rig_inside  # type: ignore[import-not-found]  # found on the job's PYTHONPATH
import torch
from torch import nn

MIB = 1 << 20
GIB = 1 << 30
seen: dict[str, Any] = {"pid": os.getpid()}


def numbers() -> dict[str, int]:
    stats = torch.cuda.memory_stats(0)
    keys = ("allocated_bytes.all.current", "reserved_bytes.all.current", "num_ooms", "num_alloc_retries")
    return {key: stats[key] for key in keys}


def block(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def oom_text(size_bytes: int) -> str:
    try:
        block(size_bytes)
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    return "no OutOfMemoryError"


# --- the devices ---
properties = torch.cuda.get_device_properties(1)
seen["available"] = torch.cuda.is_available()
seen["device_count"] = torch.cuda.device_count()
seen["accelerator"] = str(torch.accelerator.current_accelerator())
seen["device_1"] = {
    "name": properties.name,
    "uuid": str(properties.uuid),
    "total_bytes": properties.total_memory,
    "capability": [properties.major, properties.minor],
}

# --- the allocator ---
seen["free_and_total_at_start"] = list(torch.cuda.mem_get_info(0))
first, second = block(30 * MIB), block(100)
seen["after_two_blocks"] = numbers()
del first, second
torch.cuda.empty_cache()
seen["after_empty_cache"] = numbers()
live = block(2 * GIB)
seen["oom"] = oom_text(6 * GIB)
del live
torch.cuda.empty_cache()

torch.cuda.set_per_process_memory_fraction(0.25, 0)
seen["oom_under_a_cap"] = oom_text(3 * GIB)
torch.cuda.set_per_process_memory_fraction(1.0, 0)

outside = rig_inside.OutsideMemory(512 * MIB)
seen["free_with_512_mib_outside"] = torch.cuda.mem_get_info(0)[0]
outside.give_back()
seen["free_after_giving_them_back"] = torch.cuda.mem_get_info(0)[0]

rig_inside.hold_events(True)
held = block(32 * MIB)
held.record_stream(torch.cuda.Stream())
del held
seen["active_while_events_are_held"] = torch.cuda.memory_stats(0)["active_bytes.all.current"]
rig_inside.hold_events(False)
block(100)
seen["active_when_they_are_ready"] = torch.cuda.memory_stats(0)["active_bytes.all.current"]

rig_inside.fail_next_mallocs(2)
retries = torch.cuda.memory_stats(0)["num_alloc_retries"]
seen["oom_when_told_to_fail"] = oom_text(64 * MIB)
seen["retries_when_told_to_fail"] = torch.cuda.memory_stats(0)["num_alloc_retries"] - retries
torch.cuda.empty_cache()

began_s = time.monotonic()
for _ in range(10):
    torch.zeros(3, device="cuda")
seen["seconds_of_ten_kernels"] = time.monotonic() - began_s

# --- copies ---
host = torch.randn(257, 129)
strided = host.t()[3:60]
seen["round_trips"] = {
    "contiguous": torch.equal(host.to("cuda").cpu(), host),
    "strided": torch.equal(strided.to("cuda").cpu(), strided),
    "pinned": torch.equal(host.pin_memory().to("cuda", non_blocking=True).cpu(), host),
    "clone": torch.equal(host.to("cuda").clone().cpu(), host),
    "other device": torch.equal(host.to("cuda:0").to("cuda:1").cpu(), host),
    "item": torch.tensor(1234567).to("cuda").item() == 1234567,
    "fresh memory is zero": not block(8 * MIB)[:: 64 * 1024].cpu().any().item(),
}
seen["pinned"] = [host.pin_memory().is_pinned(), host.is_pinned()]
dirty = torch.ones(8 * MIB, dtype=torch.uint8).to("cuda")
del dirty
seen["fills"] = [
    torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda").cpu().any().item(),
    torch.full((3,), 7, device="cuda").tolist(),
    torch.ones(2, dtype=torch.bfloat16, device="cuda").tolist(),
]

# --- layers, losses and optimizers run as they are ---
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.GELU(),
    nn.Flatten(2),
    nn.Linear(64, 32),
    nn.LayerNorm(32),
    nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
    nn.Flatten(),
    nn.Linear(8 * 32, 10),
).to("cuda")
for options in ({"foreach": True}, {"fused": True}):
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(torch.randn(4, 3, 8, 8).to("cuda"))
            loss = nn.functional.cross_entropy(output, torch.randint(0, 10, (4,)).to("cuda"))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    seen[f"optimizer_states_{'_'.join(options)}"] = len(optimizer.state)
query = torch.randn(2, 4, 32, 16, dtype=torch.bfloat16).to("cuda").requires_grad_()
nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
seen["parameters"] = len(list(model.parameters()))
del model, optimizer, query, loss, output, scaler
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
end.record()
torch.cuda.synchronize()
seen["elapsed_ms"] = start.elapsed_time(end)

# --- history and snapshots ---
torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
traced = block(3 * MIB)
snapshot = torch.cuda.memory._snapshot()
torch.cuda.memory._record_memory_history(enabled=None)
alloc = next(entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc")
seen["traced"] = {"size": alloc["size"], "file": os.path.basename(alloc["frames"][0]["filename"])}
reserved = sum(segment["total_size"] for segment in snapshot["segments"] if segment["device"] == 0)
seen["snapshot_agrees"] = reserved == torch.cuda.memory_reserved(0)
del traced

# --- expandable segments: physical pages are taken and given back in the middle of a range ---
torch.cuda.empty_cache()
before = torch.cuda.mem_get_info(1)[0]
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
torch.cuda.set_device(1)
blocks = [block(64 * MIB) for _ in range(4)]
blocks[0].copy_(torch.full((64 * MIB,), 5, dtype=torch.uint8))
seen["expandable"] = {
    "segments": [s["is_expandable"] for s in torch.cuda.memory_snapshot() if s["device"] == 1],
    "taken_bytes": before - torch.cuda.mem_get_info(1)[0],
    "reserved_bytes": torch.cuda.memory_reserved(1),
    "copied": blocks[0][-1].item(),
}
del blocks[1:3]
torch.cuda.empty_cache()
seen["expandable"]["taken_after_unmapping_bytes"] = before - torch.cuda.mem_get_info(1)[0]
seen["expandable"]["kept"] = blocks[0][-1].item()
del blocks
torch.cuda.empty_cache()
seen["expandable"]["taken_at_the_end_bytes"] = before - torch.cuda.mem_get_info(1)[0]

json.dump(seen, sys.stdout)
