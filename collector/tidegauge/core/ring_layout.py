"""The layout of a ring file, which holds a rank's readings (design 3.2). Bytes in, values out; no I/O.

A file is one header page and then, per device, ``capacity`` slots of ``RECORD_BYTES``. Record ``seq`` (1, 2, …)
of device ``d`` lies in slot ``(seq - 1) % capacity``. There is one writer; readers take no lock: each record ends in
a CRC over the rest, so a record that was torn by the writer, or by a power of chance, does not decode.

A reader never trusts a length or an offset in the file: ``decode_header`` checks every figure against the size of
the file before anything is used. The probe imports this in the training process.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, RankIdentity
from tidegauge.core.samples import EventCode, RecordKind, Sample
from tidegauge.core.text import shared

MAGIC = b"TIDEGAUG"
LAYOUT_VERSION = 1
HEADER_BYTES = 4096
RECORD_BYTES = 256
MAX_DEVICES = 64
"""More than any machine has; a header that claims more is damaged or hostile."""
MAX_CAPACITY = 1 << 16
CHECKPOINT_WAYS = ("callback", "signal", "none")
"""``RankIdentity.checkpoint``: the values of ``core.incidents.actions.CheckpointWay``, which training processes do not
import."""
DEFAULT_CAPACITY = 4096
"""Records per device: 40 s of 10 ms steps between two reads of the agent, in 1 MiB that is sparse until used."""

_UNKNOWN = (1 << 64) - 1
_FIXED = struct.Struct("<8sIIIIIIQQQ")
"""magic, layout version, header bytes, record bytes, capacity, device count, flags, pid, start ticks, created ns."""
_IDENTITY = struct.Struct("<III")
"""generation (odd while being written), length and CRC-32 of the JSON text that follows."""
_IDENTITY_AT = 512
_IDENTITY_TEXT_AT = _IDENTITY_AT + _IDENTITY.size
MAX_IDENTITY_BYTES = HEADER_BYTES - _IDENTITY_TEXT_AT
_HEAD = struct.Struct("<Q8xQB231x")
_BODY = struct.Struct("<QQQBBHI" + "Q" * 21 + "52x")
_KINDS = {int(kind): kind for kind in RecordKind}
_EVENTS = {int(event): event for event in EventCode}
_CRC = struct.Struct("<I")
_CRC_AT = RECORD_BYTES - _CRC.size
_CRC_OF_WHOLE = 0x2144DF1C
"""CRC-32 of any bytes with their own CRC-32 behind them (least significant byte first)."""
if _BODY.size != _CRC_AT:  # pragma: no cover - a slip in the format string, seen at import
    raise AssertionError(f"record body is {_BODY.size} bytes, not {_CRC_AT}")


class LayoutError(ValueError):
    """The bytes are not a ring that this version reads. ``reason`` is a stable word, counted in a metric."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RingHeader(NamedTuple):
    """The checked geometry of a ring file, and the process that claims to write it."""

    capacity: int
    device_count: int
    pid: int
    start_ticks: int
    created_ns: int

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + self.device_count * self.capacity * RECORD_BYTES

    def offset(self, device: int, seq: int) -> int:
        """The file offset of record ``seq`` (from 1) of ``device``."""
        return HEADER_BYTES + (device * self.capacity + (seq - 1) % self.capacity) * RECORD_BYTES


def encode_header(header: RingHeader) -> bytes:
    """The header page without identity. Write it before the magic is trusted: readers look at the magic first."""
    fixed = _FIXED.pack(
        MAGIC, LAYOUT_VERSION, HEADER_BYTES, RECORD_BYTES, header.capacity, header.device_count, 0,
        header.pid, header.start_ticks, header.created_ns,
    )  # fmt: skip
    return fixed.ljust(HEADER_BYTES, b"\0")


def decode_header(page: bytes, *, file_bytes: int) -> RingHeader:
    """Check the first page of a file of ``file_bytes`` bytes.

    Raises ``LayoutError`` with reason ``truncated``, ``magic``, ``version`` or ``geometry``.
    """
    if len(page) < HEADER_BYTES or file_bytes < HEADER_BYTES:
        raise LayoutError("truncated", f"a ring starts with {HEADER_BYTES} bytes of header, this file has {file_bytes}")
    fixed = _FIXED.unpack_from(page)
    magic, version, header_bytes, record_bytes, capacity, devices, _flags, pid, ticks, created = fixed
    if magic != MAGIC:
        raise LayoutError("magic", "this is not a Tidegauge ring (wrong magic)")
    if version != LAYOUT_VERSION:
        raise LayoutError("version", f"ring layout version {version}; this Tidegauge reads version {LAYOUT_VERSION}")
    if (header_bytes, record_bytes) != (HEADER_BYTES, RECORD_BYTES):
        raise LayoutError("geometry", f"header of {header_bytes} and records of {record_bytes} bytes are not layout 1")
    if not 1 <= devices <= MAX_DEVICES or not 1 <= capacity <= MAX_CAPACITY:
        raise LayoutError("geometry", f"{devices} devices of {capacity} records are out of bounds")
    header = RingHeader(capacity, devices, pid, ticks, created)
    if file_bytes < header.file_bytes:
        raise LayoutError("truncated", f"the header asks for {header.file_bytes} bytes, the file has {file_bytes}")
    return header


