"""Writes a snapshot as ``torch.cuda.memory._dump_snapshot`` does, for pytorch.org/memory_viz and torch's tools.

Its reader in the browser knows protocols 2 to 4 and some forty opcodes: those of dicts, lists, pairs, texts and
numbers. Frames and stacks are shared objects, as torch has them, so that each is in the file once.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from tidegauge.analysis.snapshots.pickles import OWN_KEY
from tidegauge.analysis.snapshots.traces import Snapshot, facts_of_keys
from tidegauge.core.allocator.trace import Action, BlockState, KnownSegment, Trace

PROTOCOL = 4

_Frames = Sequence[list[dict[str, Any]]]
_NO_FRAMES: list[dict[str, Any]] = []


def torch_pickle(snapshot: Snapshot) -> bytes:
    """The whole file. Needs some half a kilobyte of memory an event while it is made."""
    return pickle.dumps(torch_snapshot(snapshot), protocol=PROTOCOL)


def torch_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """The dict that ``torch.cuda.memory._snapshot()`` returns, with Tidegauge's facts under a key of their own."""
    known: dict[Any, dict[str, Any]] = {}
    frames = [[known.setdefault(frame, frame._asdict()) for frame in stack] for stack in snapshot.stacks]
    traces = snapshot.traces
    whole = {
        "segments": [
            _segment(segment, device, frames) for device, trace in traces.items() for segment in trace.end or ()
        ],
        # A list for each device up to the last: the viewer offers none that is not there.
        "device_traces": [
            list(_entries(traces[device], frames)) if device in traces else []
            for device in range(max(traces, default=-1) + 1)
        ],
        "allocator_settings": dict(snapshot.settings),
        "external_annotations": [],
    }
    facts = {**facts_of_keys(snapshot), **snapshot.facts}
    return {**whole, OWN_KEY: facts} if facts else whole


def _segment(segment: KnownSegment, device: int, frames: _Frames) -> dict[str, Any]:
    blocks = segment.blocks
    active = [block for block in blocks if block.state is not BlockState.INACTIVE]
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.total_bytes,
        "allocated_size": sum(block.size_bytes for block in blocks if block.state is BlockState.ACTIVE_ALLOCATED),
        "active_size": sum(block.size_bytes for block in active),
        "requested_size": sum(block.requested_bytes for block in active),
        "stream": segment.stream,
        "segment_type": "large" if segment.is_large else "small",
        "segment_pool_id": segment.pool,
        "is_expandable": segment.is_expandable,
        "frames": _NO_FRAMES,
        "blocks": [
            {
                "address": block.address,
                "size": block.size_bytes,
                "requested_size": block.requested_bytes,
                "state": block.state.name.lower(),
                "frames": _NO_FRAMES if block.stack is None else frames[block.stack],
            }
            for block in blocks
        ],
    }


def _entries(trace: Trace, frames: _Frames) -> Iterator[dict[str, Any]]:
    names = {int(action): action.name.lower() for action in Action}
    for event, action in enumerate(trace.action):
        entry: dict[str, Any] = {
            "action": names[action],
            "device_free" if action == Action.OOM else "addr": trace.address[event],
            "size": trace.size_bytes[event],
            "stream": trace.streams[trace.stream[event]],
        }
        if trace.time_us:
            entry["time_us"] = trace.time_us[event]
        if trace.pool:
            entry["pool_id"] = trace.pools[trace.pool[event]]
        if trace.metadata:
            word = trace.metadata[event]
            entry["user_metadata"] = trace.words[word] if word >= 0 else ""
        # torch leaves the key out where no stack was recorded; some of its own tools want it all the same.
        number = trace.stack[event] if trace.stack else -1
        yield {**entry, "frames": _NO_FRAMES if number < 0 else frames[number]}
