"""Reads a ring's new records since the last read, whatever the writer or an attacker does meanwhile.

Reads use ``pread``, never ``mmap``: truncating a mapped file kills the reader with SIGBUS. Every read
has a bound that does not depend on the file's content.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tidegauge.core.ids import RankIdentity
from tidegauge.core.ring_layout import (
    HEADER_BYTES,
    IDENTITY_OFFSET,
    MAGIC,
    RECORD_BYTES,
    LayoutError,
    RingHeader,
    decode_header,
    decode_identity,
    decode_record,
    peek_record,
)
from tidegauge.core.samples import RecordKind, Sample

MAX_RECORDS_PER_READ = 4096
"""Of one ring at one poll; at 2 Hz this keeps up with 8,000 records a second."""
BATCH_RECORDS = 256
"""Of one ``pread``: 64 KiB."""
STEP_GAP_NS = 40_000_000
"""Mean gap of the steps that are decoded and judged: 25 a second. A trend needs no more, and the agent has a budget."""
PEEK_RECORDS = 16
"""Slots looked at where nothing new is expected: one page, and enough to step over a damaged slot."""
MAX_SANE = 1 << 50
"""Bytes, steps or allocator calls: a petabyte, or a million calls a second for thirty years."""
MAX_LOST_PER_READ = 1_000_000
"""No writer of ours makes more between two polls: a jump beyond it says nothing about lost records."""
LOOK_AT_BLANKS_EVERY = 10
"""Reads after which devices without a record are looked at whatever the file's size on disk says (``_Blanks``)."""

_SEQ_BYTES = 8
_SEQ = struct.Struct(f"<Q{RECORD_BYTES - _SEQ_BYTES}x")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512
"""Unit of ``st_blocks``, see inode(7)."""
_ALLOCATED, _BLOCKS = Sample._fields.index("allocated_bytes"), Sample._fields.index("blocks")
"""The allocator's figures lie side by side in a ``Sample``."""


class RingBlankError(Exception):
    """The file has no header yet: its writer is about to write it."""


class _Whole(NamedTuple):
    """A slot with a complete record."""

    seq: int
    mono_ns: int
    kind: int
    raw: bytes


class _Blanks:
    """Remembers blank devices, which need no reading: most devices of most rings are visible to the rank, never used.

    Their slots are holes in a sparse file. A device stays blank while the file gains no pages, and one ``fstat`` tells
    that for all devices.
    """

    def __init__(self, header: RingHeader) -> None:
        self._file_bytes = header.file_bytes
        self._own_pages = header.capacity * RECORD_BYTES % _PAGE_BYTES == 0
        """No page belongs to two devices."""
        self._blocks_when_blank = [-1] * header.device_count
        self._blocks = 0
        self._reads = 0
        self._trusted = False

    def begin(self, status: os.stat_result) -> None:
        """A read of a file with this status begins. Without holes nothing can be skipped; and a page may be allocated a
        moment before it is written to, so now and then all devices are read."""
        self._blocks = status.st_blocks
        sparse = self._own_pages and self._blocks * _BLOCK_BYTES < self._file_bytes
        self._trusted = sparse and self._reads % LOOK_AT_BLANKS_EVERY != 0
        self._reads += 1

    def is_blank(self, device: int) -> bool:
        return self._trusted and self._blocks_when_blank[device] == self._blocks

    def seen(self, device: int) -> None:
        """``device`` was read now and is blank."""
        self._blocks_when_blank[device] = self._blocks


def read_header(fd: int) -> tuple[RingHeader, bytes]:
    """Read the first page of a ring: its header, and the page. Raises ``RingBlankError``, and ``LayoutError`` as
    ``decode_header`` does."""
    page = os.pread(fd, HEADER_BYTES, 0)
    if not page or (len(page) >= len(MAGIC) and not any(page[: len(MAGIC)])):
        raise RingBlankError
    return decode_header(page, file_bytes=os.fstat(fd).st_size), page


