"""Divides a recorded step's peak of allocated memory into its parts. Source-compatible with Python 3.9."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from tidegauge.core.allocator.trace import Action, Trace
from tidegauge.core.allocator_sizes import MIN_BLOCK_BYTES
from tidegauge.estimator.recording import Recording


class PeakMoment(NamedTuple):
    """The live memory just after one event."""

    event: int
    """Index of the ``ALLOC`` that led to it; -1 where nothing was ever allocated."""
    allocated_bytes: int
    """Rounded to blocks."""
    requested_by_category: tuple[int, ...]
    """As asked for, indexed by category."""


def peak_moment(trace: Trace, category: Sequence[int], categories: int) -> PeakMoment:
    """The first moment of highest allocated memory; ``category`` has an entry an event: those of ALLOC count."""
    event, allocated_bytes = highest(trace, 0, len(trace))
    live: dict[int, tuple[int, int]] = {}
    for index in range(event + 1):
        if trace.action[index] == Action.ALLOC:
            live[trace.address[index]] = (category[index], trace.size_bytes[index])
        elif trace.action[index] == Action.FREE_REQUESTED:
            live.pop(trace.address[index], None)
    requested = [0] * categories
    for kind, size_bytes in live.values():
        requested[kind] += size_bytes
    return PeakMoment(event, allocated_bytes, tuple(requested))


def step_peaks(trace: Trace, step_ends: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The event and bytes of each step's highest allocated memory; what precedes counts to the first step."""
    starts = (0, *step_ends)
    return tuple(highest(trace, start, end) for start, end in zip(starts, step_ends))


def highest(trace: Trace, start: int, end: int) -> tuple[int, int]:
    """The first event in [start, end) with the most allocated bytes, and these; -1 where there is none."""
    sizes: dict[int, int] = {}
    allocated_bytes = most_bytes = 0
    most_event = -1
    for index in range(end):
        action = trace.action[index]
        if action == Action.ALLOC:
            size_bytes = block_bytes(trace.size_bytes[index])
            sizes[trace.address[index]] = size_bytes
            allocated_bytes += size_bytes
        elif action == Action.FREE_REQUESTED:
            allocated_bytes -= sizes.pop(trace.address[index], 0)
        if index >= start and allocated_bytes > most_bytes:
            most_event, most_bytes = index, allocated_bytes
    return most_event, most_bytes


def most_live(trace: Trace, category: Sequence[int], wanted: Set[int]) -> int:
    """The most bytes that blocks of the ``wanted`` categories ever held together, as requested."""
    live_bytes = most_bytes = 0
    sizes: dict[int, int] = {}
    for index in range(len(trace)):
        if trace.action[index] == Action.ALLOC and category[index] in wanted:
            sizes[trace.address[index]] = trace.size_bytes[index]
            live_bytes += trace.size_bytes[index]
            most_bytes = max(most_bytes, live_bytes)
        elif trace.action[index] == Action.FREE_REQUESTED:
            live_bytes -= sizes.pop(trace.address[index], 0)
    return most_bytes


def block_bytes(requested_bytes: int) -> int:
    """The block that a request gets under the default settings."""
    return max(1, -(-requested_bytes // MIN_BLOCK_BYTES)) * MIN_BLOCK_BYTES


def without_the_making(recording: Recording) -> Recording:
    """The recording without what FUNCTION allocated and freed before its first step.

    So a model that is sharded after it was made counts as one that was made sharded (on the meta device), which is the
    only way for one that fits into no single GPU.
    """
    trace = recording.trace
    open_events: dict[int, list[int]] = {}
    short_lived: set[int] = set()
    for index in range(trace.marks["build"][0]):
        address = trace.address[index]
        if trace.action[index] == Action.ALLOC:
            open_events[address] = [index]
        elif address in open_events:
            open_events[address].append(index)
            if trace.action[index] == Action.FREE_COMPLETED:
                short_lived.update(open_events.pop(address))
    left = array("q", (index for index in range(len(trace)) if index not in short_lived))
    marks = {name: tuple(bisect_left(left, event) for event in events) for name, events in trace.marks.items()}

    def chosen(column: array[int]) -> array[int]:
        return array(column.typecode, (column[event] for event in left)) if column else column

    trace = replace(
        trace,
        action=chosen(trace.action),
        address=chosen(trace.address),
        size_bytes=chosen(trace.size_bytes),
        stream=chosen(trace.stream),
        time_us=chosen(trace.time_us),
        pool=chosen(trace.pool),
        stack=chosen(trace.stack),
        marks=marks,
    )
    return replace(
        recording,
        trace=trace,
        kinds=chosen(recording.kinds),
        phases=chosen(recording.phases),
        sites=chosen(recording.sites),
    )
