"""Converts snapshots between Tidegauge's own format (``core.snapshot_columns``) and the analysis' values.

Nothing is lost that a replay, a what-if, an explained out-of-memory, a comparison or PyTorch's viewer needs. What a
snapshot of PyTorch's has besides is left behind: ``compile_context``, ``user_metadata``, ``external_annotations``.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import islice
from typing import Any, Optional

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots.events import SnapshotEvents, check_clock
from tidegauge.analysis.snapshots.segments import in_order
from tidegauge.analysis.snapshots.stack_table import DEEPEST
from tidegauge.analysis.snapshots.traces import (
    Snapshot,
    SnapshotParts,
    facts_of_keys,
    put_together,
)
from tidegauge.core.allocator.trace import BlockState, Frame, KnownBlock, KnownSegment, Stack, Trace
from tidegauge.core.snapshot_columns import (
    BLOCKS,
    EVENTS,
    EXPANDABLE,
    FRAMES,
    LARGE,
    LARGEST,
    SEGMENTS,
    STACKS,
    DeviceColumns,
    PackedSnapshot,
    empty,
)

SKIPPED_FACT = "skipped"
_DEEPEST_SETTING = 8


def from_packed(packed: PackedSnapshot) -> Snapshot:
    """The snapshot in ``packed``, checked for nonsense. Raises ``BadTraceError`` with the place."""
    recorded = {one.device: _events(one, packed.facts) for one in packed.devices}
    ends = {one.device: _segments(one) for one in packed.devices if one.segments["address"]}
    return put_together(SnapshotParts(recorded, ends, _stacks(packed), packed.settings, packed.facts))


def to_packed(snapshot: Snapshot, facts: Optional[Mapping[str, object]] = None) -> PackedSnapshot:
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
    devices = [_columns(trace) for trace in snapshot.traces.values()]
    settings = plain(snapshot.settings, "allocator_settings")
    all_facts = plain({**_own_facts(snapshot), **snapshot.facts, **(facts or {})}, "facts")
    return PackedSnapshot(tuple(texts), frames, stacks, stack_frames, devices, settings, all_facts)


def _own_facts(snapshot: Snapshot) -> dict[str, object]:
    """What the columns do not say."""
    skipped = {str(device): dict(trace.skipped) for device, trace in snapshot.traces.items() if trace.skipped}
    return {**facts_of_keys(snapshot), **({SKIPPED_FACT: skipped} if skipped else {})}


def _stacks(packed: PackedSnapshot) -> tuple[Stack, ...]:
    texts, columns = packed.texts, packed.frames
    frames = [
        Frame(texts[name], texts[filename], line)
        for name, filename, line in zip(columns["name"], columns["filename"], columns["line"])
    ]
    rest = iter(packed.stack_frames)
    lists = (list(islice(rest, depth)) for depth in packed.stacks["depth"])
    return tuple(tuple(map(frames.__getitem__, numbers[:DEEPEST])) for numbers in lists)


def _events(one: DeviceColumns, facts: Mapping[str, Any]) -> SnapshotEvents:
    columns = one.events
    check_clock(columns["time_us"], one.device)
    return SnapshotEvents(
        action=columns["action"],
        address=columns["address"],
        size_bytes=columns["size_bytes"],
        stream=columns["stream"],
        time_us=columns["time_us"],
        pool=columns["pool"],
        stack=columns["stack"],
        streams=tuple(one.streams),
        pools=tuple(one.pools),
        skipped=_skipped(facts, one.device),
        keys=frozenset({"pool_id"} if columns["pool"] else ()),
    )


def _skipped(facts: Mapping[str, Any], device: int) -> Mapping[str, int]:
    by_device = facts.get(SKIPPED_FACT, {})
    skipped = by_device.get(str(device), {}) if isinstance(by_device, dict) else None
    if not isinstance(skipped, dict) or not all(type(count) is int and count > 0 for count in skipped.values()):
        raise BadTraceError(f"its facts: {SKIPPED_FACT!r} should be counts by reason and device")
    return skipped


def _segments(one: DeviceColumns) -> tuple[KnownSegment, ...]:
    rest = zip(*(one.blocks[name] for name, _ in BLOCKS))
    segments = []
    for address, total_bytes, stream, pool, flags, count in zip(*(one.segments[name] for name, _ in SEGMENTS)):
        place = f"the segment of device {one.device} at {address:#x}"
        if address + total_bytes > LARGEST:
            raise BadTraceError(f"{place}: its {total_bytes:,} bytes end beyond all addresses")
        blocks, end = [], address
        for size_bytes, requested_bytes, code, stack in islice(rest, count):
            state = BlockState(code)
            inactive = state is BlockState.INACTIVE
            known = None if inactive or stack < 0 else stack
            blocks.append(KnownBlock(end, size_bytes, 0 if inactive else requested_bytes, state, known))
            end += size_bytes
            if size_bytes == 0:
                raise BadTraceError(f"{place}: a block of it has no size")
        if end != address + total_bytes:
            raise BadTraceError(f"{place}: its blocks have {end - address:,} bytes, and it has {total_bytes:,}")
        segments.append(
            KnownSegment(
                address, total_bytes, one.streams[stream], bool(flags & LARGE), bool(flags & EXPANDABLE),
                one.pools[pool], tuple(blocks),
            )
        )  # fmt: skip
    return in_order(one.device, segments)


def _columns(trace: Trace) -> DeviceColumns:
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
    events = {name: getattr(trace, name) for name, _ in EVENTS}
    return DeviceColumns(trace.device, trace.streams, trace.pools, segments, blocks, events)


def plain(value: object, where: str, depth: int = 0) -> Any:
    """``value`` of a snapshot's settings or facts as JSON has it; null for what it has no word for."""
    if depth > _DEEPEST_SETTING:
        raise BadTraceError(f"{where}: is nested more than {_DEEPEST_SETTING} deep")
    if isinstance(value, (dict, Mapping)):
        return {key: plain(part, where, depth + 1) for key, part in value.items() if isinstance(key, str)}
    if isinstance(value, (list, tuple)):
        return [plain(part, where, depth + 1) for part in value]
    return value if isinstance(value, (str, int, float, bool)) else None
