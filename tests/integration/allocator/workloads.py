"""What the real allocators are asked to do: settings, limits and the plan of requests, all drawn from a seed.

A plan does not depend on what the allocator answers (a block that could not be had is simply not freed), so the same
plan can be run under every setting. Standard library only: read here and, on the rig, by ``record.py``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

MIB = 1 << 20
GIB = 1 << 30
DEVICE_BYTES = 16 * GIB
CONTEXT_BYTES = 256 * MIB

Version = tuple[int, int]
"""Of torch: major and minor."""


@dataclass(frozen=True)
class Workload:
    """One process's life with the allocator."""

    name: str
    conf: str = ""
    """``PYTORCH_CUDA_ALLOC_CONF`` from the process's start."""
    requests: int = 1500
    seed: int = 1
    streams: int = 3
    room_bytes: int | None = None
    """What others have left free on the device; ``None``: all but the context."""
    fraction: float | None = None
    """For ``set_per_process_memory_fraction``."""
    shared_streams: bool = False
    """Whether blocks are handed to other streams (``record_stream``), whose events are ready now and then only."""
    memory_pools: int = 0
    """How many ``torch.cuda.MemPool`` take a part of the requests."""
    flushes: int = 0
    """How often ``empty_cache()`` is called on the way."""
    training_steps: int = 0
    """Of a small transformer instead of a plan, if not 0."""
    ring_entries: int = 1_000_000
    """``max_entries`` of the recording."""
    oldest_torch: Version = (2, 4)


class Step(NamedTuple):
    """One line of a plan."""

    what: str
    """``allocate``, ``free``, ``share`` (record_stream), ``hold`` and ``release`` (events), ``flush``."""
    block: int = 0
    size_bytes: int = 0
    stream: int = 0
    pool: int = 0
    """0: the default pool, otherwise the n-th ``MemPool``."""


def plan(workload: Workload) -> Iterator[Step]:
    """Requests that swell and ebb, from a palette of repeated sizes (ties!) and from all sizes at random.

    Requests, streams and frees depend on the seed alone: whatever else differs between two workloads of one seed and
    length, these are the same, so that one recording can be held against what another predicts.
    """
    dice = random.Random(workload.seed)
    extras = random.Random(f"pools, sharing and flushes of {workload.seed}")
    palette = [random_size(dice) for _ in range(30)]
    flush_at = {extras.randrange(workload.requests) for _ in range(workload.flushes)}
    live: list[int] = []
    for block in range(workload.requests):
        size_bytes = dice.choice(palette) if dice.random() < 0.6 else random_size(dice)
        stream, pool = dice.randrange(workload.streams), extras.randrange(workload.memory_pools + 1)
        yield Step("allocate", block, size_bytes, stream, pool)
        live.append(block)
        if workload.shared_streams:
            yield from sharing(extras, live, workload.streams)
        # Some 25 to 125 blocks live at a time: full pools and nearly empty ones both occur.
        wanted = 75 + 50 * math.sin(block / 60)
        while live and len(live) > wanted * dice.uniform(0.8, 1.2):
            yield Step("free", live.pop(dice.randrange(len(live))))
        if block in flush_at:
            yield Step("flush")


def sharing(dice: random.Random, live: list[int], streams: int) -> Iterator[Step]:
    if dice.random() < 0.2:
        yield Step("share", dice.choice(live), stream=dice.randrange(streams))
    if dice.random() < 0.08:
        yield Step(dice.choice(["hold", "release"]))


def random_size(dice: random.Random) -> int:
    """From a byte to 96 MiB: every kind of segment and every bucket of rounding occurs."""
    low, high = dice.choices(
        [(1, 4096), (4096, MIB), (MIB, 10 * MIB), (10 * MIB, 40 * MIB), (40 * MIB, 96 * MIB)], [30, 25, 28, 14, 3]
    )[0]
    return dice.randint(low + 1, high)


BUCKETS = "roundup_power2_divisions:[2:2,8:4,32:8,>:1]"
EXPANDABLE = "expandable_segments:True"
TIGHT = 700 * MIB
"""Less than the plans want at high tide: flushes and out-of-memory errors follow."""
CAP, AMPLE_CAP = 0.043, 0.125
"""Of DEVICE_BYTES: 704 and 2048 MiB."""

