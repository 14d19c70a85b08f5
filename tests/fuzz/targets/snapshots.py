"""Memory snapshots and traces of hostile jobs: pickles, Tidegauge's columns, ``.npz``, and what they are packed in."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import zstandard

from fuzz.oracles import require
from fuzz.target import Target
from rank_windows import early, late
from tidegauge.analysis.bad_traces import BadTraceError, RefusedPickleError
from tidegauge.analysis.oom.snapshot import look_into
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.snapshots.reading import Snapshot, read_bytes
from tidegauge.analysis.snapshots.restricted_pickle import loads
from tidegauge.analysis.snapshots.torch_pickle import torch_pickle
from tidegauge.analysis.traces.npy_arrays import read_npz
from tidegauge.analysis.traces.npz_traces import read_npz_trace
from tidegauge.analysis.traces.reading import with_beginning
from tidegauge.analysis.untrusted_files import decompressed
from tidegauge.core.allocator.trace import TraceError
from tidegauge.core.snapshot_columns import (
    BLOCKS,
    EVENTS,
    FRAMES,
    MAGIC,
    SEGMENTS,
    SnapshotFormatError,
    Table,
    pack,
    unpack,
)
from trace_files import to_packed, write_npz_trace

DATA = Path(__file__).parents[2] / "data"
MAX_UNPACKED_BYTES = 8 << 20
_PLAIN = (dict, list, tuple, str, bytes, int, float, bool, type(None))
_MAX_HEAD_BYTES = 1 << 14
_HEAD = struct.Struct("<I")


def pickled(data: bytes) -> None:
    """No class, no code; what is read survives our own form and PyTorch's."""
    with suppress(BadTraceError):
        _only_plain(loads(data))
    try:
        snapshot = read_bytes(data)
    except BadTraceError:
        return
    _usable(snapshot)
    _comes_back(snapshot)


def _only_plain(whole: object) -> None:
    """Looks at each container once: a pickle may hold itself."""
    seen: set[int] = set()
    todo = [whole]
    while todo:
        value = todo.pop()
        require(type(value) in _PLAIN, f"a {type(value).__name__} came out of a pickle")
        if isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            todo.extend(value)
            todo.extend(value.values() if isinstance(value, dict) else ())


def _usable(snapshot: Snapshot) -> None:
    """What is done next to a snapshot of somebody's: the beginning is worked out, what it holds is added up."""
    for trace in snapshot.traces.values():
        with suppress(BadTraceError, TraceError):
            with_beginning(trace)
    with suppress(BadTraceError):
        look_into(snapshot)


def _comes_back(snapshot: Snapshot) -> None:
    packed = to_packed(snapshot)
    again = from_packed(unpack(pack(packed)))
    require(again.traces.keys() == snapshot.traces.keys(), "a device is lost on the way through our own form")
    for device, trace in snapshot.traces.items():
        there = again.traces[device]
        same = (there.action, there.address, there.size_bytes) == (trace.action, trace.address, trace.size_bytes)
        require(same and there.end == trace.end, "events or segments change on the way through our own form")
    with suppress(RefusedPickleError):  # devices up to the last get a list: one of them may be the 1,024th
        require(len(read_bytes(torch_pickle(again)).traces) <= len(again.traces), "a device appears in PyTorch's form")


def columns(data: bytes) -> None:
    """What is read is what is written, to the byte from then on."""
    try:
        packed = unpack(data)
    except SnapshotFormatError:
        return
    once = pack(packed)
    require(pack(unpack(once)) == once, "columns do not come back as they were")
    try:
        snapshot = from_packed(packed)
    except BadTraceError:
        return
    _usable(snapshot)


def packing(data: bytes) -> None:
    """Compressed bytes, bombs among them: never more than was asked for."""
    try:
        content = decompressed(data, most_bytes=MAX_UNPACKED_BYTES)
    except BadTraceError:
        return
    require(len(content) <= MAX_UNPACKED_BYTES, f"{len(content):,} bytes; {MAX_UNPACKED_BYTES:,} were asked for")
    for compressed in (gzip.compress(content[:1000]), zlib.compress(content[:1000])):
        require(decompressed(compressed, most_bytes=1000) == content[:1000], "not what was compressed")


def npz(data: bytes) -> None:
    try:
        arrays = read_npz(data, most_bytes=MAX_UNPACKED_BYTES)
        require(sum(_size_bytes(one) for one in arrays.values()) <= 2 * MAX_UNPACKED_BYTES, "more than was asked for")
        trace = read_npz_trace(data, most_bytes=MAX_UNPACKED_BYTES)
        with_beginning(trace)
    except (BadTraceError, TraceError):
        pass


def _size_bytes(values: object) -> int:
    if isinstance(values, str):
        return 4 * len(values)
    numbers = getattr(values, "values", None)
    return len(numbers) * numbers.itemsize if isinstance(numbers, array) else 0


def _mended_columns(data: bytes, random: Random) -> bytes:
    """With a head whose length is right and as many bytes behind it as it speaks of: else nothing behind it is met."""
    begin = len(MAGIC) + _HEAD.size
    if not data.startswith(MAGIC) or random.randrange(8) == 0:
        return data
    try:
        head, length = json.JSONDecoder().raw_decode(data[begin : begin + _MAX_HEAD_BYTES].decode("latin-1"))
        wanted = _column_bytes(head)
    except Exception:  # no head any more, or one that makes no sense: it stays so
        return data
    end = begin + length
    return MAGIC + _HEAD.pack(length) + data[begin:end] + data[end : end + wanted].ljust(min(wanted, 1 << 17), b"\0")