class RingReader:
    """Reads one ring file. The caller owns ``fd``.

    The constructor and every method raise ``LayoutError`` when the file is not, or no longer, the expected one:
    reasons of ``decode_header``, ``identity``, or ``replaced`` if its writer began anew in place.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.header, page = read_header(fd)
        self._page = page
        self._identity_block = b""
        self.identity: RankIdentity | None = None
        """The last complete identity in the ring; ``None`` until there is one."""
        self.seen_records = 0
        """New records so far, decoded or not."""
        self.lost_records = 0
        """Overwritten, or damaged, before they were read."""
        self.refused_records = 0
        """Well-formed records with impossible figures."""
        newest = [self._newest_seq(device) for device in range(self.header.device_count)]
        self.newest_when_opened = tuple(newest)
        """Number of each device's newest record; grows between two openings only if somebody writes."""
        # No further back than a detector needs at its start.
        back = min(self.header.capacity, MAX_RECORDS_PER_READ)
        self._next = [max(1, seq - back + 1) for seq in newest]
        self._kept_mono_ns = [-STEP_GAP_NS] * self.header.device_count
        self._random = random.Random(0)
        self._blanks = _Blanks(self.header)
        self._at_the_end = False
        """The last slots that were read hold no new record yet."""
        self._read_identity(page)

    def position(self) -> dict[str, Any]:
        """Where the next read begins, as JSON can say it."""
        return {"ring": list(self.header), "next": self._next, "kept_mono_ns": self._kept_mono_ns}

    def go_on_from(self, position: Mapping[str, Any]) -> None:
        """Begin where another reader of this ring was. Raises ``ValueError`` or ``KeyError`` for what is no position in
        it."""
        at, kept_mono_ns = position["next"], position["kept_mono_ns"]
        if position["ring"] != list(self.header) or len(at) != len(self._next) or len(kept_mono_ns) != len(at):
            raise ValueError("it is of another ring")
        if any(not 1 <= seq <= newest + 1 for seq, newest in zip(at, self.newest_when_opened)):
            raise ValueError("it lies behind the newest record")
        self._next, self._kept_mono_ns = list(at), list(kept_mono_ns)

    def read(self, limit: int = MAX_RECORDS_PER_READ) -> list[Sample]:
        """The new records to judge, oldest first within a device, out of at most ``limit``.

        All ticks and events, the newest step, and of steps in quick succession some 25 a second.
        """
        status = os.fstat(self._fd)
        if status.st_size < self.header.file_bytes:
            raise LayoutError("truncated", f"it was truncated to {status.st_size} of {self.header.file_bytes} bytes")
        page = os.pread(self._fd, HEADER_BYTES, 0)
        if page != self._page:
            if page[:IDENTITY_OFFSET] != self._page[:IDENTITY_OFFSET]:
                raise LayoutError("replaced", "its header changed")
            self._read_identity(page)
            self._page = page
        self._blanks.begin(status)
        last = self.seen_records + limit
        return [
            sample
            for device in range(self.header.device_count)
            if not self._blanks.is_blank(device)
            for sample in self._read_device(device, last - self.seen_records)
        ]

    def _read_identity(self, page: bytes) -> None:
        block = page[IDENTITY_OFFSET:]
        if block != self._identity_block:
            identity = decode_identity(page)
            if identity is not None:
                self.identity, self._identity_block = identity, block

    def _read_device(self, device: int, budget: int) -> list[Sample]:
        samples: list[Sample] = []
        count = PEEK_RECORDS
        while budget > 0:
            new = self._next_records(device, min(count, budget, self.header.capacity))
            if not new:
                break
            budget -= len(new)
            self.seen_records += len(new)
            count = min(2 * count, BATCH_RECORDS)
            budget = 0 if self._at_the_end else budget
            for record in self._worth_reading(new, device):
                sample = decode_record(record.raw)
                if sample is not None and _sane(sample, device):
                    samples.append(sample)
                else:
                    self.refused_records += 1
        return samples

    def _worth_reading(self, records: list[_Whole], device: int) -> Iterator[_Whole]:
        """All but steps that come faster than ``STEP_GAP_NS``, and always the newest of a batch."""
        for record in records:
            passed_ns = record.mono_ns - self._kept_mono_ns[device]
            # At a random distance: a fixed one could keep in step with something that the job does every n steps.
            enough_ns = STEP_GAP_NS * (0.5 + self._random.random())
            if record.kind != RecordKind.STEP or not 0 <= passed_ns < enough_ns or record is records[-1]:
                self._kept_mono_ns[device] = record.mono_ns
                yield record

    def _next_records(self, device: int, count: int) -> list[_Whole]:
        """The readable records in the ``count`` slots from the next one on; the next read continues behind them."""
        first = self._next[device]
        if first == 1 and not any(self._pread(_SEQ_BYTES, self.header.offset(device, 1))):
            self._blanks.seen(device)
            return []
        slots = self._slots(device, first, count)
        found = _due(slots, first)
        if found and found[-1].seq - first + 1 != len(found):
            # A gap. Records are written one after the other: what was half written a moment ago is whole now.
            found = _due(self._slots(device, first, count), first)
        if not found:
            overwriter = decode_record(slots[:RECORD_BYTES])
            if overwriter is None or not first < overwriter.seq <= MAX_SANE:
                return []
            first = self._resume_at(device, overwriter.seq)
            found = _due(self._slots(device, first, count), first)
            if not found:
                return []
        newest = found[-1].seq
        self._at_the_end = newest < first + count - 1
        self._lose(newest + 1 - self._next[device] - len(found))
        self._next[device] = newest + 1
        return found

    def _resume_at(self, device: int, overwriter: int) -> int:
        """The oldest record left, now that ``overwriter`` lies where the next record was."""
        newest = self._newest_seq(device)
        return newest - self.header.capacity + 1 if newest >= overwriter else overwriter

    def _lose(self, records: int) -> None:
        self.lost_records += min(max(0, records), MAX_LOST_PER_READ)

    def _slots(self, device: int, first: int, count: int) -> bytes:
        """The slots of records ``first`` … ``first + count - 1``, around the end of the ring; ``count`` <= capacity."""
        before_end = min(count, self.header.capacity - (first - 1) % self.header.capacity)
        data = self._pread(before_end * RECORD_BYTES, self.header.offset(device, first))
        if count > before_end:
            data += self._pread((count - before_end) * RECORD_BYTES, self.header.offset(device, 1))
        return data

    def _pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) < size:
            raise LayoutError("truncated", "it was truncated while it was read")
        return data

    def _newest_seq(self, device: int) -> int:
        """The newest record's number, 0 in an empty ring, by bisection: one lap is one rising run from slot 0.

        Damage may make it too small, never loop or larger than what is in the ring.
        """
        base = next((s for s in self._decoded(device, 0, PEEK_RECORDS) if s.seq <= MAX_SANE), None)
        if base is None:
            return 0
        low = (base.seq - 1) % self.header.capacity
        lap_begins = base.seq - low
        high = self.header.capacity
        while high - low > 1:
            middle = (low + high) // 2
            # Four slots: one that is torn or damaged must not look like the end of the run.
            if any(s.seq - lap_begins >= middle for s in self._decoded(device, middle, 4) if s.seq >= lap_begins):
                low = middle
            else:
                high = middle
        return lap_begins + low

    def _decoded(self, device: int, slot: int, count: int) -> list[Sample]:
        """The readable records in ``count`` slots from ``slot`` on, where the ring does not end before."""
        capacity = self.header.capacity
        slots = self._slots(device, slot + 1, min(count, capacity - slot))
        samples = (decode_record(slots[at : at + RECORD_BYTES]) for at in range(0, len(slots), RECORD_BYTES))
        return [s for at, s in enumerate(samples, slot) if s is not None and (s.seq - 1) % capacity == at]


def _due(slots: bytes, first: int) -> list[_Whole]:
    """The whole records in ``slots`` that carry the number that is due there: ``first``, ``first + 1`` …"""
    found = []
    for due, (seq,) in enumerate(_SEQ.iter_unpack(slots), first):
        if seq == due:
            raw = slots[(due - first) * RECORD_BYTES : (due - first + 1) * RECORD_BYTES]
            head = peek_record(raw)
            if head is not None:
                found.append(_Whole(*head, raw))
    return found


def _sane(sample: Sample, device: int) -> bool:
    """Whether the figures are possible: an attacker can write a valid CRC too."""
    if sample.device != device or sample.step > MAX_SANE:
        return False
    figures: tuple[Any, ...] = sample[_ALLOCATED : _BLOCKS + 1]
    if None in figures:
        figures = tuple(figure for figure in figures if figure is not None)
    return bool(max(figures) <= MAX_SANE)
