"""A ring file of a hostile job, read by the real reader from a real file that changes between any two of its reads."""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Iterable
from random import Random
from types import ModuleType
from typing import Any

from fuzz.oracles import require
from fuzz.target import Target
from tidegauge.agent.rings import reader as ring_reader
from tidegauge.agent.rings.reader import MAX_LOST_PER_READ, MAX_SANE, RingBlankError, RingReader
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, RankIdentity
from tidegauge.core.ring_layout import (
    HEADER_BYTES,
    IDENTITY_OFFSET,
    RECORD_BYTES,
    LayoutError,
    RingHeader,
    decode_header,
    decode_identity,
    decode_record,
    encode_header,
    encode_identity,
    encode_record,
)
from tidegauge.core.samples import EventCode, RecordKind, Sample

REASONS = frozenset({"truncated", "magic", "version", "geometry", "identity", "replaced"})
READS = 3
LIMIT = 64
"""Records that a read may go through."""
CALLS_PER_DEVICE = 400
"""Of the kernel, for one opening and ``READS`` reads: two bisections of 17 steps and every batch."""
_IDENTITY = struct.Struct("<III")
_CRC = struct.Struct("<I")
_CRC_AT = RECORD_BYTES - _CRC.size
_ORDERS_AT = 256
"""Unused bytes of the header page, which say here what happens to the file while it is read."""


