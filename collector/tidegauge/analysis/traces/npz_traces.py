"""Reads complete event traces from numpy's ``.npz``: the arrays that ``docs/replay.md`` lists."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots.events import indexed
from tidegauge.analysis.traces.npy_arrays import NpyArray, NumberArray, read_npz
from tidegauge.analysis.untrusted_files import MAX_CONTENT_BYTES
from tidegauge.core.allocator.trace import Action, KnownSegment, Trace

_EVENT_ARRAYS = ("action", "addr", "size", "stream")
_CLOCK = "time_us"
"""Left out where the recording has no clock."""
_SEGMENT_COLUMNS = 7
"""Address, total, allocated, active (bytes), stream, whether large, whether expandable."""
_LARGEST = 1 << 63
_GIB = 1 << 30


def read_npz_trace(content: bytes, *, most_bytes: int = MAX_CONTENT_BYTES) -> Trace:
    """The trace in an ``.npz`` file's ``content``. Raises ``BadTraceError``."""
    arrays = read_npz(content, most_bytes=most_bytes)
    meta = _meta(arrays)
    names = (*_EVENT_ARRAYS, _CLOCK) if _CLOCK in arrays else _EVENT_ARRAYS
    columns = {name: _numbers(arrays, name) for name in names}
    length = len(columns["action"].values)
    for name, column in columns.items():
        if column.shape != (length,):
            raise BadTraceError(f"array {name!r} has the shape {column.shape}; {length:,} events need ({length},)")
    streams, stream = indexed(columns["stream"].values)
    pools = _pools(meta)
    time_us = array("q", columns[_CLOCK].values if _CLOCK in columns else ())
    return Trace(
        action=_actions(columns["action"].values, meta),
        address=_unsigned("addr", columns["addr"].values),
        size_bytes=_unsigned("size", columns["size"].values),
        stream=stream,
        time_us=time_us,
        pool=_pool_column(arrays, length, len(pools)),
        stack=array("i"),
        streams=streams,
        pools=pools,
        torch_version=_text(meta, "torch"),
        alloc_conf=_text(meta, "conf") or "",
        cap_bytes=_cap_bytes(meta),
        total_bytes=_whole(meta, "total"),
        end=_segments(arrays, length),
        marks=_marks(arrays, meta, time_us, length),
        lost_events=0,
    )


def _numbers(arrays: Mapping[str, NpyArray], name: str) -> NumberArray:
    found = arrays.get(name)
    if not isinstance(found, NumberArray):
        there = ", ".join(sorted(arrays))
        raise BadTraceError(f"has no array {name!r} of numbers; there are: {shown(there, 200)}")
    return found


def _meta(arrays: Mapping[str, NpyArray]) -> Mapping[str, object]:
    text = arrays.get("meta")
    try:
        meta = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise BadTraceError("array 'meta' is no JSON text") from error
    if not isinstance(meta, dict):
        raise BadTraceError("has no text 'meta' with a JSON object in it: no trace that Tidegauge knows")
    return meta


def _text(meta: Mapping[str, object], key: str) -> Optional[str]:
    value = meta.get(key)
    if value is not None and not isinstance(value, str):
        raise BadTraceError(f"meta: {key!r} should be a text, and is {shown(value)}")
    return value


def _whole(meta: Mapping[str, object], key: str) -> Optional[int]:
    value = meta.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST):
        raise BadTraceError(f"meta: {key!r} should be a number of bytes, and is {shown(value)}")
    return value


def _cap_bytes(meta: Mapping[str, object]) -> Optional[int]:
    """The cap as the allocator computed it: the fraction of the device, cut to whole bytes."""
    if "cap_bytes" in meta:
        return _whole(meta, "cap_bytes")
    cap_gib, total = meta.get("cap_gib"), _whole(meta, "total")
    if cap_gib is None or cap_gib == 0:
        return None
    if not isinstance(cap_gib, (int, float)) or not 0 < cap_gib < 1 << 30 or not total:
        raise BadTraceError(f"meta: 'cap_gib' is {shown(cap_gib)}, of a device of {shown(total)} bytes")
    return int(cap_gib * _GIB / total * total)


