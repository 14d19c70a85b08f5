"""The formats of ``tidegauge export``: one snapshot, or the growth between two, in each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.growth.diff import Comparison, compare
from tidegauge.analysis.growth.flame_graphs import folded, pprof, speedscope
from tidegauge.analysis.snapshots.live_stacks import Lines, StackWeight, allocated_weights, code_lines, live_weights
from tidegauge.analysis.snapshots.packed import plain
from tidegauge.analysis.snapshots.torch_pickle import torch_pickle
from tidegauge.analysis.snapshots.traces import Snapshot, trace_with_memory
from tidegauge.cli.errors import bad_file
from tidegauge.cli.offline.diff_page import Compared, as_json
from tidegauge.core.allocator.trace import Action, KnownSegment, Trace
from tidegauge.core.evidence.owners import CodeLine


def plain_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as JSON: ``stacks`` has indices into ``frames``, innermost first, and ``stack`` into ``stacks``."""
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
    """One device as a JSON object; ``events`` are columns, null if the recording lacks them."""
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
            "metadata": [trace.words[word] if word >= 0 else None for word in trace.metadata] or None,
        },
        "skipped": dict(trace.skipped),
    }


def _segment(segment: KnownSegment) -> dict[str, Any]:
    blocks = [{**block._asdict(), "state": block.state.name.lower()} for block in segment.blocks]
    return {**segment._asdict(), "blocks": blocks}


INUSE = (("inuse_space", "bytes"), ("inuse_objects", "count"))
ALLOCATED = (("alloc_space", "bytes"), ("alloc_objects", "count"))
"""Sample types of Go's heap profiles: memory in use at the end, and all allocations of the history."""

Named = tuple[str, Snapshot]
"""A snapshot and the file or URL that it came from."""


def exported(snapshots: Sequence[Named], form: str, device: Optional[int]) -> bytes:
    """The content of the file: live memory of one snapshot, or growth between two. Raises ``CommandError``."""
    if len(snapshots) == 1 and form in ("torch", "json"):
        whole = snapshots[0][1]
        return torch_pickle(whole) if form == "torch" else _json(plain_snapshot(whole))
    traces = [_trace(named, device) for named in snapshots]
    if len(traces) == 1:
        return _weighed(live_weights(traces[0]), form, snapshots, traces[0])
    comparison = compare(*traces)
    if form == "json":
        return _json(as_json(Compared(comparison, None, None), "stack", None))
    return _weighed(_changes(comparison), form, snapshots, None)


def _trace(named: Named, device: Optional[int]) -> Trace:
    try:
        return trace_with_memory(named[1], device)
    except BadTraceError as error:
        raise bad_file(named[0], error) from error


def _changes(comparison: Comparison) -> list[StackWeight]:
    """The changes as weights; shrunk ones are negative, which pprof shows and flame graphs omit."""
    changed = (*comparison.growth, *comparison.shrunk)
    return [StackWeight(one.stack, one.grown_bytes, one.blocks) for one in changed]


def _weighed(
    weights: Sequence[StackWeight], form: str, snapshots: Sequence[Named], with_history: Optional[Trace]
) -> bytes:
    """The weights in a format; pprof also gets the allocations of ``with_history``."""
    name = " -> ".join(file for file, _ in snapshots)
    if form == "folded":
        return "".join(f"{line}\n" for line in folded(weights)).encode()
    if form == "speedscope":
        title = "live bytes by stack" if with_history is not None else "growth of live bytes by stack"
        return speedscope(weights, name=name, title=title).encode()
    unix_s = snapshots[-1][1].facts.get("unix_s")
    history = [] if with_history is None else allocated_weights(with_history)
    return pprof(
        _side_by_side(weights, history),
        INUSE + ALLOCATED if history else INUSE,
        comment=f"tidegauge export {name}",
        unix_s=unix_s if isinstance(unix_s, float) and 0 <= unix_s < 1 << 33 else None,
    )


def _side_by_side(inuse: Sequence[StackWeight], allocated: Sequence[StackWeight]) -> Mapping[Lines, Sequence[int]]:
    values: dict[Lines, list[int]] = {}
    width = len(INUSE) + (len(ALLOCATED) if allocated else 0)
    for first, weights in ((0, inuse), (len(INUSE), allocated)):
        for one in weights:
            sample = values.setdefault(one.stack, [0] * width)
            sample[first] += one.weight_bytes
            sample[first + 1] += one.blocks
    return values


def _json(value: object) -> bytes:
    return f"{json.dumps(value)}\n".encode()
