"""The life of each block of a recording: when it was allocated and freed, and its exact size."""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.allocator.beginning import rounded_bytes
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import MemoryCurve, Replay
from tidegauge.core.allocator.settings import parse_settings
from tidegauge.core.allocator.trace import Action, BlockState, Trace
from tidegauge.core.evidence.held_memory import DEFAULT_POOL

BEFORE = -1
"""As an event: before the first one."""


class BlockLife(NamedTuple):
    """One block, from its allocation until the program gave it back."""

    address: int
    requested_bytes: int
    size_bytes: int
    """Of its block: what the allocator counts as allocated."""
    made: int
    """Its event; ``BEFORE``: it was there."""
    freed: Optional[int]
    """The event at which its owner gave it back; ``None``: it outlives the recording."""
    stack: int
    """Index into the trace's stacks; -1: none was recorded."""
    in_private_pool: bool

    def is_alive_at(self, event: int) -> bool:
        """Whether it is allocated just after ``event``."""
        return self.made <= event and (self.freed is None or self.freed > event)


class Lives(NamedTuple):
    """The blocks of a recording."""

    blocks: list[BlockLife]
    is_exact: bool
    """Whether sizes are those of the recorded allocator; else they follow from the requests."""
    reserved_bytes: int
    """At its highest."""
    unallocated_bytes: int
    """Of ``reserved_bytes``, what was never allocated while so much was reserved."""
    replayed: Replay
    """Under the trace's own settings."""


def lives_of(trace: Trace) -> Lives:
    """The lives of all blocks, in the order in which they were given back, then those that were not.

    ``trace`` begins with its ``start`` (``traces.reading.with_beginning``). A replay tells how much each allocation
    added to what is allocated. Raises ``TraceError`` where the events contradict each other.
    """
    replayed = replay(trace, curve_points=len(trace))
    is_exact = replayed.address_mismatches == 0 and replayed.curve is not None
    sizes = _Sizes(trace, replayed.curve if is_exact else None)
    alive = {
        block.address: BlockLife(
            block.address,
            block.requested_bytes,
            block.size_bytes,
            BEFORE,
            None,
            -1 if block.stack is None else block.stack,
            segment.pool != DEFAULT_POOL,
        )
        for segment in trace.start
        for block in segment.blocks
        if block.state is BlockState.ACTIVE_ALLOCATED
    }
    allocated_bytes = sum(one.size_bytes for one in alive.values())
    blocks: list[BlockLife] = []
    for event, action in enumerate(trace.action):
        address = trace.address[event]
        if action == Action.ALLOC:
            size_bytes = sizes.of(event, allocated_bytes)
            allocated_bytes += size_bytes
            stack = trace.stack[event] if trace.stack else -1
            is_private = bool(trace.pool) and trace.pools[trace.pool[event]] != DEFAULT_POOL
            alive[address] = BlockLife(address, trace.size_bytes[event], size_bytes, event, None, stack, is_private)
        elif action == Action.FREE_REQUESTED and address in alive:
            one = alive.pop(address)
            allocated_bytes -= one.size_bytes
            blocks.append(one._replace(freed=event))
    reserved_bytes = replayed.peak_reserved_bytes
    unallocated_bytes = reserved_bytes - _allocated_at_most(replayed)
    return Lives([*blocks, *alive.values()], is_exact, reserved_bytes, unallocated_bytes, replayed)


def _allocated_at_most(replayed: Replay) -> int:
    """While reserved memory was at its peak."""
    curve = replayed.curve
    if curve is None:
        return replayed.allocated_at_peak_reserved_bytes
    at_peak = (
        allocated_bytes
        for allocated_bytes, reserved_bytes in zip(curve.allocated_bytes, curve.reserved_bytes)
        if reserved_bytes == replayed.peak_reserved_bytes
    )
    return max(at_peak, default=replayed.allocated_at_peak_reserved_bytes)


class _Sizes:
    """Sizes of blocks by what a replay had allocated after each event."""

    def __init__(self, trace: Trace, curve: Optional[MemoryCurve]) -> None:
        self._trace = trace
        self._curve = curve
        self._settings = parse_settings(trace.alloc_conf, trace.torch_version)
        self._at = 0

    def of(self, event: int, allocated_bytes: int) -> int:
        """The block of the allocation at ``event``, with so many bytes allocated before. Events in order."""
        requested_bytes = self._trace.size_bytes[event]
        if self._curve is None:
            return rounded_bytes(requested_bytes, self._settings)
        events = self._curve.event
        while events[self._at] < event:
            self._at += 1
        return self._curve.allocated_bytes[self._at] - allocated_bytes
