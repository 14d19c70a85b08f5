"""What the admin decides about the injection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class InjectionOptions:
    probe_image: str
    """Image with ``install-probe.sh`` and the probe."""
    shared_gpu_replicas: int | None = None
    """How many pods share one GPU where NVIDIA's device plugin shares them (its ``replicas``). ``None``: not known, and
    no fraction follows from ``nvidia.com/gpu.shared``."""
    probe_resources: Mapping[str, Any] | None = None
    """``requests`` and ``limits`` of the init container. ``None`` or empty: CPU and memory of the first watched
    container, which waits meanwhile. Then nothing is added to what the pod asks for (the larger of both counts), its
    QoS class stays, and a LimitRange or quota that the pod satisfies is satisfied."""
