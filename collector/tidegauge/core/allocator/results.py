"""Results of a replay, in bytes."""

from __future__ import annotations

from array import array
from typing import NamedTuple, Optional

from tidegauge.core.allocator.trace import KnownSegment


class AddressMismatch(NamedTuple):
    """The first event at which the model's address is not the recorded one."""

    event: int
    recorded: int
    replayed: int


class FailedRequest(NamedTuple):
    """An OOM: a request that the allocator could not serve even after it had released what it could."""

    event: int
    """Index into the trace."""
    requested_bytes: int
    """As asked for; 0 where only the recorded OOM is known, which names the rounded size."""
    rounded_bytes: int
    segment_bytes: int
    """What would have had to come from the device."""
    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int
    """Of the free blocks of its stream and pool, before the allocator gave back its cache."""
    free_bytes: int
    """In free blocks altogether, at the same moment."""
    recorded: bool
    """Whether the recording has an OOM here, too."""


class MemoryCurve(NamedTuple):
    """Memory over the events of a replay: the highest values in each of a fixed number of windows."""

    event: array[int]
    """The last event of each window, typecode ``q``."""
    allocated_bytes: array[int]
    reserved_bytes: array[int]


class Replay(NamedTuple):
    """The outcome of one replay."""

    events: int
    """That were replayed."""
    peak_allocated_bytes: int
    """As ``memory_stats()["allocated_bytes.all.peak"]``: rounded sizes of live blocks."""
    peak_active_bytes: int
    peak_reserved_bytes: int
    allocated_at_peak_reserved_bytes: int
    """When reserved memory first reached its peak."""
    requested_at_peak_bytes: int
    """What the program itself had asked for and not freed when allocated memory was at its peak."""
    address_mismatches: int
    """Allocations and segment events whose address is not the recorded one; tells of the recorded settings only."""
    first_mismatch: Optional[AddressMismatch]
    alloc_retries: int
    """``num_alloc_retries``."""
    ooms: int
    device_allocs: int
    device_frees: int
    segments: int
    """At the end, as a snapshot counts them: contiguous mapped ranges where segments are expandable."""
    allocated_bytes: int
    reserved_bytes: int
    """Both at the end."""
    failed: tuple[FailedRequest, ...]
    """The first of them, at most ``MAX_FAILED``."""
    curve: Optional[MemoryCurve]
    end: Optional[tuple[KnownSegment, ...]]
    """The segments at the end, where they were asked for."""
    recovered_ooms: int = 0
    """OOMs of the recording that these settings would have avoided: the program would have gone on differently."""
    skipped_frees: int = 0
    """Of allocations older than the trace, where it is not complete."""
    followed_ties: int = 0
    """How often a self-replay let the recorded address choose among equally large blocks, as no file says their age."""


class FollowedTies(NamedTuple):
    """What a self-replay betrays of the order of `Trace.start`."""

    ties: list[AddressMismatch]
    """As ``Replay.followed_ties`` counts them: the recorded segment is older than the one that was chosen."""
    first_mismatch: Optional[AddressMismatch]


MAX_FAILED = 100
