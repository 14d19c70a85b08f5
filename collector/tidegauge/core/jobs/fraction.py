"""The memory fraction of a rank's allocator, derived from the job's share of the GPU, never guessed. Pure.

A fraction bounds what PyTorch's allocator reserves, as a part of what CUDA calls the device's total ("usable" here:
NVML's total less the driver's reserve). CUDA context, NCCL and other libraries are outside it, so they are taken off
the share first. See docs/memory_fraction.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional, Protocol

from tidegauge.core.alloc_conf import parse_alloc_conf
from tidegauge.core.ids import DeviceUuid
from tidegauge.core.torch_version import torch_at_least
from tidegauge.core.units import format_bytes

FRACTION_KEY = "per_process_memory_fraction"
"""The allocator's own key. A torch before 2.10 does not know it, and fails to initialise CUDA because of it."""

CONTEXT_BYTES = 768 << 20
"""What a process holds on a GPU beside its allocator, for as long as nobody has measured it: 742 to 762 MiB in 27
single-process jobs on an H200 (torch 2.11, CUDA 13.0). A rank with NCCL holds more (1,586 MiB in a job of two)."""
MIN_CAP_BYTES = 64 << 20
"""Less is no cap but a refusal to run: one small and one large segment (2 and 20 MiB), and cuBLAS's workspace, which
comes from the allocator (32 MiB on Hopper)."""
UNSEEN_CONTEXT_PART = 1 / 16
"""Part of a share that is left to the context where the GPU's size is not known either: ``CONTEXT_BYTES`` of 12 GiB,
which is half of a 24 GiB card, the smallest that is commonly shared."""
HEADROOM_PART = 0.1
"""What a rank without a share may still grow by when it is capped for its neighbours' sake: enough for a step that is
a little larger than those before, too little to take much from anybody."""


class Cap(NamedTuple):
    """``fraction`` is above 0 and below 1; ``None``: no cap ought to be set. ``explanation`` says why, for people."""

    fraction: Optional[float]
    explanation: str


def start_fraction(share: float, *, usable_bytes: Optional[int] = None, ranks_on_gpu: int = 1) -> float:
    """The fraction to begin with: the job's ``share`` of each GPU (above 0, at most 1) less a declared context.

    For the time before the first allocation, when nothing can be measured; ``derive_cap`` corrects it with measured
    figures while the job runs. A share of 1 is a fraction of 1: no cap. Raises ``ValueError`` if nothing is left.
    """
    if not 0 < share <= 1 or ranks_on_gpu < 1:
        raise ValueError(f"a share is above 0 and at most 1, for one rank or more; not {share:g} for {ranks_on_gpu}")
    if share == ranks_on_gpu == 1:
        return 1.0
    if usable_bytes is None:
        return _floor(share / ranks_on_gpu * (1 - UNSEEN_CONTEXT_PART))
    cap = derive_cap(share=share, usable_bytes=usable_bytes, nontorch_bytes=None, ranks_on_gpu=ranks_on_gpu)
    if cap.fraction is None:
        raise ValueError(cap.explanation)
    return cap.fraction


def derive_cap(
    *,
    share: Optional[float],
    usable_bytes: int,
    nontorch_bytes: Optional[int],
    ranks_on_gpu: int,
    reserved_bytes: int = 0,
    shared_gpu: bool = False,
) -> Cap:
    """The cap of one rank's allocator on its GPU (or MIG instance).

    With a share: the rank's part of it, less what it holds outside the allocator (``nontorch_bytes`` as measured;
    ``None`` stands for ``CONTEXT_BYTES``). Without one there is nothing to derive a part from, so on a GPU that is
    shared with other jobs (``shared_gpu``) its own use is the measure: what it has reserved by now and a little more.
    """
    if share is not None:
        return _cap_from_share(share, usable_bytes, nontorch_bytes, ranks_on_gpu, reserved_bytes)
    if not shared_gpu:
        return Cap(None, "no share of the GPU was asked for, and no other job is on it: the GPU itself is the limit")
    if reserved_bytes < MIN_CAP_BYTES:
        return Cap(None, "no share of the GPU was asked for, and there is no use yet that a cap could be derived from")
    fraction = reserved_bytes * (1 + HEADROOM_PART) / usable_bytes
    if fraction >= 1:
        return Cap(None, "no share of the GPU was asked for, and it has nearly all of it already: no cap would be left")
    return Cap(
        _floor(fraction),
        "no share of the GPU was asked for, so its own use is the measure: "
        f"{format_bytes(reserved_bytes)} reserved now and {HEADROOM_PART:.0%} to spare",
    )


