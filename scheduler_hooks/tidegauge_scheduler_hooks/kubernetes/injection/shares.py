"""The share of a GPU that a pod requested, and its containers with GPUs: from the pod's own text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegauge.core.jobs.variables import parse_fraction

FRACTION_ANNOTATION = "gpu-fraction"
"""Of Run:ai and of the KAI scheduler, which place by it and leave it to the job to keep to it."""
_SHARED = ".shared"
"""NVIDIA's device plugin adds it to the name of what it shares (``renameByDefault``): nvidia.com/gpu.shared."""
GPU_PREFIXES = ("nvidia.com/", "amd.com/gpu")
"""Of extended resources that are GPUs, or parts of them."""


def with_gpus(containers: Sequence[Mapping[str, Any]]) -> list[int]:
    """The places of those with GPUs of their own: by extended resources, or where none has any, by a claim of dynamic
    resource allocation. Whether a claim is one to a GPU or to a network its pod does not say; but no node gives GPUs
    out in both ways."""
    by_name = [place for place, one in enumerate(containers) if any(map(_is_gpu, _amounts(one)))]
    return by_name or [place for place, one in enumerate(containers) if (one.get("resources") or {}).get("claims")]


def _is_gpu(resource: str) -> bool:
    return resource.startswith(GPU_PREFIXES)


def gpu_share(
    container: Mapping[str, Any], annotations: Mapping[str, str], *, shared_gpu_replicas: int | None
) -> float | None:
    """The share of each GPU that the container requested, above 0 and at most 1; ``None``: whole ones, or not known.

    ``shared_gpu_replicas``: how many pods the device plugin lets share one GPU, which no pod shows. HAMi's
    ``nvidia.com/gpumem`` and ``gpumem-percentage`` are no shares here: its library shows the container a GPU of that
    size (``cuMemGetInfo``), of which the container has the whole."""
    shared = any(name.startswith("nvidia.com/") and name.endswith(_SHARED) for name in _amounts(container))
    if shared and shared_gpu_replicas is not None:
        # Two of them need not be of one GPU: what is safe on each is the part of one.
        return 1 / shared_gpu_replicas if shared_gpu_replicas > 0 else None
    return parse_fraction(annotations.get(FRACTION_ANNOTATION, ""))


def _amounts(container: Mapping[str, Any]) -> frozenset[str]:
    """The resources that it requests more than none of."""
    resources = container.get("resources") or {}
    found = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return frozenset(name for name, amount in found.items() if str(amount) != "0")
