"""What a process holds on a GPU outside the allocator, after the first use of each library. Part of gpu_peaks.py."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_workers import Task

GIB = 4.0
LIMIT_S = 60.0
"""Both generous, for each process here."""


def _nvml() -> tuple[Any, Any]:
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)


def process_bytes() -> int | None:
    """NVML's bytes of this process on device 0 (`nvidia-smi`: used_gpu_memory), None where it tells none."""
    nvml, device = _nvml()
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    return next((process.usedGpuMemory for process in processes if process.pid == os.getpid()), None)


def _device() -> dict[str, int]:
    nvml, device = _nvml()
    memory = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
    return {name: int(getattr(memory, name)) for name in ("total", "reserved", "free", "used")}


def _empty(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def _product(dtype: Any) -> None:
    torch.mm(_empty(1024, 1024, dtype=dtype), _empty(1024, 1024, dtype=dtype)).sum().backward()


def _linear(dtype: Any) -> None:
    _nn().linear(
        _empty(1024, 1024, dtype=dtype), _empty(1024, 1024, dtype=dtype), _empty(1024, dtype=dtype)
    ).sum().backward()


def _convolution(dtype: Any) -> None:
    _nn().conv2d(_empty(16, 64, 56, 56, dtype=dtype), _empty(64, 64, 3, 3, dtype=dtype), padding=1).sum().backward()


def _attention(dtype: Any, masked: bool) -> None:
    query, key, value = (_empty(4, 12, 256, 64, dtype=dtype) for _ in range(3))
    mask = torch.zeros(4, 1, 256, 256, device="cuda", dtype=dtype) if masked else None
    _nn().scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=not masked).sum().backward()


def _adamw() -> None:
    weight = _empty(1024, 1024)
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()


def _embedding() -> None:
    _nn().embedding(torch.randint(0, 1000, (4, 256), device="cuda"), _empty(1000, 64)).sum().backward()


def _cross_entropy() -> None:
    _nn().cross_entropy(_empty(1024, 32000), torch.randint(0, 32000, (1024,), device="cuda")).backward()


def _nn() -> Any:
    return torch.nn.functional


FIRST_USES: Mapping[str, Callable[[], object]] = {
    "elementwise": lambda: _empty(1024).exp().sum().backward(),
    "layer_norm": lambda: _nn().layer_norm(_empty(1024, 1024), (1024,)).sum().backward(),
    "batch_norm": lambda: _nn().batch_norm(_empty(16, 64, 56, 56), None, None, training=True).sum().backward(),
    "dropout": lambda: _nn().dropout(_empty(1024, 1024)).sum().backward(),
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "adamw": _adamw,
    "sort": lambda: torch.sort(_empty(1 << 20)),
    "product_f32": partial(_product, torch.float32),
    "product_bf16": partial(_product, torch.bfloat16),
    "linear_bf16": partial(_linear, torch.bfloat16),
    "convolution_f32": partial(_convolution, torch.float32),
    "convolution_bf16": partial(_convolution, torch.bfloat16),
    "attention_f32": partial(_attention, torch.float32, False),
    "attention_bf16": partial(_attention, torch.bfloat16, False),
    "attention_masked_bf16": partial(_attention, torch.bfloat16, True),
    "fft": lambda: torch.fft.rfft(torch.randn(1 << 16, device="cuda")),
}


def record(names: tuple[str, ...], path: Path) -> None:
    """Use the named things in order; after each, the bytes outside the allocator."""
    before = _device()
    torch.empty(1, device="cuda")
    rows = [["context", _outside_bytes()]]
    for name in names:
        FIRST_USES[name]()
        torch.cuda.synchronize()
        rows.append([name, _outside_bytes()])
    free, total = torch.cuda.mem_get_info()
    device = {"before": before, "after": _device(), "cuda_free": free, "cuda_total": total}
    path.write_text(json.dumps({"outside_bytes": rows, "device": device, "torch": torch.__version__}))


def _outside_bytes() -> int | None:
    held = process_bytes()
    return None if held is None else held - torch.cuda.memory_reserved()


def tasks(folder: Path) -> list[Task]:
    """Each first use alone, and all of them in one process."""
    every = tuple(FIRST_USES)
    orders = {"all": every, **{name: (name,) for name in every}}
    return [
        Task(name, record, (names, folder / f"context_{name}.json"), GIB, LIMIT_S) for name, names in orders.items()
    ]
