"""A snapshot as one JSON object, for programs that read neither pickles nor columns."""

from __future__ import annotations

from typing import Any

from tidegauge.analysis.snapshots.live_stacks import code_lines
from tidegauge.analysis.snapshots.packed import plain
from tidegauge.analysis.snapshots.traces import Snapshot
from tidegauge.core.allocator.trace import Action, KnownSegment, Trace
from tidegauge.core.evidence.owners import CodeLine


def plain_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Stacks are lists of places in ``frames``, innermost first; ``stack`` is a place in ``stacks``, or null."""
    frames: dict[CodeLine, int] = {}
    stacks = [[frames.setdefault(line, len(frames)) for line in stack] for stack in code_lines(snapshot.stacks)]
    return {
        "frames": [line._asdict() for line in frames],
        "stacks": stacks,
        "settings": plain(snapshot.settings, "allocator_settings"),
        "facts": plain(snapshot.facts, "facts"),
        "devices": [_device(trace) for trace in snapshot.traces.values()],
    }


def _device(trace: Trace) -> dict[str, Any]:
    """``events`` are columns; those that the recording lacks are null."""
    stack = [None if number < 0 else number for number in trace.stack]
    return {
        "device": trace.device,
        "torch_version": trace.torch_version,
        "alloc_conf": trace.alloc_conf,
        "segments": [_segment(segment) for segment in trace.end or ()],
        "events": {
            "action": [Action(code).name.lower() for code in trace.action],
            "address": trace.address.tolist(),
            "size_bytes": trace.size_bytes.tolist(),
            "stream": [trace.streams[number] for number in trace.stream],
            "time_us": trace.time_us.tolist() or None,
            "pool": [trace.pools[number] for number in trace.pool] or None,
            "stack": stack or None,
        },
        "skipped": dict(trace.skipped),
    }


def _segment(segment: KnownSegment) -> dict[str, Any]:
    blocks = [{**block._asdict(), "state": block.state.name.lower()} for block in segment.blocks]
    return {**segment._asdict(), "blocks": blocks}