def _actions(codes: array[int], meta: Mapping[str, object]) -> array[int]:
    named = meta.get("actions")
    known = {action.name.lower(): int(action) for action in Action}
    if not isinstance(named, dict) or not all(isinstance(code, int) for code in named.values()):
        raise BadTraceError("meta: 'actions' should say which code is which action")
    meaning = {code: known[name] for name, code in named.items() if name in known}
    unknown = set(codes) - set(meaning)
    if unknown:
        code = min(unknown)
        name = next((name for name, number in named.items() if number == code), "which 'meta' does not name")
        raise BadTraceError(f"event {codes.index(code):,}: action {code} ({shown(name)}) is unknown")
    return array("B", map(meaning.__getitem__, codes))


def _unsigned(name: str, values: array[int]) -> array[int]:
    if values and not (min(values) >= 0 and max(values) < _LARGEST):
        event = next(index for index, value in enumerate(values) if not 0 <= value < _LARGEST)
        raise BadTraceError(f"event {event:,}: {name!r} is {values[event]}, which no address or size is")
    return values if values.typecode == "Q" else array("Q", values)


def _pools(meta: Mapping[str, object]) -> tuple[tuple[int, int], ...]:
    pools = meta.get("pools", [[0, 0]])
    if not isinstance(pools, list) or not pools or not all(_is_pool(pool) for pool in pools):
        raise BadTraceError("meta: 'pools' should be a list of pairs of numbers")
    return tuple((first, second) for first, second in pools)


def _is_pool(pool: object) -> bool:
    return (
        isinstance(pool, list)
        and len(pool) == 2
        and all(isinstance(part, int) and 0 <= part < _LARGEST for part in pool)
    )


def _pool_column(arrays: Mapping[str, NpyArray], length: int, pools: int) -> array[int]:
    if "pool" not in arrays:
        return array("H")
    values = _numbers(arrays, "pool").values
    if len(values) != length or (values and not 0 <= min(values) <= max(values) < pools):
        raise BadTraceError(f"array 'pool' should hold one of {pools} pools for each of {length:,} events")
    return array("H", values)


def _segments(arrays: Mapping[str, NpyArray], events: int) -> Optional[tuple[KnownSegment, ...]]:
    if "segs" not in arrays:
        return None
    values, shape = _numbers(arrays, "segs")
    if len(shape) != 2 or shape[1] != _SEGMENT_COLUMNS or (values and min(values) < 0):
        raise BadTraceError(f"array 'segs' has the shape {shape}; it should have {_SEGMENT_COLUMNS} columns")
    rows = (values[start : start + _SEGMENT_COLUMNS] for start in range(0, len(values), _SEGMENT_COLUMNS))
    segments = [KnownSegment(row[0], row[1], row[4], bool(row[5]), bool(row[6]), (0, 0), ()) for row in rows]
    if len(segments) > events:
        raise BadTraceError(f"{len(segments):,} segments at the end cannot come from {events:,} events")
    return tuple(sorted(segments))


def _marks(
    arrays: Mapping[str, NpyArray], meta: Mapping[str, object], time_us: array[int], length: int
) -> dict[str, tuple[int, ...]]:
    """``step``: the last event of each training step, by its row's own index or else by its clock."""
    names = meta.get("step_cols")
    if "steps" not in arrays or not isinstance(names, list):
        return {}
    values, shape = _numbers(arrays, "steps")
    if len(shape) != 2 or shape[1] != len(names):
        raise BadTraceError(f"array 'steps' has the shape {shape}; 'step_cols' names {len(names)} columns")
    if "event" in names:
        events: Iterable[int] = values[names.index("event") :: len(names)]
    elif "time_us" in names and time_us:
        events = (bisect_right(time_us, time) - 1 for time in values[names.index("time_us") :: len(names)])
    else:
        return {}
    return {"step": tuple(event for event in events if 0 <= event < length)}
