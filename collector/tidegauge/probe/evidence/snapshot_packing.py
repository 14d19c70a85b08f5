"""Packs torch's snapshot into columns (``core.snapshot_columns``), piece by piece, beside training.

The snapshot may come from any torch release: missing keys are left out, unknown words are counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from tidegauge.core.snapshot_columns import (
    BLOCKS,
    EVENTS,
    EXPANDABLE,
    FRAMES,
    LARGE,
    MAX_TEXT_CHARS,
    SEGMENTS,
    STACKS,
    DeviceColumns,
    PackedSnapshot,
    empty,
)
from tidegauge.probe.pacing import Pacer
from tidegauge.probe.runtime.rank_snapshot import RawSnapshot

STATES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2, "active_awaiting_free": 2}
"""``BlockState`` of ``core.allocator.trace``, which the probe does not import; the last name is the documented one."""
ACTIVE_ALLOCATED = STATES["active_allocated"]
ACTIONS = {
    "alloc": 0, "free_requested": 1, "free_completed": 2, "segment_alloc": 3, "segment_free": 4, "segment_map": 5,
    "segment_unmap": 6, "snapshot": 7, "oom": 8, "workspace_snapshot": 9,
}  # fmt: skip
"""``Action`` there."""
ALLOC = ACTIONS["alloc"]
_MAX_DISTINCT = 60_000
"""Streams or pools that a column can index; words of ``user_metadata`` that are kept."""
_LET_GO_AT_ONCE = 200
_NO_EVENTS: Sequence[Mapping[str, Any]] = ()


def pack_columns(raw: RawSnapshot, pacer: Pacer) -> PackedSnapshot:
    """``raw`` in columns. Raises ``StoppedError``."""
    content = raw.content
    stacks = _Stacks()
    skipped: dict[str, int] = {}
    segments_of: dict[int, list[Mapping[str, Any]]] = {}
    for segment in content["segments"]:
        segments_of.setdefault(segment["device"], []).append(segment)
    traces = content.get("device_traces", ())
    devices = sorted({*segments_of, *(device for device, events in enumerate(traces) if events)})
    packed = [
        _device(
            device,
            segments_of.get(device, []),
            traces[device] if device < len(traces) else _NO_EVENTS,
            stacks,
            skipped,
            pacer,
        )
        for device in devices
    ]
    facts = {**raw.facts, **({"skipped": skipped} if skipped else {})}
    settings = content.get("allocator_settings", {})
    return PackedSnapshot(stacks.texts, stacks.frames, stacks.stacks, stacks.stack_frames, packed, settings, facts)


def let_go(raw: RawSnapshot, pacer: Pacer) -> None:
    """Free torch's snapshot in pieces: ten thousand dicts at once take milliseconds."""
    lists = [*raw.content.get("device_traces", ()), *(segment["blocks"] for segment in raw.content["segments"])]
    for each in lists:
        while each:
            del each[-_LET_GO_AT_ONCE:]
            pacer.pace()


def _device(
    device: int,
    segments: Iterable[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
    stacks: _Stacks,
    skipped: dict[str, int],
    pacer: Pacer,
) -> DeviceColumns:
    streams, pools = _Numbered(), _Numbered()
    segment_columns, block_columns, event_columns = empty(SEGMENTS), empty(BLOCKS), empty(EVENTS)
    for segment in segments:
        blocks = segment["blocks"]
        large = LARGE if segment["segment_type"] == "large" else 0
        _append(
            segment_columns,
            address=segment["address"],
            total_bytes=segment["total_size"],
            stream=streams.number(segment["stream"]),
            pool=pools.number(tuple(segment.get("segment_pool_id", (0, 0)))),
            flags=large | (EXPANDABLE if segment.get("is_expandable") else 0),
            blocks=len(blocks),
        )
        for block in blocks:
            state = STATES.get(block["state"], ACTIVE_ALLOCATED)
            _append(
                block_columns,
                size_bytes=block["size"],
                requested_bytes=block.get("requested_size", block["size"]) if state else 0,  # else of its last use
                state=state,
                stack=stacks.number(block.get("frames")) if state else -1,
            )
            pacer.pace()
    absent: set[str] = set()
    has_metadata = False
    for event in events:
        action = ACTIONS.get(event["action"])
        if action is None:
            skipped[str(event["action"])[:60]] = skipped.get(str(event["action"])[:60], 0) + 1
            continue
        absent.update(column for column, key in (("pool", "pool_id"), ("time_us", "time_us")) if key not in event)
        _append(
            event_columns,
            action=action,
            address=max(event.get("addr", event.get("device_free", 0)), 0),
            size_bytes=event["size"],
            stream=streams.number(event["stream"]),
            time_us=event.get("time_us", 0),
            pool=pools.number(tuple(event.get("pool_id", (0, 0)))),
            stack=stacks.number(event.get("frames")),
            metadata=stacks.word(event.get("user_metadata")),
        )
        has_metadata = has_metadata or event_columns["metadata"][-1] >= 0
        pacer.pace()
    if not has_metadata:
        absent.add("metadata")
    for column in absent:  # pools: before torch 2.12
        event_columns[column] = array(event_columns[column].typecode)
    return DeviceColumns(device, streams.values(), pools.values(), segment_columns, block_columns, event_columns)


def _append(columns: dict[str, array[int]], **row: int) -> None:
    for name, value in row.items():
        columns[name].append(value)


class _Numbered:
    """Numbers values in the order of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        number = self._numbers.setdefault(value, len(self._numbers))
        if number >= _MAX_DISTINCT:
            raise ValueError(f"more than {_MAX_DISTINCT:,} streams or pools")
        return number

    def values(self) -> list[Any]:
        return list(self._numbers)


class _Stacks:
    """Distinct frames and stacks. Torch shares its lists of frames, so most are recognised by their identity."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.frames, self.stacks = empty(FRAMES), empty(STACKS)
        self.stack_frames: array[int] = array("I")
        self._texts: dict[str, int] = {}
        self._frames: dict[tuple[int, int, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._by_identity: dict[int, int] = {}
        self._words: set[str] = set()

    def number(self, frames: Optional[Sequence[Mapping[str, Any]]]) -> int:
        """Index of a stack, or -1 for none. The list must live until the end: it is known by its identity."""
        if not frames:
            return -1
        number = self._by_identity.get(id(frames))
        if number is None:
            key = tuple([self._frame(frame) for frame in frames])
            number = self._stacks.get(key)
            if number is None:
                number = self._stacks[key] = len(self._stacks)
                self.stacks["depth"].append(len(key))
                self.stack_frames.extend(key)
            self._by_identity[id(frames)] = number
        return number

    def word(self, metadata: object) -> int:
        """Index of an event's ``user_metadata`` in ``texts``, or -1 for none, and for one beyond the bound."""
        if not isinstance(metadata, str) or not metadata:
            return -1
        word = metadata[:MAX_TEXT_CHARS]
        if word not in self._words:
            if len(self._words) >= _MAX_DISTINCT:
                return -1
            self._words.add(word)
        return self._text(word)

    def _frame(self, frame: Mapping[str, Any]) -> int:
        key = (self._text(frame["name"]), self._text(frame["filename"]), max(min(frame["line"], 1 << 30), 0))
        number = self._frames.get(key)
        if number is None:
            number = self._frames[key] = len(self._frames)
            for column, value in zip(("name", "filename", "line"), key):
                self.frames[column].append(value)
        return number

    def _text(self, text: str) -> int:
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = len(self.texts)
            self.texts.append(text)
        return number
