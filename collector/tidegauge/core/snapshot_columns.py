"""Tidegauge's own memory snapshot format: columns of numbers after a small JSON head, nothing executable.

``pack_parts`` writes it, in pieces, so that the probe can compress it without holding up training; ``unpack`` reads it
and believes nothing. Before compression a file is: ``MAGIC``, the length of the head (``<I``), the head (UTF-8 JSON),
and the columns of ``FRAMES``, ``STACKS`` and, for each device, ``SEGMENTS``, ``BLOCKS`` and ``EVENTS``, little-endian,
back to back in the order of these tables. The probe compresses with zlib, the store with zstandard. Version 1 has no
metadata of events; a snapshot without any is still written so.

What the numbers mean is what ``core.allocator.trace`` says of the fields of the same names.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MAGIC = b"TGSNAP\x01\n"
"""The last but one byte is the version."""
MAGIC_WITH_METADATA = b"TGSNAP\x02\n"
MODULE_WORD = "tidegauge:module:"
"""Begins the ``user_metadata`` of allocations whose module is known; the module's path follows."""
LARGEST = (1 << 63) - 1
MAX_HEAD_BYTES = 32 << 20
MAX_DEVICES = 1_024
MAX_TEXT_CHARS = 1_000
"""Of a name of a function or a file; the rest is cut: whoever looks at names looks at each of their characters."""
ACTIONS, STATES = 10, 3
"""How many codes ``Action`` and ``BlockState`` of ``core.allocator.trace`` have."""
LARGE, EXPANDABLE = 1, 2
"""Bits of a segment's ``flags``."""

Columns = Mapping[str, "array[int]"]
Table = tuple[tuple[str, str], ...]
"""Name and typecode of each column."""

FRAMES: Table = (("name", "I"), ("filename", "I"), ("line", "i"))
"""``name`` and ``filename`` index ``PackedSnapshot.texts``."""
STACKS: Table = (("depth", "I"),)
"""The stacks' frames lie one after the other in ``stack_frames``, innermost first."""
SEGMENTS: Table = (
    ("address", "Q"), ("total_bytes", "Q"), ("stream", "H"), ("pool", "H"), ("flags", "B"), ("blocks", "I"),
)  # fmt: skip
"""``blocks`` is how many blocks the segment has; they lie in ``BLOCKS`` in the order of the segments."""
BLOCKS: Table = (("size_bytes", "Q"), ("requested_bytes", "Q"), ("state", "B"), ("stack", "i"))
EVENTS: Table = (
    ("action", "B"), ("address", "Q"), ("size_bytes", "Q"), ("stream", "H"), ("time_us", "q"), ("pool", "H"),
    ("stack", "i"), ("metadata", "i"),
)  # fmt: skip
"""``metadata`` is torch's ``user_metadata``, an index into ``PackedSnapshot.texts``; -1: none."""
OPTIONAL = frozenset({"time_us", "pool", "stack", "metadata"})
"""Columns of ``EVENTS`` that are empty where the recording does not have them."""
_EVENTS_1 = EVENTS[:-1]
"""Of version 1."""


class SnapshotFormatError(ValueError):
    """The file is not in this format, or is damaged. The text is for people."""


class DeviceColumns(NamedTuple):
    """The columns of one device."""

    device: int
    streams: Sequence[int]
    """What ``stream`` indexes: handles (``cudaStream_t``)."""
    pools: Sequence[tuple[int, int]]
    """What ``pool`` indexes: ``segment_pool_id``."""
    segments: Columns
    blocks: Columns
    events: Columns


class PackedSnapshot(NamedTuple):
    """A whole snapshot."""

    texts: Sequence[str]
    """Names of functions and files, and metadata, each once."""
    frames: Columns
    stacks: Columns
    stack_frames: array[int]
    """Typecode ``I``, indices into ``frames``."""
    devices: Sequence[DeviceColumns]
    settings: Mapping[str, Any]
    """``allocator_settings`` of torch's snapshot."""
    facts: Mapping[str, Any]
    """What Tidegauge adds: ``torch_version``, ``step``, ``unix_s``, ``total_bytes``, ``cap_bytes``, ``skipped`` …"""


def empty(table: Table) -> dict[str, array[int]]:
    """Columns to fill."""
    return {name: array(code) for name, code in table}


