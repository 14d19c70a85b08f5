"""Reads a ring's new records since the last read, whatever the writer or an attacker does meanwhile.

Reads use ``pread``, never ``mmap``: truncating a mapped file kills the reader with SIGBUS. Every read
has a bound that does not depend on the file's content.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Mapping
from typing import Any

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
    decode_whole,
    is_whole,
    record_heads,
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

_SEQ_BYTES = 8
_ALLOCATED, _BLOCKS = Sample._fields.index("allocated_bytes"), Sample._fields.index("blocks")
"""The allocator's figures lie side by side in a ``Sample``."""
_STEP = int(RecordKind.STEP)
_Whole = tuple[int, int, int, bytes]
"""``(seq, mono_ns, kind)`` of a complete record, and the record."""


class RingBlankError(Exception):
    """The file has no header yet: its writer is about to write it."""


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
        size = os.lseek(self._fd, 0, os.SEEK_END)
        if size < self.header.file_bytes:
            raise LayoutError("truncated", f"it was truncated to {size} of {self.header.file_bytes} bytes")
        page = os.pread(self._fd, HEADER_BYTES, 0)
        if page != self._page:
            if page[:IDENTITY_OFFSET] != self._page[:IDENTITY_OFFSET]:
                raise LayoutError("replaced", "its header changed")
            self._read_identity(page)
            self._page = page
        last = self.seen_records + limit
        samples: list[Sample] = []
        device = self._used_from(0)
        while device < self.header.device_count:
            samples += self._read_device(device, last - self.seen_records)
            device = self._used_from(device + 1)
        return samples

    def _used_from(self, device: int) -> int:
        """The first device from ``device`` on that may have records: slots of one that was never used, which most are
        of most rings, are a hole in a sparse file."""
        if device == self.header.device_count:
            return device
        begin = self.header.offset(device, 1)
        try:
            data = os.lseek(self._fd, begin, os.SEEK_DATA)
        except OSError as error:
            return self.header.device_count if error.errno == errno.ENXIO else device  # or it has no holes
        return device + (data - begin) // (self.header.capacity * RECORD_BYTES)

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
                sample = decode_whole(record)
                if sample is not None and _sane(sample, device):
                    samples.append(sample)
                else:
                    self.refused_records += 1
        return samples

    def _worth_reading(self, records: list[_Whole], device: int) -> list[bytes]:
        """All but steps that come faster than ``STEP_GAP_NS``, and always the newest of a batch."""
        kept_ns, chance, chosen = self._kept_mono_ns[device], self._random.random, []
        _, newest_ns, _, newest = records.pop()
        for _, mono_ns, kind, record in records:
            # At a random distance: a fixed one could keep in step with something that the job does every n steps.
            enough_ns = STEP_GAP_NS * (0.5 + chance())
            if kind != _STEP or not 0 <= mono_ns - kept_ns < enough_ns:
                kept_ns = mono_ns
                chosen.append(record)
        chance()
        self._kept_mono_ns[device] = newest_ns
        chosen.append(newest)
        return chosen

    def _next_records(self, device: int, count: int) -> list[_Whole]:
        """The readable records in the ``count`` slots from the next one on; the next read continues behind them."""
        first = self._next[device]
        slots = self._slots(device, first, count)
        found = _due(slots, first)
        if found and found[-1][0] - first + 1 != len(found):
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
        newest = found[-1][0]
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
    for due, (seq, mono_ns, kind) in enumerate(record_heads(slots), first):
        if seq == due:
            at = (due - first) * RECORD_BYTES
            record = slots[at : at + RECORD_BYTES]
            if is_whole(record):
                found.append((seq, mono_ns, kind, record))
    return found


def _sane(sample: Sample, device: int) -> bool:
    """Whether the figures are possible: an attacker can write a valid CRC too."""
    if sample.device != device or sample.step > MAX_SANE:
        return False
    figures: tuple[Any, ...] = sample[_ALLOCATED : _BLOCKS + 1]
    if None in figures:
        figures = tuple(figure for figure in figures if figure is not None)
    return bool(max(figures) <= MAX_SANE)
