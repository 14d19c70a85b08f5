"""Converts snapshots of Tidegauge's own format (``core.snapshot_columns``) into the analysis' values.

Nothing is lost that a replay, a what-if, an explained out-of-memory, a comparison or PyTorch's viewer needs. What a
snapshot of PyTorch's has besides is left behind: ``compile_context``, ``external_annotations``.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots.events import check_clock
from tidegauge.analysis.snapshots.segments import in_order
from tidegauge.analysis.snapshots.stack_table import DEEPEST
from tidegauge.analysis.snapshots.traces import (
    Snapshot,
    SnapshotParts,
    put_together,
)
from tidegauge.core.allocator.trace import BlockState, Frame, KnownBlock, KnownSegment, Stack, Trace
from tidegauge.core.snapshot_columns import (
    BLOCKS,
    EXPANDABLE,
    LARGE,
    LARGEST,
    SEGMENTS,
    DeviceColumns,
    PackedSnapshot,
)

SKIPPED_FACT = "skipped"
_DEEPEST_SETTING = 8


def from_packed(packed: PackedSnapshot) -> Snapshot:
    """The snapshot in ``packed``, checked for nonsense. Raises ``BadTraceError`` with the place."""
    recorded = {one.device: _events(one, packed) for one in packed.devices}
    ends = {one.device: _segments(one) for one in packed.devices if one.segments["address"]}
    entry_keys = {"pool_id"} if any(trace.pool for trace in recorded.values()) else set()
    return put_together(SnapshotParts(recorded, ends, _stacks(packed), packed.settings, packed.facts, entry_keys))


def _stacks(packed: PackedSnapshot) -> tuple[Stack, ...]:
    texts, columns = packed.texts, packed.frames
    frames = [
        Frame(texts[name], texts[filename], line)
        for name, filename, line in zip(columns["name"], columns["filename"], columns["line"])
    ]
    rest = iter(packed.stack_frames)
    lists = (list(islice(rest, depth)) for depth in packed.stacks["depth"])
    return tuple(tuple(map(frames.__getitem__, numbers[:DEEPEST])) for numbers in lists)


def _events(one: DeviceColumns, packed: PackedSnapshot) -> Trace:
    columns = one.events
    metadata, words = _metadata(columns["metadata"], packed.texts)
    check_clock(columns["time_us"], one.device)
    return Trace(
        action=columns["action"],
        address=columns["address"],
        size_bytes=columns["size_bytes"],
        stream=columns["stream"],
        time_us=columns["time_us"],
        pool=columns["pool"],
        stack=columns["stack"],
        streams=tuple(one.streams),
        pools=tuple(one.pools),
        skipped=_skipped(packed.facts, one.device),
        metadata=metadata,
        words=words,
    )


def _metadata(column: array[int], texts: Sequence[str]) -> tuple[array[int], tuple[str, ...]]:
    """The words alone, numbered in the order of their first event: the file has them among all its texts."""
    numbers = {-1: -1}
    metadata = array("i", (numbers.setdefault(text, len(numbers) - 1) for text in column))
    return metadata, tuple(texts[text] for text in numbers if text >= 0)


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


def plain(value: object, where: str, depth: int = 0) -> Any:
    """``value`` of a snapshot's settings or facts as JSON has it; null for what it has no word for."""
    if depth > _DEEPEST_SETTING:
        raise BadTraceError(f"{where}: is nested more than {_DEEPEST_SETTING} deep")
    if isinstance(value, (dict, Mapping)):
        return {key: plain(part, where, depth + 1) for key, part in value.items() if isinstance(key, str)}
    if isinstance(value, (list, tuple)):
        return [plain(part, where, depth + 1) for part in value]
    return value if isinstance(value, (str, int, float, bool)) else None
