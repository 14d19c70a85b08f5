"""Reads a snapshot taken at an out-of-memory error or after it: owners of memory, and the failed allocation's figures.

PyTorch's own snapshot says what was held. What was refused it says only where a history was recorded (its ``oom``
entries); the probe of Tidegauge writes it beside the rest (``snapshots.OWN_KEY``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Optional

from tidegauge.analysis.snapshots.live_stacks import code_lines
from tidegauge.analysis.snapshots.traces import Snapshot, memory_events, one_device
from tidegauge.core.allocator.trace import Action, BlockState, Trace
from tidegauge.core.allocator_sizes import segment_bytes
from tidegauge.core.evidence.held_memory import FreeBlock, HeldMemory, hold
from tidegauge.core.evidence.owners import LiveBlock
from tidegauge.core.oom import is_expandable
from tidegauge.core.oom.case import OomCase

MAX_FIGURE_BYTES = 1 << 60


class OomSnapshot(NamedTuple):
    """One device of a snapshot, examined for an out-of-memory error."""

    device: int
    trace: Trace
    held: HeldMemory
    reserved_bytes: int
    case: Optional[OomCase]
    """``None`` where the snapshot does not say what was refused."""
    torch_version: Optional[str]
    at_the_refusal: bool
    """Taken by Tidegauge's probe at that very moment; otherwise some time after it, when more may have been freed."""


def look_into(snapshot: Snapshot, *, device: Optional[int] = None, cap_bytes: Optional[int] = None) -> OomSnapshot:
    """The device that ran out of memory; ``device`` if given. Raises ``BadTraceError`` where there is a choice."""
    number = _device(snapshot, device)
    trace = snapshot.traces[number]
    segments = trace.end or ()
    held = held_in(trace)
    facts = snapshot.facts if snapshot.facts.get("device") == number else {}
    reserved_bytes = sum(segment.total_bytes for segment in segments)
    refused = _refused_by_facts(facts) or _refused_by_trace(trace, cap_bytes or trace.cap_bytes)
    version = snapshot.facts.get("torch_version")
    return OomSnapshot(
        device=number,
        trace=trace,
        held=held,
        reserved_bytes=reserved_bytes,
        case=None if refused is None else _case(refused, held, reserved_bytes, trace.alloc_conf),
        torch_version=version if isinstance(version, str) else trace.torch_version,
        at_the_refusal=bool(facts),
    )


def held_in(trace: Trace) -> HeldMemory:
    """The memory held by the segments at the end of ``trace``."""
    live, free, pending_bytes = [], [], 0
    lines = code_lines(trace.stacks)
    for segment in trace.end or ():
        for block in segment.blocks:
            if block.state is BlockState.INACTIVE:
                free.append(FreeBlock(block.size_bytes, segment.stream, segment.is_large, segment.pool))
            elif block.state is BlockState.ACTIVE_PENDING_FREE:
                pending_bytes += block.size_bytes
            else:
                stack = () if block.stack is None else lines[block.stack]
                live.append(LiveBlock(block.size_bytes, stack))
    return hold(live, free, pending_bytes=pending_bytes)


def history_of(snapshot: OomSnapshot, *, torch_version: Optional[str] = None, cap_bytes: Optional[int] = None) -> Trace:
    """The trace of ``snapshot`` under the cap that refused, where one is known, with the state before its first event.

    ``torch_version`` and ``cap_bytes`` are what the caller knows better. Raises ``ValueError``.
    """
    from tidegauge.analysis.traces.reading import with_beginning  # this loads the allocator's model

    return with_beginning(
        replace(
            snapshot.trace,
            torch_version=torch_version or snapshot.torch_version,
            cap_bytes=cap_bytes or _cap_of(snapshot),
        )
    )


def _cap_of(snapshot: OomSnapshot) -> Optional[int]:
    """The cap that refused; the device's size is no cap."""
    case = snapshot.case
    return case.limit_bytes if case is not None and case.capped and not case.approximate else snapshot.trace.cap_bytes


class _Refused(NamedTuple):
    wanted_bytes: int
    free_bytes: int
    limit_bytes: int
    total_bytes: Optional[int]


def _device(snapshot: Snapshot, device: Optional[int]) -> int:
    """The one asked for, else the one that the probe names, that has an ``oom`` entry, or that holds anything."""
    held = [number for number, trace in snapshot.traces.items() if trace.end or memory_events(trace)]
    if device is None:
        named = snapshot.facts.get("device")
        ran_out = [number for number in held if Action.OOM in snapshot.traces[number].action]
        held = [number for number in held if number == named] or ran_out or held
    return one_device(held, device)


def _refused_by_facts(facts: Mapping[str, object]) -> Optional[_Refused]:
    wanted, free, limit = (_count(facts.get(name)) for name in ("wanted_bytes", "free_bytes", "limit_bytes"))
    if wanted is None or free is None or limit is None:
        return None
    return _Refused(wanted, free, limit, _count(facts.get("total_bytes")) or None)


def _refused_by_trace(trace: Trace, cap_bytes: Optional[int]) -> Optional[_Refused]:
    """The figures of the last ``oom`` entry, which names the rounded block, not the segment that was tried."""
    for event in range(len(trace) - 1, -1, -1):
        if trace.action[event] == Action.OOM:
            rounded_bytes = trace.size_bytes[event]
            limit_bytes = cap_bytes or trace.total_bytes or 0
            return _Refused(segment_bytes(rounded_bytes), trace.address[event], limit_bytes, trace.total_bytes)
    return None


def _case(refused: _Refused, held: HeldMemory, reserved_bytes: int, alloc_conf: str) -> OomCase:
    largest = held.largest_for(refused.wanted_bytes)
    limit_bytes, guessed = refused.limit_bytes, False
    if not limit_bytes and refused.free_bytes >= refused.wanted_bytes:
        # The device had room, so that a cap must have refused it: between what was reserved, and that and the request.
        limit_bytes, guessed = reserved_bytes + refused.wanted_bytes // 2, True
    return OomCase(
        wanted_bytes=refused.wanted_bytes,
        free_bytes=refused.free_bytes,
        limit_bytes=limit_bytes,
        allocated_bytes=held.live_bytes,
        reserved_bytes=reserved_bytes,
        usable_bytes=refused.total_bytes,
        cap_fraction=None if not refused.total_bytes else _fraction(refused.limit_bytes, refused.total_bytes),
        private_free_bytes=held.private_free_bytes,
        largest_free_bytes=0 if largest is None else largest.size_bytes,
        expandable=is_expandable(alloc_conf),
        approximate=guessed,
    )


def _fraction(limit_bytes: int, total_bytes: int) -> Optional[float]:
    return limit_bytes / total_bytes if 0 < limit_bytes < total_bytes else None


def _count(value: object) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_FIGURE_BYTES else None
