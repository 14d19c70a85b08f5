"""One reading of one rank's allocator: the value that travels probe -> ring -> agent -> detector.

The probe imports this inside the training process.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Optional


class RecordKind(IntEnum):
    """The occasion on which a record was written."""

    STEP = 1
    """After an optimizer step (or ``tidegauge.step()``): memory at a step boundary, the best clock there is."""
    TICK = 2
    """By the 2 Hz thread: what is seen when no step ends, mid-step included."""
    EVENT = 3
    """Something happened; ``event`` says what."""


TICKS_ALONE_S = 300.0
"""A rank that ends no step for so long is judged by its ticks, from its first one on, and its job is told how to make
steps. Before that, loading a model would look like growth."""


class EventCode(IntEnum):
    """The event that an ``EVENT`` record reports. Codes are part of the ring layout: never renumber."""

    NONE = 0
    ATTACHED = 1
    """The probe began to watch; counters are relative to what the allocator says in this record."""
    OUT_OF_MEMORY = 2
    """PyTorch's allocator raised ``torch.OutOfMemoryError``: ``event_a`` = segment bytes it tried to get,
    ``event_b`` = bytes free on the device (``cudaMemGetInfo``), ``event_c`` = the cap or the total in bytes."""
    FRACTION_SET = 3
    """``set_per_process_memory_fraction`` was applied: ``event_a`` = millionths of the device."""
    DETACHED = 4
    """A clean end of the process or of watching; a ring without it ended by a crash or SIGKILL."""
    PROBE_ERROR = 5
    """The probe caught an exception of its own: ``event_a`` = how many so far."""
    POOLS_AT_OOM = 6
    """What was held at the ``OUT_OF_MEMORY`` before it: ``event_a`` = bytes free in private pools, where there are
    any."""
    OTHERS_AT_OOM = 7
    """Other processes on the GPU, by PyTorch's message about the ``OUT_OF_MEMORY`` before it: ``event_a`` = pid of the
    largest, ``event_b`` = its bytes, ``event_c`` = bytes of all of them."""


class Sample(NamedTuple):
    """One record of one device of one rank. Bytes and counts come from one raw statistics call.

    Fields named after ``torch.cuda.memory_stats()`` keys: ``allocated`` = ``allocated_bytes.all.current``,
    ``reserved`` = ``reserved_bytes.all.current``, ``active`` = ``active_bytes.all.current``, ``inactive_split`` =
    ``inactive_split_bytes.all.current``, ``requested`` = ``requested_bytes.all.current``; the ``…_peak_bytes``
    are the same keys' ``peak`` (since start or the user's own ``reset_peak_memory_stats()``; the probe never
    resets). Counters: ``alloc_retries`` = ``num_alloc_retries``, ``ooms`` = ``num_ooms``, ``device_allocs`` /
    ``device_frees`` = ``num_device_alloc`` / ``num_device_free``, ``segments`` / ``blocks`` =
    ``segment.all.current`` / ``allocation.all.current``. ``None`` is a value this torch does not report.
    """

    seq: int
    """1, 2, 3 … per device ring; a gap means records were overwritten before they were read."""
    kind: RecordKind
    event: EventCode
    device: int
    """CUDA ordinal inside the rank's process; an index into ``RankIdentity.device_uuids``."""
    wall_ns: int
    """``time.time_ns()`` in the rank."""
    mono_ns: int
    """``time.monotonic_ns()`` in the rank: CLOCK_MONOTONIC, comparable within a node."""
    step: int
    """Training steps finished so far (bursts of optimizer steps count once)."""
    raw_steps: int
    """Post-step hook calls so far, ungrouped."""
    phase: int
    """0 unknown, 1 train, 2 evaluate; as the training framework says, else 0."""
    allocated_bytes: int
    reserved_bytes: int
    active_bytes: Optional[int]
    inactive_split_bytes: Optional[int]
    requested_bytes: Optional[int]
    allocated_peak_bytes: Optional[int]
    reserved_peak_bytes: Optional[int]
    active_peak_bytes: Optional[int]
    inactive_split_peak_bytes: Optional[int]
    requested_peak_bytes: Optional[int]
    alloc_retries: Optional[int]
    ooms: Optional[int]
    device_allocs: Optional[int]
    device_frees: Optional[int]
    segments: Optional[int]
    blocks: Optional[int]
    event_a: int = 0
    event_b: int = 0
    event_c: int = 0


class OomRecord(NamedTuple):
    """One ``torch.OutOfMemoryError`` as the allocator's observer recorded it, in bytes."""

    at_unix_s: float
    step: int
    wanted_bytes: int
    """Segment that the allocator tried to get; more than the tensor asked for, by rounding."""
    free_bytes: int
    """Free on the device at that moment (``cudaMemGetInfo``)."""
    limit_bytes: int
    """The cap if a fraction below 1 was set, else the device's total."""
    allocated_bytes: int
    reserved_bytes: int
    private_free_bytes: int = 0
    """Free in the private pools of CUDA graphs and ``MemPool``, as far as the rank has told."""
