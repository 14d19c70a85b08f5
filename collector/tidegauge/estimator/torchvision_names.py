"""Makes torchvision importable beside a PyTorch without CUDA, where its compiled part, made for CUDA, cannot be loaded.

What is missed are two names of operators. Declared here, without anything behind them, they let models be built.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))
_declared: list[Any] = []
"""Libraries end their declarations when they are collected."""


def declare_torchvision() -> None:
    """Do so where torchvision is installed and would miss them; before it is imported. Harmless to repeat."""
    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return
    if hasattr(torch.ops.torchvision, "nms") or _loads():
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)


def _loads() -> bool:
    """Whether torchvision's own library can be loaded, as torchvision itself tries when it is imported."""
    spec = importlib.util.find_spec("torchvision")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        for library in sorted(Path(folder).glob("_C*.so")):
            try:
                torch.ops.load_library(str(library))
            except OSError:
                return False
            return True
    return False