def pack_parts(snapshot: PackedSnapshot) -> Iterator[bytes]:
    """The file's pieces in order, none larger than one column."""
    has_metadata = any(one.events["metadata"] for one in snapshot.devices)
    events = EVENTS if has_metadata else _EVENTS_1
    head = {
        "texts": list(snapshot.texts),
        "frames": len(snapshot.frames["line"]),
        "stacks": len(snapshot.stacks["depth"]),
        "stack_frames": len(snapshot.stack_frames),
        "devices": [_device_head(one, events) for one in snapshot.devices],
        "settings": dict(snapshot.settings),
        "facts": dict(snapshot.facts),
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    yield (MAGIC_WITH_METADATA if has_metadata else MAGIC) + struct.pack("<I", len(text))
    yield text
    yield from _column_bytes(FRAMES, snapshot.frames)
    yield from _column_bytes(STACKS, snapshot.stacks)
    yield _little_endian(snapshot.stack_frames)
    for one in snapshot.devices:
        for table, columns in ((SEGMENTS, one.segments), (BLOCKS, one.blocks), (events, one.events)):
            yield from _column_bytes(table, columns)


def pack(snapshot: PackedSnapshot) -> bytes:
    """The whole file, not yet compressed."""
    return b"".join(pack_parts(snapshot))


def unpack(content: bytes) -> PackedSnapshot:
    """The inverse of ``pack``; checks every index and length. Raises ``SnapshotFormatError``."""
    try:
        return _Reader(content).read()
    except SnapshotFormatError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise SnapshotFormatError(f"its head makes no sense ({type(error).__name__})") from error


def _device_head(one: DeviceColumns, events: Table) -> dict[str, Any]:
    return {
        "device": one.device,
        "streams": list(one.streams),
        "pools": [list(pool) for pool in one.pools],
        "segments": len(one.segments["address"]),
        "blocks": len(one.blocks["state"]),
        "events": len(one.events["action"]),
        "absent": sorted(name for name, _ in events if name in OPTIONAL and not one.events[name]),
    }


def _column_bytes(table: Table, columns: Columns) -> Iterator[bytes]:
    for name, code in table:
        column = columns[name]
        assert column.typecode == code, f"{name} is {column.typecode}, not {code}"
        yield _little_endian(column)


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    column = column[:]
    column.byteswap()
    return column.tobytes()


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self._at = 0
        self._has_metadata = False

    def read(self) -> PackedSnapshot:
        head = self._head()
        texts = head["texts"]
        _check(isinstance(texts, list) and all(isinstance(text, str) for text in texts), "its texts are no texts")
        frames = self._table(FRAMES, _count(head["frames"]))
        stacks = self._table(STACKS, _count(head["stacks"]))
        stack_frames = self._column("I", _count(head["stack_frames"]))
        _check(_below(frames["name"], len(texts)) and _below(frames["filename"], len(texts)), "a frame has no name")
        _check(sum(stacks["depth"]) == len(stack_frames), "its stacks do not fit their frames")
        _check(_below(stack_frames, len(frames["line"])), "a stack names a frame that is not there")
        _check(len(head["devices"]) <= MAX_DEVICES, f"it has more than {MAX_DEVICES:,} devices")
        devices = [self._device(one, stacks=len(stacks["depth"]), texts=len(texts)) for one in head["devices"]]
        _check(len({one.device for one in devices}) == len(devices), "it has a device twice")
        _check(self._at == len(self._content), f"{len(self._content) - self._at:,} bytes follow its end")
        settings, facts = head["settings"], head["facts"]
        _check(isinstance(settings, dict) and isinstance(facts, dict), "its settings or facts are no mapping")
        return PackedSnapshot(
            tuple(text[:MAX_TEXT_CHARS] for text in texts), frames, stacks, stack_frames, devices, settings, facts
        )

    def _head(self) -> dict[str, Any]:
        magic = bytes(self._take(len(MAGIC), "its first bytes"))
        self._has_metadata = magic == MAGIC_WITH_METADATA
        is_known = magic == MAGIC or self._has_metadata
        if magic[:6] == MAGIC[:6] and not is_known:
            raise SnapshotFormatError(f"it is of version {magic[6]}; this Tidegauge reads versions 1 and 2")
        _check(is_known, "it is no snapshot of Tidegauge's")
        (length,) = struct.unpack("<I", self._take(4, "the length of its head"))
        _check(length <= MAX_HEAD_BYTES, f"its head has {length:,} bytes; {MAX_HEAD_BYTES:,} are read at most")
        head = json.loads(bytes(self._take(length, "its head")))
        _check(isinstance(head, dict), "its head is no mapping")
        assert isinstance(head, dict)
        return head

    def _device(self, head: Mapping[str, Any], *, stacks: int, texts: int) -> DeviceColumns:
        device = _count(head["device"])
        streams = tuple(_count(stream) for stream in head["streams"])
        pools = tuple((_count(first), _count(second)) for first, second in head["pools"])
        absent = frozenset(head["absent"])
        if not self._has_metadata:
            absent |= {"metadata"}
        _check(absent <= OPTIONAL, "a column is absent that must be there")
        segments = self._table(SEGMENTS, _count(head["segments"]))
        blocks = self._table(BLOCKS, _count(head["blocks"]))
        events = self._table(EVENTS, _count(head["events"]), absent)
        where = f"of device {device}"
        for columns in (segments, events):
            _check(_below(columns["stream"], len(streams)), f"a stream {where} is not there")
            _check(_below(columns["pool"], len(pools)), f"a pool {where} is not there")
        for columns in (blocks, events):
            _check(_below(columns["stack"], stacks, least=-1), f"a stack {where} is not there")
        _check(_below(events["metadata"], texts, least=-1), f"a word {where} is not there")
        _check(_below(segments["flags"], 4), f"a segment {where} has unknown flags")
        _check(_below(blocks["state"], STATES), f"a block {where} has an unknown state")
        _check(_below(events["action"], ACTIONS), f"an event {where} is of an unknown kind")
        _check(sum(segments["blocks"]) == len(blocks["state"]), f"the segments {where} do not fit their blocks")
        return DeviceColumns(device, streams, pools, segments, blocks, events)

    def _table(self, table: Table, count: int, absent: frozenset[str] = frozenset()) -> dict[str, array[int]]:
        return {name: self._column(code, 0 if name in absent else count) for name, code in table}

    def _column(self, code: str, count: int) -> array[int]:
        column = array(code)
        column.frombytes(self._take(count * column.itemsize, "a column"))
        if sys.byteorder == "big":
            column.byteswap()
        if code in "Qq":
            _check(_below(column, LARGEST + 1), "a number in it is beyond all measure")
        return column

    def _take(self, length: int, what: str) -> memoryview:
        if self._at + length > len(self._content):
            raise SnapshotFormatError(f"it ends within {what}")
        taken = self._content[self._at : self._at + length]
        self._at += length
        return taken


def _below(column: array[int], end: int, *, least: int = 0) -> bool:
    return not column or (least <= min(column) and max(column) < end)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise SnapshotFormatError("a count or a handle in its head is no whole number")
    return value


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SnapshotFormatError(otherwise)
