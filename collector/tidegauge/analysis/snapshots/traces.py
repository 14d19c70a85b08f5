"""A memory snapshot of either format as values: the columns of each device, stacks, settings, facts.

The keys of a snapshot betray the torch version (allocator notes, 0.1 and 3.1).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots.events import with_handles
from tidegauge.analysis.snapshots.fields import mapping
from tidegauge.core.alloc_conf import CUDA_NAME, format_alloc_conf, parse_alloc_conf
from tidegauge.core.allocator.trace import Action, KnownSegment, Stack, Trace

_MIB = 1 << 20


def oldest_torch(
    whole: Container[str], settings: Mapping[str, Any], conf: str, entries: Container[str]
) -> Optional[str]:
    """The oldest version that writes these keys of the snapshot, its settings and its trace entries.

    ``None`` where none of them tells.
    """
    told = (
        ("2.13", "max_round_threshold" in settings or "max_cached_size" in settings),
        ("2.12", "pool_id" in entries),
        ("2.11", "large_segment_size_mb" in conf),
        ("2.10", "user_metadata" in entries or "per_process_memory_fraction" in conf),
        ("2.9", "compile_context" in entries or "graph_capture_record_stream_reuse" in settings),
        ("2.5", "external_annotations" in whole),
    )
    return next((version for version, seen in told if seen), None)


def effective_conf(settings: Mapping[str, Any]) -> str:
    """The settings in force, as text.

    The snapshot has the last text that was given to the allocator. What an earlier call switched on and the last one
    does not mention may still be in force (``expandable_segments`` is): the snapshot's own values show it.
    """
    text = settings.get(CUDA_NAME, "")
    if not isinstance(text, str):
        raise BadTraceError(f"allocator_settings: {CUDA_NAME!r} should be a text, and is {shown(text)}")
    conf = parse_alloc_conf(text)
    for key, value in _reported(settings).items():
        conf.setdefault(key, value)
    return format_alloc_conf(conf)


def _reported(settings: Mapping[str, Any]) -> dict[str, str]:
    """The snapshot's values that are not the default."""
    reported: dict[str, str] = {}
    if settings.get("expandable_segments") is True:
        reported["expandable_segments"] = "True"
    split_bytes = settings.get("max_split_size", -1)
    if isinstance(split_bytes, int) and 0 < split_bytes < 1 << 50:
        reported["max_split_size_mb"] = str(split_bytes // _MIB)
    threshold = settings.get("garbage_collection_threshold", 0.0)
    if isinstance(threshold, float) and 0.0 < threshold < 1.0:
        reported["garbage_collection_threshold"] = repr(threshold)
    divisions = mapping(settings.get("roundup_power2_divisions", {}), "roundup_power2_divisions")
    told = [
        f"{mib}:{count}"
        for mib, count in divisions.items()
        if isinstance(count, int) and 0 < count < 1 << 20 and mib.isdigit()
    ]
    if told:
        reported["roundup_power2_divisions"] = f"[{','.join(told)}]"
    return reported


KEYS_FACT = "torch_by_keys"
"""Where a file no longer has the keys of PyTorch's own snapshot: the torch that they betrayed."""
_NO_EVENTS = Trace(array("B"), array("Q"), array("Q"), array("H"), array("q"), array("H"), array("i"))


class Snapshot(NamedTuple):
    """A snapshot by device."""

    traces: Mapping[int, Trace]
    """Of each device that has segments or events; ``Trace.end`` are its segments. Without a history the trace is empty.

    Not yet looked at: whether its first event is the process's first (``traces.reading.with_beginning``).
    """
    stacks: tuple[Stack, ...]
    """What ``Trace.stack`` and ``KnownBlock.stack`` index, the same table for all devices."""
    facts: Mapping[str, object]
    """What Tidegauge's probe added, else empty."""
    settings: Mapping[str, object] = {}
    """``allocator_settings``, as the file has them."""


class SnapshotParts(NamedTuple):
    """Parts of a snapshot as read from a file, not yet put together."""

    recorded: Mapping[int, Trace]
    """The events of each device, and nothing else."""
    ends: Mapping[int, tuple[KnownSegment, ...]]
    stacks: tuple[Stack, ...]
    settings: Mapping[str, object]
    facts: Mapping[str, object]
    entry_keys: Container[str]
    """Of trace entries; like ``keys``, they betray the torch that wrote them."""
    keys: Container[str] = ()
    """Of PyTorch's own snapshot."""


def put_together(parts: SnapshotParts) -> Snapshot:
    """The snapshot, with a trace for each device that has segments or events. Raises ``BadTraceError``."""
    conf = effective_conf(parts.settings)
    version = _torch_version(parts, conf)
    devices = sorted({*parts.ends, *(device for device, events in parts.recorded.items() if events.action)})
    traces = {device: _trace(parts, device, conf, version) for device in devices}
    return Snapshot(traces, parts.stacks, parts.facts, parts.settings)


def facts_of_keys(snapshot: Snapshot) -> dict[str, object]:
    """The torch version inferred from PyTorch's keys, as a fact for a file that will not have these keys."""
    version = next((trace.torch_version for trace in snapshot.traces.values()), None)
    return {} if version is None else {KEYS_FACT: version}


def memory_events(trace: Trace) -> int:
    """How many events are about memory: PyTorch adds a marker to the history of every visible device it snapshots."""
    return len(trace) - trace.action.count(Action.SNAPSHOT)


def trace_with_memory(snapshot: Snapshot, device: Optional[int] = None) -> Trace:
    """The trace of the one device that holds anything, or of the one asked for. Raises ``BadTraceError``."""
    return snapshot.traces[one_device([number for number, trace in snapshot.traces.items() if trace.end], device)]


def one_device(held: Collection[int], device: Optional[int]) -> int:
    """``device``, or the only one in ``held``. Raises ``BadTraceError`` where there is a choice, or none."""
    there = ", ".join(map(str, sorted(held)))
    if not held:
        raise BadTraceError("is a snapshot of a process that held nothing on any device")
    if device is None and len(held) > 1:
        raise BadTraceError(f"holds memory of devices {there}: choose one with --device")
    if device is not None and device not in held:
        raise BadTraceError(f"holds nothing of device {device}; there are devices {there}")
    return next(iter(held)) if device is None else device


def _torch_version(parts: SnapshotParts, conf: str) -> Optional[str]:
    known = parts.facts.get(KEYS_FACT)
    if known is not None and not isinstance(known, str):
        raise BadTraceError(f"its facts: {KEYS_FACT!r} should be a text, and is {shown(known)}")
    return known or oldest_torch(parts.keys, parts.settings, conf, parts.entry_keys)


def _trace(parts: SnapshotParts, device: int, alloc_conf: str, torch_version: Optional[str]) -> Trace:
    events, end = parts.recorded.get(device, _NO_EVENTS), parts.ends.get(device, ())
    streams, stream = with_handles(events.streams, events.stream, (segment.stream for segment in end))
    return replace(
        events,
        stream=stream,
        streams=streams,
        pools=events.pools + tuple(sorted({segment.pool for segment in end} - set(events.pools))),
        stacks=parts.stacks,
        device=device,
        torch_version=torch_version,
        alloc_conf=alloc_conf,
        complete=False,
        end=end,
    )
