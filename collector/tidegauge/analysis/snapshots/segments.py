"""Reads a snapshot's ``segments``: the allocator's memory, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots.fields import LARGEST, mapping, pool_id, sequence, text, whole
from tidegauge.analysis.snapshots.stack_table import StackTable
from tidegauge.core.allocator.trace import BlockState, KnownBlock, KnownSegment

_STATES = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE_ALLOCATED,
    "active_pending_free": BlockState.ACTIVE_PENDING_FREE,
    "active_awaiting_free": BlockState.ACTIVE_PENDING_FREE,  # what torch's documentation calls it
}
_KINDS = {"small": False, "large": True}


def read_segments(segments: object, stacks: StackTable) -> dict[int, tuple[KnownSegment, ...]]:
    """The segments of each device, by address. Raises ``BadTraceError`` with the place of what is wrong.

    Blocks that do not cover their segment without gap or overlap are wrong, and so are segments that overlap.
    """
    by_device: dict[int, list[KnownSegment]] = {}
    for index, segment in enumerate(sequence(segments, "segments")):
        place = f"segments[{index}]"
        fields = mapping(segment, place)
        device = whole(fields, "device", place) if "device" in fields else 0
        by_device.setdefault(device, []).append(_segment(fields, place, stacks))
    return {device: in_order(device, known) for device, known in by_device.items()}


def _segment(fields: Mapping[str, Any], place: str, stacks: StackTable) -> KnownSegment:
    kind = text(fields, "segment_type", place)
    if kind not in _KINDS:
        raise BadTraceError(f"{place}: 'segment_type' should be 'small' or 'large', and is {shown(kind)}")
    expandable = fields.get("is_expandable", False)
    if not isinstance(expandable, bool):
        raise BadTraceError(f"{place}: 'is_expandable' should be true or false, and is {shown(expandable)}")
    address, total_bytes = whole(fields, "address", place), whole(fields, "total_size", place)
    if address + total_bytes >= LARGEST:
        raise BadTraceError(f"{place}: {total_bytes:,} bytes at {address:#x} end beyond all addresses")
    return KnownSegment(
        address=address,
        total_bytes=total_bytes,
        stream=whole(fields, "stream", place),
        is_large=_KINDS[kind],
        is_expandable=expandable,
        pool=pool_id(fields, "segment_pool_id", place) or (0, 0),
        blocks=_blocks(fields, address, total_bytes, place, stacks),
    )


def _blocks(
    fields: Mapping[str, Any], address: int, total_bytes: int, place: str, stacks: StackTable
) -> tuple[KnownBlock, ...]:
    blocks: list[KnownBlock] = []
    for index, block in enumerate(sequence(fields.get("blocks"), f"{place}: 'blocks'")):
        inside = f"{place}.blocks[{index}]"
        known = _block(mapping(block, inside), address, inside, stacks)
        if known.address != address:
            raise BadTraceError(f"{inside}: is at {known.address:#x}, where {address:#x} comes next in its segment")
        address += known.size_bytes
        total_bytes -= known.size_bytes
        blocks.append(known)
    if total_bytes != 0:
        side = "short of" if total_bytes > 0 else "more than"
        raise BadTraceError(f"{place}: its blocks are {abs(total_bytes):,} bytes {side} its size")
    return tuple(blocks)


def _block(fields: Mapping[str, Any], next_address: int, place: str, stacks: StackTable) -> KnownBlock:
    name = text(fields, "state", place)
    state = _STATES.get(name)
    if state is None:
        raise BadTraceError(f"{place}: 'state' should be one of {', '.join(_STATES)}, and is {shown(name)}")
    size_bytes = whole(fields, "size", place)
    if size_bytes == 0:
        raise BadTraceError(f"{place}: has no size")
    inactive = state is BlockState.INACTIVE
    return KnownBlock(
        # Older versions give blocks no address of their own.
        address=whole(fields, "address", place) if "address" in fields else next_address,
        size_bytes=size_bytes,
        requested_bytes=0 if inactive or "requested_size" not in fields else whole(fields, "requested_size", place),
        state=state,
        stack=None if inactive else _stack(fields, place, stacks),
    )


def _stack(fields: Mapping[str, Any], place: str, stacks: StackTable) -> Optional[int]:
    number = stacks.number(fields.get("frames", []), place)
    return stacks.forward_number(fields["forward_frames"]) if number is None and "forward_frames" in fields else number


def in_order(device: int, segments: list[KnownSegment]) -> tuple[KnownSegment, ...]:
    """The segments by address. Raises ``BadTraceError`` where two of them overlap."""
    segments.sort(key=lambda segment: segment.address)
    for before, after in zip(segments, segments[1:]):
        if before.address + before.total_bytes > after.address:
            raise BadTraceError(
                f"segments of device {device}: the one at {before.address:#x} of {before.total_bytes:,} bytes overlaps "
                f"the one at {after.address:#x}"
            )
    return tuple(segments)