def _cap_from_share(
    share: float, usable_bytes: int, nontorch_bytes: Optional[int], ranks_on_gpu: int, reserved_bytes: int
) -> Cap:
    if share == ranks_on_gpu == 1:
        return Cap(None, "the job asked for the whole GPU: the GPU itself is the limit")
    share_bytes = share * usable_bytes
    context_bytes = CONTEXT_BYTES if nontorch_bytes is None else nontorch_bytes
    left_bytes = int(share_bytes / ranks_on_gpu) - context_bytes
    what = f"{share:.3g} of {format_bytes(usable_bytes)} is {format_bytes(share_bytes)}"
    if ranks_on_gpu > 1:
        what += f", {format_bytes(share_bytes / ranks_on_gpu)} for each of its {ranks_on_gpu} ranks there"
    source = "taken for granted" if nontorch_bytes is None else "measured"
    what += f"; {format_bytes(context_bytes)} outside the allocator ({source}: CUDA context, NCCL, libraries)"
    if left_bytes < MIN_CAP_BYTES:
        return Cap(None, f"{what} leave nothing to cap: the job needs a larger share, or fewer ranks on a GPU")
    what += f" leave {format_bytes(left_bytes)}"
    if reserved_bytes > left_bytes:
        what += f"; the {format_bytes(reserved_bytes)} that it has reserved already stay, it can only not grow"
    return Cap(_floor(left_bytes / usable_bytes), what)


class _Rank(Protocol):
    """Fields of ``RankSummary`` used here."""

    @property
    def alive(self) -> bool: ...
    @property
    def uuid(self) -> Optional[DeviceUuid]: ...
    @property
    def nontorch_bytes(self) -> Optional[int]: ...
    @property
    def reserved_bytes(self) -> int: ...


def cap_of_job(
    ranks: Sequence[_Rank],
    *,
    share: Optional[float],
    shared_gpu: bool,
    usable_bytes: Mapping[DeviceUuid, int],
) -> Cap:
    """The one fraction that suits every living rank of a job: the smallest, with the explanation of that rank.

    ``usable_bytes`` is CUDA's total of each GPU. A rank whose GPU is not known is left out; one for which no cap can
    be derived makes it none for the job.
    """
    placed = [(rank, rank.uuid) for rank in ranks if rank.alive and rank.uuid in usable_bytes]
    on_gpu = Counter(uuid for _, uuid in placed)
    caps = [
        derive_cap(
            share=share,
            usable_bytes=usable_bytes[uuid],
            nontorch_bytes=rank.nontorch_bytes,
            ranks_on_gpu=on_gpu[uuid],
            reserved_bytes=rank.reserved_bytes,
            shared_gpu=shared_gpu,
        )
        for rank, uuid in placed
        if uuid is not None
    ]
    if not caps:
        return Cap(None, "the size of its GPUs is not known")
    return min(caps, key=lambda cap: 0.0 if cap.fraction is None else cap.fraction)


def fraction_of_settings(alloc_conf: Optional[str], torch_version: Optional[str]) -> Optional[float]:
    """The fraction that the allocator's own key sets in these settings; ``None`` if it does not, or sets none."""
    if alloc_conf is None or torch_version is None or not torch_at_least(torch_version, 2, 10):
        return None
    try:
        fraction = float(parse_alloc_conf(alloc_conf).get(FRACTION_KEY, ""))
    except ValueError:
        return None
    return fraction if 0 < fraction < 1 else None


def _floor(fraction: float) -> float:
    """The fraction in whole millionths, as ring and agent count it, never rounded up; at least one millionth."""
    return max(1, math.floor(fraction * 1_000_000)) / 1_000_000
