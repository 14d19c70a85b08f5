"""Which share of a GPU a job asked for, from what its environment and its scheduler say in text. Pure.

A share counts memory: ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`` and Slurm's ``mps`` gres count threads, and are none. What
a rank sees as its device is the whole: of a MIG instance that nobody else uses the share is 1.
Source-compatible with Python 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

MPS_LIMIT_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

_MPS_LIMIT = re.compile(r"\s*([^=\s]+)\s*=\s*(\d+)([GM])\s*", re.ASCII)
_MPS_UNITS = {"G": 1 << 30, "M": 1 << 20}


def share_of_parts(parts: int, of: int) -> Optional[float]:
    """``parts`` of ``of`` equal parts of one GPU: shards, or 1 of the replicas of a time-sliced one. At most 1.

    ``None`` for figures that are none (0 shards, 0 replicas).
    """
    return min(1.0, parts / of) if parts > 0 and of > 0 else None


def mps_limits(text: str) -> Mapping[str, int]:
    """``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``, such as ``0=2G,GPU-…=512M``: bytes by CUDA ordinal or UUID, as written.

    Raises ``ValueError`` for a text that MPS would not understand.
    """
    limits = {}
    for entry in text.split(","):
        match = _MPS_LIMIT.fullmatch(entry)
        if match is None or int(match[2]) == 0:
            raise ValueError(f"{MPS_LIMIT_VARIABLE}: {entry[:60]!r} is not DEVICE=NUMBER and G or M, such as 0=2G")
        limits[match[1]] = int(match[2]) * _MPS_UNITS[match[3]]
    return limits


def gres_count(text: str, name: str) -> int:
    """How many of ``name`` a Slurm GRES or TRES text holds, of all types together.

    ``gpu:h200:2,shard:8(S:0-1)`` (scontrol, ``--gres``), ``cpu=4,gres/gpu=1,gres/shard:h200=2`` (TRES). An entry
    without a number is one.
    """
    count = 0
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        words = re.split("[:=]", re.sub("^gres[/:]", "", entry.strip()))
        if words[0] == name:
            count += int(words[-1]) if words[-1].isdecimal() else 1
    return count


def shard_share(job_gres: str, node_gres: str) -> Optional[float]:
    """The share of its GPU that a job with Slurm shards asked for, from its GRES and its node's; ``None``: no shards.

    Slurm divides a node's shards evenly over its GPUs, and gives a job shards of one GPU.
    """
    gpus = gres_count(node_gres, "gpu")
    shards_per_gpu = gres_count(node_gres, "shard") // gpus if gpus else 0
    return share_of_parts(gres_count(job_gres, "shard"), shards_per_gpu)
