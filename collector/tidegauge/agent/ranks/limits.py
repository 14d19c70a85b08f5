"""Memory limits of a rank on its GPU, and what is left below them. Pure; ``None`` is unknown."""

from __future__ import annotations

from tidegauge.agent.ports import GpuReading


def cap_bytes(*, total_bytes: int | None, fraction: float | None) -> int | None:
    """The allocator's cap, ``int(fraction * total)`` as ``torch.cuda.set_per_process_memory_fraction`` counts it.

    1.0 removes the cap in PyTorch, so it is none here either.
    """
    if total_bytes is None or fraction is None or fraction >= 1:
        return None
    return int(fraction * total_bytes)


def others_bytes(gpu: GpuReading, pid: int) -> int | None:
    """Bytes of the card that process ``pid`` cannot have: other processes, watched or not, and the driver's reserve."""
    own = None if gpu.process_bytes is None else gpu.process_bytes.get(pid)
    if own is None or gpu.total_bytes is None or gpu.free_bytes is None:
        return None
    return max(0, gpu.total_bytes - gpu.free_bytes - own)


def process_limit_bytes(
    *, total_bytes: int | None, others: int | None, cap: int | None, nontorch_bytes: int | None
) -> int | None:
    """The size of the whole process (reserved + nontorch) at which its next allocation fails.

    The card bounds the process, the cap bounds only what the allocator reserves; the nearer one applies.
    """
    bounds = []
    if total_bytes is not None:
        bounds.append(total_bytes - (others or 0))
    if cap is not None:
        bounds.append(cap + (nontorch_bytes or 0))
    return min(bounds, default=None)


def unwatched_bytes(gpu: GpuReading, our_pids: frozenset[int]) -> int | None:
    """Bytes on ``gpu`` of processes that are neither watched ranks nor their children; ``None`` if one of them is not
    told by the driver."""
    if gpu.process_bytes is None:
        return None
    used = [size for pid, size in gpu.process_bytes.items() if pid not in our_pids]
    return None if None in used else sum(size for size in used if size is not None)