class Meddler:
    """In place of ``os`` in the reader's module: counts its calls and, on order, writes, cuts or lengthens the file."""

    def __init__(self, fd: int, orders: bytes, image: bytes) -> None:
        self.calls = 0
        self._fd, self._orders, self._image = fd, orders, image

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in ("pread", "preadv", "fstat", "read", "lseek"):
            return found

        def meddled(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            self._meddle()
            return found(*arguments, **named)

        return meddled

    def _meddle(self) -> None:
        order = self._orders[self.calls % len(self._orders)]
        if not order & 0xF:
            return
        place = (order >> 4) * RECORD_BYTES // 2 % max(len(self._image), 1)
        kind = order & 0xF
        if kind == 1:
            os.ftruncate(self._fd, place)
        elif kind == 2:
            os.pwrite(self._fd, self._image, 0)
        elif kind == 3:
            os.pwrite(self._fd, self._image[::-1][:RECORD_BYTES], place)
        elif kind == 4:
            os.pwrite(self._fd, self._image[HEADER_BYTES : HEADER_BYTES + RECORD_BYTES], HEADER_BYTES + place)
        elif kind == 5:
            os.ftruncate(self._fd, len(self._image) + (place << 20))  # sparse


_FILE = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the process


def one(data: bytes) -> None:
    fd = _FILE.fileno()
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    meddler = Meddler(fd, data[_ORDERS_AT : _ORDERS_AT + 64] or b"\0", data)
    devices = int.from_bytes(data[24:28], "little")
    module: ModuleType = ring_reader
    vars(module)["os"] = meddler
    try:
        _read(fd)
    except LayoutError as error:
        require(error.reason in REASONS, f"a reason that counters do not know: {error.reason}")
    except RingBlankError:
        pass
    finally:
        vars(module)["os"] = os
    most = CALLS_PER_DEVICE * (min(devices, 64) + 1)
    require(meddler.calls <= most, f"{meddler.calls} calls of the kernel for {devices} devices")
    _layout(data)


def _read(fd: int) -> None:
    reader = RingReader(fd)
    require(all(seq >= 0 for seq in reader.newest_when_opened), "a number below zero")
    for turn in range(1, READS + 1):
        seen = reader.seen_records
        samples = reader.read(LIMIT)
        require(len(samples) <= reader.seen_records - seen <= LIMIT, f"{len(samples)} records of {LIMIT}")
        most_lost = turn * reader.header.device_count * MAX_LOST_PER_READ * (LIMIT + 1)
        require(0 <= reader.lost_records <= most_lost, f"{reader.lost_records} lost records")
        for sample in samples:
            _believable(sample, reader.header.device_count)
    if reader.identity is not None:
        _believable_identity(reader.identity)


def _believable(sample: Sample, devices: int) -> None:
    figures = [sample.step, sample.allocated_bytes, sample.reserved_bytes, sample.allocated_peak_bytes]
    require(0 <= sample.device < devices, f"device {sample.device} of {devices}")
    require(
        all(figure is None or 0 <= figure <= MAX_SANE for figure in figures), f"figures beyond all measure: {sample}"
    )
    require(decode_record(encode_record(sample)) == sample, "a record does not come back as it was")


def _believable_identity(identity: RankIdentity) -> None:
    texts = [value for value in identity if isinstance(value, str)] + list(identity.device_uuids)
    require(all(text.isprintable() for text in texts), "a text that cannot be printed")
    require(0 <= identity.rank < identity.world_size, "a rank outside of its world")
    page = b"".ljust(IDENTITY_OFFSET, b"\0") + encode_identity(identity, generation=2)
    again = decode_identity(page.ljust(HEADER_BYTES, b"\0"))
    short = all(len(text) <= 256 for text in texts)
    require(again == identity or not short, "an identity does not come back as it was")


def _layout(data: bytes) -> None:
    """The decoders by themselves: no reader between them and the bytes."""
    page = data[:HEADER_BYTES]
    try:
        header = decode_header(page, file_bytes=1 << 40)
    except LayoutError:
        return
    require(decode_header(encode_header(header), file_bytes=1 << 40) == header, "a header does not come back as it was")
    require(HEADER_BYTES < header.file_bytes <= HEADER_BYTES + (64 << 16) * RECORD_BYTES, "a file beyond all measure")


def mend(data: bytes, random: Random) -> bytes:
    """Mostly with every checksum right: an enemy writes it as well as the probe does."""
    mended = bytearray(data.ljust(HEADER_BYTES + RECORD_BYTES, b"\0"))
    if random.randrange(4):
        length = min(int.from_bytes(mended[IDENTITY_OFFSET + 4 : IDENTITY_OFFSET + 8], "little"), 3000)
        text = bytes(mended[IDENTITY_OFFSET + 12 : IDENTITY_OFFSET + 12 + length])
        _IDENTITY.pack_into(mended, IDENTITY_OFFSET, 2, length, zlib.crc32(text))
    for at in range(HEADER_BYTES, len(mended) - RECORD_BYTES + 1, RECORD_BYTES):
        if random.randrange(8):
            _CRC.pack_into(mended, at + _CRC_AT, zlib.crc32(bytes(mended[at : at + _CRC_AT])))
    return bytes(mended)


def sample(seq: int, device: int = 0, kind: RecordKind = RecordKind.STEP, **figures: Any) -> Sample:
    values: dict[str, Any] = dict.fromkeys(Sample._fields, 0)
    values.update(
        seq=seq, device=device, kind=kind, event=EventCode.NONE, wall_ns=seq * 10**8, mono_ns=seq * 10**8, step=seq,
        allocated_bytes=seq << 20, reserved_bytes=seq << 21, active_bytes=None,
    )  # fmt: skip
    return Sample(**{**values, **figures})


def image(capacity: int, devices: int, written: int, orders: bytes = b"") -> bytes:
    """A ring as the probe writes it."""
    header = RingHeader(capacity, devices, 4711, 815, 10**18)
    whole = bytearray(encode_header(header).ljust(header.file_bytes, b"\0"))
    whole[_ORDERS_AT : _ORDERS_AT + len(orders)] = orders
    identity = encode_identity(_IDENTITY_OF_RANK, generation=2)
    whole[IDENTITY_OFFSET : IDENTITY_OFFSET + len(identity)] = identity
    for seq in range(1, written + 1):
        for device in range(devices):
            at = header.offset(device, seq)
            kind = RecordKind.TICK if seq % 5 == 0 else RecordKind.STEP
            whole[at : at + RECORD_BYTES] = encode_record(sample(seq, device, kind))
    return bytes(whole)


_IDENTITY_OF_RANK = RankIdentity(
    job_id=JobId("4711"), attempt=1, rank=GlobalRank(3), local_rank=LocalRank(1), world_size=8, hostname="node7",
    job_name="pretrain", run_id=None, scheduler="slurm", profile="stats", device_uuids=(DeviceUuid("GPU-1"),),
    torch_version="2.13.0", alloc_conf="expandable_segments:True", limit_fraction=0.5, checkpoint="callback",
)  # fmt: skip


def seeds() -> Iterable[bytes]:
    yield image(8, 1, 0)
    yield image(8, 1, 5)
    yield image(8, 2, 21)
    yield image(32, 1, 40)
    yield image(8, 1, 12, orders=bytes([0, 0, 0x11, 2]))
    yield image(8, 2, 12, orders=bytes([0, 0x43, 0, 0x24, 0, 5]))
    yield b""
    yield b"\0" * 64


WORDS = (
    b"TIDEGAUG", b'"job_id":"', b'"rank":', b'"world_size":', b'"device_uuids":[', b'"limit_fraction":', b"1e999",
    b"9" * 400, b"\\ud800", b'"checkpoint":"signal"', b"\xff" * 8, b"null", b"NaN", b"[" * 200,
)  # fmt: skip
TARGET = Target(
    one, seeds, mend, WORDS, most_bytes=HEADER_BYTES + 48 * RECORD_BYTES, allowed=frozenset({"os.truncate"})
)
