"""A memory snapshot of either format as values: the columns of each device, stacks, settings, facts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple, Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots.events import SnapshotEvents
from tidegauge.analysis.snapshots.stream_handles import with_handles
from tidegauge.analysis.snapshots.versions import effective_conf
from tidegauge.core.allocator.trace import KnownSegment, Stack, Trace

KEYS_FACT = "torch_by_keys"
"""Where a file no longer has the keys of PyTorch's own snapshot: the torch that they betrayed."""
_NO_EVENTS = SnapshotEvents(
    array("B"), array("Q"), array("Q"), array("H"), array("q"), array("H"), array("i"),
    streams=(0,), pools=((0, 0),), skipped={}, keys=frozenset(),
)  # fmt: skip


class Snapshot(NamedTuple):
    """A snapshot by device."""

    traces: Mapping[int, Trace]
    """Of each device that has segments or events; ``Trace.end`` are its segments. Without a history the trace is empty.

    Not yet looked at: whether its first event is the process's first (``beginnings.with_start``).
    """
    stacks: tuple[Stack, ...]
    """What ``Trace.stack`` and ``KnownBlock.stack`` index, the same table for all devices."""
    facts: Mapping[str, object]
    """What Tidegauge's probe added, else empty."""
    settings: Mapping[str, object] = {}
    """``allocator_settings``, as the file has them."""


class SnapshotParts(NamedTuple):
    """Parts of a snapshot as read from a file, not yet put together."""

    recorded: Mapping[int, SnapshotEvents]
    ends: Mapping[int, tuple[KnownSegment, ...]]
    stacks: tuple[Stack, ...]
    settings: Mapping[str, object]
    facts: Mapping[str, object]
    by_keys: Optional[str]
    """The torch that wrote it, as far as the keys betray it (``snapshot_versions.oldest_torch``)."""


def put_together(parts: SnapshotParts) -> Snapshot:
    """The snapshot, with a trace for each device that has segments or events. Raises ``BadTraceError``."""
    conf = effective_conf(parts.settings)
    devices = sorted({*parts.ends, *(device for device, events in parts.recorded.items() if events.action)})
    traces = {device: _trace(parts, device, conf) for device in devices}
    return Snapshot(traces, parts.stacks, parts.facts, parts.settings)


def facts_of_keys(snapshot: Snapshot) -> dict[str, object]:
    """The torch version inferred from PyTorch's keys, as a fact for a file that will not have these keys."""
    version = next((trace.torch_version for trace in snapshot.traces.values()), None)
    return {} if version is None else {KEYS_FACT: version}


def trace_with_memory(snapshot: Snapshot, device: Optional[int] = None) -> Trace:
    """The one device that holds anything, or the one asked for. Raises ``BadTraceError`` where there is a choice."""
    held = {number: trace for number, trace in snapshot.traces.items() if trace.end}
    there = ", ".join(map(str, sorted(held)))
    if not held:
        raise BadTraceError("is a snapshot of a process that held nothing on any device")
    if device is None and len(held) > 1:
        raise BadTraceError(f"holds memory of devices {there}: choose one with --device")
    if device is not None and device not in held:
        raise BadTraceError(f"holds nothing of device {device}; there are devices {there}")
    return held[next(iter(held)) if device is None else device]


def _torch_version(parts: SnapshotParts) -> Optional[str]:
    known = parts.facts.get(KEYS_FACT)
    if known is not None and not isinstance(known, str):
        raise BadTraceError(f"its facts: {KEYS_FACT!r} should be a text, and is {shown(known)}")
    return known or parts.by_keys


def _trace(parts: SnapshotParts, device: int, alloc_conf: str) -> Trace:
    events, end = parts.recorded.get(device, _NO_EVENTS), parts.ends.get(device, ())
    streams, stream = with_handles(events.streams, events.stream, (segment.stream for segment in end))
    pools = events.pools + tuple(sorted({segment.pool for segment in end} - set(events.pools)))
    return Trace(
        action=events.action,
        address=events.address,
        size_bytes=events.size_bytes,
        stream=stream,
        time_us=events.time_us,
        pool=events.pool,
        stack=events.stack,
        streams=streams,
        pools=pools,
        stacks=parts.stacks,
        device=device,
        torch_version=_torch_version(parts),
        alloc_conf=alloc_conf,
        complete=False,
        end=end,
        skipped=events.skipped,
    )
