"""Keeps torch's and Python's machinery from disturbing a snapshot: compiler import, garbage collection."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _NotLoaded(ModuleType):
    """Stands in for ``torch._inductor``: empty for the thread that made it, the real module for all others."""

    def __init__(self) -> None:
        super().__init__("torch._inductor")
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self._thread:
            raise AttributeError(name)
        return getattr(importlib.import_module("torch._inductor"), name)


@contextmanager
def compiler_left_alone(torch: Any) -> Iterator[None]:
    """Keep torch from importing its compiler (1.2 to 3.8 s, 800 modules) in a training step: to name stacks' lines
    it asks ``hasattr(torch, "_inductor")``. In a job that has not compiled anything the answer is no."""
    if "_inductor" in vars(torch):
        yield
        return
    empty = torch._inductor = _NotLoaded()
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is empty:  # another thread may have imported it meanwhile
            del torch._inductor


@contextmanager
def collector_held_off() -> Iterator[None]:
    """Disable garbage collection. A snapshot makes some ten thousand dicts in one call, which would trigger a full
    collection: 0.1 s instead of 0.01 s (100,000 objects, Python 3.11)."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
