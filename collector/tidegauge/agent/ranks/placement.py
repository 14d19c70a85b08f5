"""Which GPU a rank is on: the claim in its ring, checked against what the driver says of its process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tidegauge.agent.ports import GpuReading
from tidegauge.core.ids import DeviceUuid


class Placement(NamedTuple):
    """``gpu`` is ``None`` where neither the claim nor the driver names a GPU of this node."""

    gpu: GpuReading | None
    overruled: bool
    """The driver contradicts the claim."""


def place(claimed: DeviceUuid | None, pid: int, gpus: Sequence[GpuReading]) -> Placement:
    """The GPU of process ``pid`` that says it uses ``claimed``.

    The driver lists a process only once it has a context, and not at all across some pid namespaces: a claim that
    the driver does not contradict stands. It contradicts by listing the process on other GPUs only.
    """
    named = next((gpu for gpu in gpus if claimed is not None and _bare(gpu.uuid) == _bare(claimed)), None)
    if named is not None and named.process_bytes is not None and pid in named.process_bytes:
        return Placement(named, overruled=False)
    listed = [gpu for gpu in gpus if gpu.process_bytes is not None and pid in gpu.process_bytes]
    if named is not None and not listed:
        return Placement(named, overruled=False)
    if not listed:
        return Placement(None, overruled=False)
    seen = max(listed, key=lambda gpu: (gpu.process_bytes or {}).get(pid) or 0)
    return Placement(seen, overruled=claimed is not None)


@lru_cache(maxsize=1024)
def _bare(uuid: str) -> str:
    """PyTorch writes a UUID without the ``GPU-`` in front."""
    return uuid.lower().removeprefix("gpu-")