SETTINGS = {
    # Room for everything.
    "default": Workload(""),
    "collected-late": Workload("", conf="garbage_collection_threshold:0.8", fraction=AMPLE_CAP),
    "divided": Workload("", conf="roundup_power2_divisions:4"),
    "divided-by-size": Workload("", conf=BUCKETS),
    "unsplit": Workload("", conf="max_split_size_mb:24"),
    "large-segments": Workload("", conf="large_segment_size_mb:64", oldest_torch=(2, 11)),
    "expandable": Workload("", conf=EXPANDABLE),
    "expandable-divided": Workload("", conf=f"{EXPANDABLE},{BUCKETS}"),
    "capped-amply": Workload("", fraction=AMPLE_CAP),
    "flushed": Workload("", flushes=8),
    "shared": Workload("", shared_streams=True),
    "shared-expandable": Workload("", shared_streams=True, conf=EXPANDABLE),
    "pools": Workload("", memory_pools=2, flushes=3, oldest_torch=(2, 12)),
    "pools-expandable": Workload("", memory_pools=2, conf=EXPANDABLE, flushes=3, oldest_torch=(2, 12)),
    "training": Workload("", training_steps=4),
    "training-expandable": Workload("", training_steps=4, conf=EXPANDABLE),
    # Room for about half of it.
    "tight": Workload("", room_bytes=TIGHT),
    "tight-capped": Workload("", fraction=CAP),
    "tight-collected": Workload("", conf="garbage_collection_threshold:0.6", fraction=CAP),
    "tight-unsplit": Workload("", conf="max_split_size_mb:24", room_bytes=TIGHT),
    "tight-unsplit-rounded": Workload("", conf="max_split_size_mb:32,max_non_split_rounding_mb:64", room_bytes=TIGHT),
    "tight-divided": Workload("", conf=BUCKETS, room_bytes=TIGHT),
    "tight-large-segments": Workload("", conf="large_segment_size_mb:64", room_bytes=TIGHT, oldest_torch=(2, 11)),
    "tight-expandable": Workload("", conf=EXPANDABLE, room_bytes=TIGHT, flushes=3),
    "tight-expandable-capped": Workload("", conf=EXPANDABLE, fraction=CAP),
    "tight-expandable-unsplit": Workload("", conf=f"{EXPANDABLE},max_split_size_mb:24", room_bytes=TIGHT),
    "tight-expandable-large": Workload(
        "", conf=f"{EXPANDABLE},large_segment_size_mb:64", room_bytes=TIGHT, flushes=3, oldest_torch=(2, 11)
    ),
    "tight-everything": Workload(
        "",
        conf=f"garbage_collection_threshold:0.7,max_split_size_mb:48,{BUCKETS},large_segment_size_mb:32",
        fraction=CAP,
        shared_streams=True,
        oldest_torch=(2, 11),
    ),
    "tight-shared": Workload("", shared_streams=True, room_bytes=TIGHT),
    "tight-shared-expandable": Workload("", shared_streams=True, conf=EXPANDABLE, room_bytes=TIGHT),
    "tight-pools": Workload("", memory_pools=2, room_bytes=TIGHT, oldest_torch=(2, 12)),
    # The recording has lost its beginning.
    "ring": Workload("", ring_entries=2000),
    "ring-tight": Workload("", ring_entries=2000, room_bytes=TIGHT),
    "ring-expandable": Workload("", ring_entries=2000, conf=EXPANDABLE),
    "ring-shared": Workload("", ring_entries=2000, shared_streams=True),
}
"""By name. Only what differs from the default workload is said; what is tight runs out of memory again and again."""

SEEDS = (1, 2)


def workloads(torch_version: Version) -> list[Workload]:
    """All that the tests run on this torch."""
    return [
        replace(workload, name=f"{name}-{seed}", seed=seed)
        for name, workload in SETTINGS.items()
        for seed in SEEDS
        if torch_version >= workload.oldest_torch
    ]