def encode_identity(identity: RankIdentity, *, generation: int) -> bytes:
    """The identity block for ``IDENTITY_OFFSET``; ``generation`` is even and grows with each rewrite.

    Long strings are cut so that the text always fits ``MAX_IDENTITY_BYTES``, and before that what was run is left out.
    """
    fields = {name: value for name, value in identity._asdict().items() if value is not None}
    spare = [name for name in ("script", "script_sha256", "arguments") if name in fields]
    limit = 1024
    while True:
        cut = {name: value[:limit] if isinstance(value, str) else value for name, value in fields.items()}
        text = json.dumps(cut, separators=(",", ":")).encode()
        if len(text) <= MAX_IDENTITY_BYTES:
            return _IDENTITY.pack(generation, len(text), zlib.crc32(text)) + text
        if spare:
            del fields[spare.pop()]
            continue
        if limit < 16:
            fields["device_uuids"] = ()
        limit //= 2


IDENTITY_OFFSET = _IDENTITY_AT


def decode_identity(page: bytes) -> Optional[RankIdentity]:
    """The identity in a header page, or ``None`` while it is being written (read again later).

    Raises ``LayoutError("identity", …)`` if the text is complete but not an identity.
    """
    generation, length, crc = _IDENTITY.unpack_from(page, _IDENTITY_AT)
    if generation == 0 or generation % 2 or length > MAX_IDENTITY_BYTES:
        return None
    text = bytes(page[_IDENTITY_TEXT_AT : _IDENTITY_TEXT_AT + length])
    if zlib.crc32(text) != crc:
        return None
    try:
        return _identity_from(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LayoutError("identity", f"the identity in the ring is not valid: {error}") from error


def _identity_from(raw: object) -> RankIdentity:
    if not isinstance(raw, dict):
        raise ValueError("it is not a JSON object")

    def integer(name: str, low: int, high: int) -> int:
        value = raw[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"{name} is {value!r}, not a whole number from {low} to {high}")
        return value

    def text(name: str) -> Optional[str]:
        value = raw.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > 1024 or not value.isprintable():
            raise ValueError(f"{name} is not a short printable text")
        return value

    def shared_text(name: str) -> Optional[str]:
        """The same object for all ranks of a node that say the same."""
        value = text(name)
        return None if value is None else shared(value)

    def fraction(name: str) -> Optional[float]:
        value = raw.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise ValueError(f"{name} is not above 0 and at most 1")
        return float(value)

    checkpoint = text("checkpoint")
    uuids = raw.get("device_uuids", [])
    if not isinstance(uuids, list) or len(uuids) > MAX_DEVICES:
        raise ValueError("device_uuids is not a short list")
    if not all(isinstance(uuid, str) and len(uuid) <= 96 and uuid.isprintable() for uuid in uuids):
        raise ValueError("device_uuids is not a list of short texts")
    world_size = integer("world_size", 1, 1 << 24)
    job_id = text("job_id")
    if not job_id:
        raise ValueError("job_id is empty")
    return RankIdentity(
        job_id=JobId(job_id),
        attempt=integer("attempt", 0, 1 << 31),
        rank=GlobalRank(integer("rank", 0, world_size - 1)),
        local_rank=LocalRank(integer("local_rank", 0, 1 << 16)),
        world_size=world_size,
        hostname=text("hostname") or "",
        job_name=text("job_name"),
        run_id=text("run_id"),
        scheduler=text("scheduler"),
        profile=text("profile") or "stats",
        device_uuids=tuple(DeviceUuid(u) for u in uuids),
        torch_version=text("torch_version"),
        alloc_conf=text("alloc_conf"),
        limit_fraction=fraction("limit_fraction"),
        # A way of a later version is none to this one, which could not ask for it.
        checkpoint=checkpoint if checkpoint in CHECKPOINT_WAYS else None,
        gpu_share=fraction("gpu_share"),
        # Rings of earlier probes have none.
        attempts_each=integer("attempts_each", 1, 1 << 31) if "attempts_each" in raw else 1,
        store=text("store"),
        script=shared_text("script"),
        script_sha256=shared_text("script_sha256"),
        arguments=shared_text("arguments"),
    )


def encode_record(sample: Sample) -> bytes:
    """``RECORD_BYTES`` bytes for one sample."""
    (seq, kind, event, device, wall_ns, mono_ns, step, raw_steps, phase,
     *counts, event_a, event_b, event_c) = sample  # fmt: skip
    body = _BODY.pack(
        seq, wall_ns, mono_ns, kind, phase, event, device, step, raw_steps,
        *[_UNKNOWN if value is None else value for value in counts], event_a, event_b, event_c,
    )  # fmt: skip
    return body + _CRC.pack(zlib.crc32(body))


def record_heads(slots: bytes) -> Iterator[tuple[int, int, int]]:
    """``(seq, mono_ns, kind)`` of each slot, whatever is in it."""
    return _HEAD.iter_unpack(slots)


def is_whole(record: bytes) -> bool:
    """Whether it is complete: neither empty nor torn. It may still not decode, if its kind or event is unknown."""
    return zlib.crc32(record) == _CRC_OF_WHOLE


def decode_record(record: bytes) -> Optional[Sample]:
    """The sample in one slot, or ``None`` if the slot is empty, torn or from no writer of ours."""
    return decode_whole(record) if is_whole(record) else None


def decode_whole(record: bytes) -> Optional[Sample]:
    """As ``decode_record``, of a record that ``is_whole``."""
    # An agent decodes hundreds of these a second: tables in place of enum calls, and no loop where all is known.
    fields: tuple[Any, ...] = _BODY.unpack_from(record)
    seq, wall_ns, mono_ns, kind, phase, event, device, step, raw_steps = fields[:9]
    kind, event = _KINDS.get(kind), _EVENTS.get(event)
    counts = fields[9:25]
    if _UNKNOWN in counts:
        counts = tuple(None if value == _UNKNOWN else value for value in counts)
    if kind is None or event is None or seq == 0 or counts[0] is None or counts[1] is None:
        return None
    return Sample._make(
        (seq, kind, event, device, wall_ns, mono_ns, step, raw_steps, phase, *counts, *fields[25:])
    )  # fmt: skip
