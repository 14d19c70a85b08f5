"""Writes a rank's ring file (``core.ring_layout``): the only writer of the only one of its process.

Records go through a shared memory map: no system call, no release of the GIL, and written records survive SIGKILL
of the process. The pages of a device's ring are reserved before its first record, because a page that a full tmpfs
cannot provide at write time is a SIGBUS, and that would be the end of the job.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Optional

from tidegauge.core.ids import ProcessId, RankIdentity
from tidegauge.core.ring_layout import (
    DEFAULT_CAPACITY,
    IDENTITY_OFFSET,
    MAGIC,
    RECORD_BYTES,
    RingHeader,
    decode_record,
    encode_header,
    encode_identity,
    encode_record,
)
from tidegauge.core.run_dirs import ring_name, run_dirs
from tidegauge.core.samples import EventCode, RecordKind, Sample
from tidegauge.probe.run_files.own_descriptor import OwnDescriptor
from tidegauge.probe.run_files.run_folder import NoRoomError, RunFolder, open_run_folder
from tidegauge.probe.runtime.readings import Counts

MIN_CAPACITY = 256
"""Records per device: with fewer an agent that reads twice a second would miss some."""
_SHARE_OF_FREE = 64
"""A ring takes at most this part of what is free: containers have 64 MiB of /dev/shm, and NCCL lives there too."""

_GENERATION = struct.Struct("<I")
_never_closed: list[mmap.mmap] = []


class RingWriter:
    """An open ring. Several threads may write; each device has its own sequence."""

    def __init__(
        self,
        folder: RunFolder,
        header: RingHeader,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        mono_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = ring_name(ProcessId(header.pid, header.start_ticks))
        self.path = os.path.join(folder.path, self.name)
        self._header = header
        self._wall_ns = wall_ns
        self._mono_ns = mono_ns
        self._seq = [0] * header.device_count
        self._generation = 0
        # Re-entrant: a signal handler of the job may run, and end the process, while a record is being written.
        self._lock = threading.RLock()
        self._own = OwnDescriptor(folder.create(self.name))
        try:
            descriptor = self._own.number()
            _check_file_size_limit(header.file_bytes)
            os.ftruncate(descriptor, header.file_bytes)
            os.posix_fallocate(descriptor, 0, header.offset(0, 1))
            self._map = mmap.mmap(descriptor, header.file_bytes)
            page = encode_header(header)
            self._map[len(MAGIC) : len(page)] = page[len(MAGIC) :]
        except BaseException:
            self._own.close()
            folder.remove(self.name)
            raise

    def publish(self, identity: RankIdentity) -> None:
        """Write the identity, again if it changed; the first time this also makes the file a ring to readers."""
        with self._lock:
            self._generation += 2
            block = encode_identity(identity, generation=self._generation)
            at = IDENTITY_OFFSET
            self._map[at : at + _GENERATION.size] = _GENERATION.pack(self._generation - 1)  # odd: being written
            self._map[at + _GENERATION.size : at + len(block)] = block[_GENERATION.size :]
            self._map[at : at + _GENERATION.size] = block[: _GENERATION.size]
            self._map[: len(MAGIC)] = MAGIC

    def reserve(self, device: int) -> None:
        """Get the pages for a device's records. Raises ``OSError`` if there is no room; then write none."""
        first = self._header.offset(device, 1)
        os.posix_fallocate(self._own.number(), first, self._header.capacity * RECORD_BYTES)

    def append(
        self,
        device: int,
        counts: Counts,
        *,
        kind: RecordKind,
        event: EventCode = EventCode.NONE,
        steps: int = 0,
        raw_steps: int = 0,
        facts: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Write the next record of a reserved device. Time is taken here, so that it never runs backwards."""
        with self._lock:
            self._seq[device] = seq = self._seq[device] + 1
            sample = Sample._make(
                (seq, kind, event, device, self._wall_ns(), self._mono_ns(), steps, raw_steps, 0, *counts, *facts)
            )
            at = self._header.offset(device, seq)
            self._map[at : at + RECORD_BYTES] = encode_record(sample)

    def samples(self, device: int) -> list[Sample]:
        """The records of a device that the ring still holds, oldest first."""
        with self._lock:
            newest = self._seq[device]
            kept = range(max(1, newest - self._header.capacity + 1), newest + 1)
            places = (self._header.offset(device, seq) for seq in kept)
            decoded = [decode_record(self._map[at : at + RECORD_BYTES]) for at in places]
        return [sample for sample in decoded if sample is not None]

    def touch(self) -> None:
        """Update the file's time as a sign of life: writes through a map do not."""
        os.utime(self._own.number())

    def abandon(self) -> None:
        """Release the parent's ring in a forked child, without changing the file."""
        if self._own.is_ours():
            self._map.close()
        else:
            _never_closed.append(self._map)  # it has a duplicate of the lost descriptor, and would close its number
        self._own.close()


def _check_file_size_limit(file_bytes: int) -> None:
    """Raises ``OSError`` where growing a file to this size would send SIGXFSZ (setrlimit(2)), which can end the job."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes != resource.RLIM_INFINITY and file_bytes > limit_bytes:
        raise OSError(
            errno.EFBIG, f"files are limited to {limit_bytes} bytes here (RLIMIT_FSIZE), a ring needs {file_bytes}"
        )


def fitting_capacity(free_bytes: int) -> int:
    """Records per device for a file system with this much left: the default, halved until it is a small part.

    Raises ``NoRoomError`` if even ``MIN_CAPACITY`` is not.
    """
    capacity = DEFAULT_CAPACITY
    while capacity * RECORD_BYTES * _SHARE_OF_FREE > free_bytes:
        capacity //= 2
        if capacity < MIN_CAPACITY:
            raise NoRoomError(f"only {free_bytes // 1024} KiB free, too little for a ring")
    return capacity


def open_ring(
    environ: Mapping[str, str], process: ProcessId, *, device_count: int
) -> tuple[Optional[RunFolder], Optional[RingWriter], list[str]]:
    """A ring in the first usable run directory, or ``None`` and why each one was refused."""
    refused = []
    for run_dir in run_dirs(environ):
        folder = None
        try:
            folder = open_run_folder(run_dir, uid=os.geteuid())
            header = RingHeader(
                fitting_capacity(folder.free_bytes()), device_count, process.pid, process.start_ticks, time.time_ns()
            )
            ring = RingWriter(folder, header)
        except OSError as error:
            refused.append(f"{run_dir}: {error.strerror or error}")
            if folder is not None:
                folder.close()
            continue
        return folder, ring, refused
    return None, None, refused
