"""Tidegauge watches GPU memory of ``torch.distributed`` jobs. ``import tidegauge`` needs the standard library alone."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
