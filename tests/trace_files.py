"""Files of traces and snapshots as tests need them: numpy's ``.npz``, and Tidegauge's columns."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from tidegauge.analysis.snapshots.packed import SKIPPED_FACT, plain
from tidegauge.analysis.snapshots.traces import Snapshot, facts_of_keys
from tidegauge.core.allocator.trace import Action, Frame, Trace
from tidegauge.core.snapshot_columns import (
    BLOCKS,
    EVENTS,
    EXPANDABLE,
    FRAMES,
    LARGE,
    SEGMENTS,
    STACKS,
    DeviceColumns,
    PackedSnapshot,
    empty,
)


def to_packed(snapshot: Snapshot, facts: Mapping[str, object] | None = None) -> PackedSnapshot:
    """``snapshot`` as columns, with ``facts`` besides its own. Settings that JSON has no word for are left out."""
    texts: dict[str, int] = {}
    known: dict[Frame, int] = {}
    frames, stacks, stack_frames = empty(FRAMES), empty(STACKS), array("I")
    for stack in snapshot.stacks:
        stacks["depth"].append(len(stack))
        for frame in stack:
            if frame not in known:
                known[frame] = len(known)
                frames["name"].append(texts.setdefault(frame.name, len(texts)))
                frames["filename"].append(texts.setdefault(frame.filename, len(texts)))
                frames["line"].append(frame.line)
            stack_frames.append(known[frame])
    devices = [_columns(trace, texts) for trace in snapshot.traces.values()]
    settings = plain(snapshot.settings, "allocator_settings")
    all_facts = plain({**_own_facts(snapshot), **snapshot.facts, **(facts or {})}, "facts")
    return PackedSnapshot(tuple(texts), frames, stacks, stack_frames, devices, settings, all_facts)


def _own_facts(snapshot: Snapshot) -> dict[str, object]:
    """What the columns do not say."""
    skipped = {str(device): dict(trace.skipped) for device, trace in snapshot.traces.items() if trace.skipped}
    return {**facts_of_keys(snapshot), **({SKIPPED_FACT: skipped} if skipped else {})}


def _columns(trace: Trace, texts: dict[str, int]) -> DeviceColumns:
    stream_of = {handle: number for number, handle in enumerate(trace.streams)}
    pool_of = {pool: number for number, pool in enumerate(trace.pools)}
    segments, blocks = empty(SEGMENTS), empty(BLOCKS)
    for segment in trace.end or ():
        flags = LARGE * segment.is_large | EXPANDABLE * segment.is_expandable
        row = (segment.address, segment.total_bytes, stream_of[segment.stream], pool_of[segment.pool], flags)
        for (name, _), value in zip(SEGMENTS, (*row, len(segment.blocks))):
            segments[name].append(value)
        for block in segment.blocks:
            stack = -1 if block.stack is None else block.stack
            for (name, _), value in zip(BLOCKS, (block.size_bytes, block.requested_bytes, block.state, stack)):
                blocks[name].append(value)
    words = [*(texts.setdefault(word, len(texts)) for word in trace.words), -1]
    events = {name: getattr(trace, name) for name, _ in EVENTS}
    events["metadata"] = array("i", (words[word] for word in trace.metadata))
    return DeviceColumns(trace.device, trace.streams, trace.pools, segments, blocks, events)


def write_npz_trace(trace: Trace) -> bytes:
    """A complete ``trace`` as ``read_npz_trace`` reads it; stacks, blocks and pools of segments are not part of it."""
    meta = {
        "conf": trace.alloc_conf,
        "cap_bytes": trace.cap_bytes,
        "total": trace.total_bytes,
        "actions": {action.name.lower(): int(action) for action in Action},
        "torch": trace.torch_version,
        "pools": trace.pools,
        "step_cols": ["step", "event"],
    }
    arrays: dict[str, Any] = {
        "action": np.array(trace.action),
        "addr": np.array(trace.address),
        "size": np.array(trace.size_bytes),
        "stream": np.array([trace.streams[number] for number in trace.stream], np.uint64),
        "steps": np.array(list(enumerate(trace.marks.get("step", ()))), np.int64).reshape(-1, 2),
        "meta": np.array(json.dumps(meta)),
    }
    if trace.time_us:
        arrays["time_us"] = np.array(trace.time_us)
    if trace.pool:
        arrays["pool"] = np.array(trace.pool)
    if trace.end is not None:
        rows = [(one.address, one.total_bytes, 0, 0, one.stream, one.is_large, one.is_expandable) for one in trace.end]
        arrays["segs"] = np.array(rows, np.uint64).reshape(-1, 7)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()
