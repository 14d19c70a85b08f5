"""How much memory a GPU of an assignment has, at most: from names of resources and labels of flavors. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tidegauge.core.jobs.kubernetes import GPU_MEMORY
from tidegauge.estimator.gpus import GIB, GPU_TYPES, MIB
from tidegauge_scheduler_hooks.kubernetes.memory_check.needs import memory_bytes

MIB_LABELS = ("nvidia.com/gpu.memory", "karpenter.k8s.aws/instance-gpu-memory")
"""Labels with MiB: of NVIDIA's GPU feature discovery (with MIG strategy ``single`` a slice's), and of Karpenter."""
PRODUCT_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name")
_SLICE = re.compile(r"mig-((?:\d+c\.)?\d+g\.(\d+)gb)", re.IGNORECASE)
_ON_THE_LABEL = re.compile(r"(?<![0-9])(\d{1,3})gb", re.IGNORECASE)
MAX_ON_THE_LABEL = 300
"""A GH200-480GB has 480 GB of a processor's memory."""
_BY_TYPE = {gpu.name: gpu.target.total_bytes for gpu in GPU_TYPES if "-" not in gpu.name}
"""Types that come with one size of memory, which their product names leave out."""


class GpuRoom(NamedTuple):
    """Memory of one GPU, or of one slice."""

    at_most_bytes: int
    """No program can have more."""
    name: str
    """For people: ``mig-3g.40gb``."""


def room_of(resource: str, flavor: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> GpuRoom | None:
    """The room of one ``resource`` on nodes with ``labels``; ``annotations``: of the flavor. ``None``: not known, as
    for parts of a GPU that a device plugin shares out."""
    if resource.endswith(".shared"):
        return None
    if found := _SLICE.search(resource):
        return GpuRoom(int(found[2]) * GIB, f"mig-{found[1]}")
    if (stated := memory_bytes(annotations.get(GPU_MEMORY))) is not None:
        return GpuRoom(stated, f"flavor {flavor}")
    for name in MIB_LABELS:
        text = labels.get(name, "")
        if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text):
            return GpuRoom(int(text) * MIB, f"flavor {flavor}")
    products = (labels[name] for name in PRODUCT_LABELS if name in labels)
    return next((GpuRoom(size, product) for product in products if (size := _size_of(product))), None)


def _size_of(product: str) -> int | None:
    """Bytes. What is on the label (80 GB) is a little more than what the driver gives out, in GiB as well."""
    found = _SLICE.search(product)
    number = found[2] if found is not None else next(iter(_ON_THE_LABEL.findall(product)), None)
    if number is not None:
        return int(number) * GIB if int(number) <= MAX_ON_THE_LABEL else None
    return next((_BY_TYPE[word] for word in re.split(r"[^a-z0-9]+", product.lower()) if word in _BY_TYPE), None)