def _column_bytes(head: Any) -> int:
    wanted = int(_row_bytes(FRAMES) * head["frames"] + 4 * head["stacks"] + 4 * head["stack_frames"])
    for one in head["devices"]:
        wanted += _row_bytes(SEGMENTS) * one["segments"] + _row_bytes(BLOCKS) * one["blocks"]
        wanted += _row_bytes(EVENTS, frozenset(one["absent"]) | {"metadata"}) * one["events"]
    return wanted


def _row_bytes(table: Table, absent: frozenset[str] = frozenset()) -> int:
    return sum(array(code).itemsize for name, code in table if name not in absent)


def _mended_npz(data: bytes, random: Random) -> bytes:
    """Its members with a few bytes changed, zipped anew: the archive's own checksums are right."""
    content = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as new:
            for member in old.infolist():
                if member.file_size < 1 << 20:
                    new.writestr(zipfile.ZipInfo(member.filename), _touched(old.read(member), random))
    except Exception:  # whatever a damaged archive does to Python's own reader: it stays damaged
        return data
    return content.getvalue()


def _touched(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((0, 0, 1, 4))):
        if changed:
            changed[random.randrange(min(len(changed), 200))] = random.choice((0, 1, 0xFF, 0x80, random.randrange(256)))
    return bytes(changed)


def _pickles() -> Iterator[bytes]:
    for path in sorted((DATA / "allocator" / "snapshots").glob("*.pickle.gz")):
        yield gzip.decompress(path.read_bytes())[:_MAX_SEED_BYTES]
    yield gzip.decompress((DATA / "oom" / "needed.oom.pickle.gz").read_bytes())[:_MAX_SEED_BYTES]
    entry = {"action": "alloc", "addr": 1 << 21, "size": 512, "stream": 0, "frames": [], "time_us": 7}
    segment = {
        "device": 0, "address": 1 << 21, "total_size": 1 << 21, "stream": 0, "segment_type": "small",
        "blocks": [{"address": 1 << 21, "size": 1 << 21, "requested_size": 9, "state": "active_allocated"}],
    }  # fmt: skip
    for protocol in range(6):
        yield pickle.dumps({"segments": [segment], "device_traces": [[entry, entry]]}, protocol=protocol)
    yield canary()


def canary() -> bytes:
    """A pickle that runs code where it is believed."""
    return pickle.dumps(_Canary())


class _Canary:
    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise SystemExit('code of a pickle ran')",)


_MAX_SEED_BYTES = 1 << 16


def _columns() -> Iterator[bytes]:
    yield from (pack(early()), pack(late()))
    yield pack(to_packed(read_bytes(next(_pickles()))))
    yield decompressed((DATA / "snapshots" / "cuda_graph.early.snap.zst").read_bytes())
    nothing: dict[str, object] = {
        "texts": [], "frames": 0, "stacks": 0, "stack_frames": 0, "devices": [], "settings": {}, "facts": {},
    }  # fmt: skip
    text = json.dumps(nothing).encode()
    yield MAGIC + _HEAD.pack(len(text)) + text


def _packed() -> Iterator[bytes]:
    text = b"segments" * 200
    yield from (gzip.compress(text, mtime=0), zlib.compress(text), zstandard.ZstdCompressor().compress(text), text)
    yield gzip.compress(text, mtime=0) + gzip.compress(b"", mtime=0)
    yield zlib.compress(b"") * 100
    yield zlib.compress(bytes(MAX_UNPACKED_BYTES + 1), 9)
    yield zstandard.ZstdCompressor(level=19).compress(bytes(MAX_UNPACKED_BYTES + 1))
    streamed = zstandard.ZstdCompressor().compressobj()
    yield streamed.compress(text) + streamed.flush()


def _archives() -> Iterator[bytes]:
    smallest = min((DATA / "allocator").glob("*.npz"), key=lambda path: path.stat().st_size).read_bytes()
    trace = read_npz_trace(smallest, most_bytes=MAX_UNPACKED_BYTES)
    yield from (smallest, write_npz_trace(trace.first(20)), write_npz_trace(trace.first(0)))


_PICKLE_WORDS = (
    b"\x80\x04", b".", b"}", b"]", b"(", b"e", b"a", b"s", b"u", b"\x94", b"\x85", b"\x86", b"\x87", b"cos\nsystem\n",
    b"R", b"h\x00", b"q\x00", b"\x8a\xff", b"X\x04\x00\x00\x00addr", b"\x8c\x06action", b"\x8c\x05alloc",
    b"\x8c\x0efree_completed", b"\x8c\x0dsegment_alloc", b"\x8c\x03oom", b"\x8c\x08snapshot", b"J\xff\xff\xff\xff",
    b"G\x7f\xf8\0\0\0\0\0\0", b"N", b"\x88", b"\x8c\x09tidegauge", b"\x8c\x06frames", b"\x8c\x04size",
    b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
)  # fmt: skip
_COLUMN_WORDS = (
    b'"texts":', b'"devices":[', b'"absent":["stack"]', b'"pools":[[0,0]]', b'"streams":[0]', b'"events":1',
    b'"blocks":1', b'"segments":1', b'"facts":{', b'"settings":{', b"9" * 400, b"1e999", b"NaN", b"[" * 300,
    b'"skipped":{"0":{"a":1}}', b"\xff" * 8, b'"cap_bytes":-1', b'"device":0', b'"torch_version":"2.13.0"',
)  # fmt: skip
PICKLE = Target(pickled, lambda: list(_pickles()), words=_PICKLE_WORDS)
COLUMNS = Target(columns, lambda: list(_columns()), _mended_columns, _COLUMN_WORDS, most_bytes=1 << 17)
PACKING = Target(packing, lambda: list(_packed()), words=(zlib.compress(b""), b"\x1f\x8b"), most_bytes=1 << 20)
NPZ = Target(npz, lambda: list(_archives()), _mended_npz, most_bytes=1 << 18)
