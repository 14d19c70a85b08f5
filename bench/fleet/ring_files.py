"""Ring files as the probe writes them, without the probe: for processes that only pretend to train.

The bytes are real: header, identity, records with their CRC, in a file of the right name and owner.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity
from tidegauge.core.ring_layout import (
    DEFAULT_CAPACITY,
    IDENTITY_OFFSET,
    RingHeader,
    encode_header,
    encode_identity,
    encode_record,
)
from tidegauge.core.run_dirs import ring_name
from tidegauge.core.samples import EventCode, RecordKind, Sample


class Memory(NamedTuple):
    """What a rank's allocator says, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    allocated_peak_bytes: int


class Ring:
    """One process's ring, written with ``pwrite``."""

    def __init__(
        self,
        folder: Path,
        process: ProcessId,
        identity: RankIdentity,
        *,
        device: int = 0,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """``folder``: ``user_folder`` of the process's user. ``device``: the one of ``identity.device_uuids`` that the
        rank uses; the others are visible to it, and never used. ``capacity``: records before it begins anew.
        """
        self.path = folder / ring_name(process)
        self._header = RingHeader(capacity, len(identity.device_uuids), *process, time.time_ns())
        self._device = device
        self._seq = 0
        self.steps = 0
        """Training steps written so far."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        owner = folder.stat().st_uid
        if owner != os.geteuid():
            os.fchown(self._fd, owner, -1)
        os.ftruncate(self._fd, self._header.file_bytes)
        os.pwrite(self._fd, encode_identity(identity, generation=2), IDENTITY_OFFSET)
        os.pwrite(self._fd, encode_header(self._header)[:IDENTITY_OFFSET], 0)

    def step(self, memory: Memory) -> None:
        """A training step has ended."""
        self.steps += 1
        self._write(RecordKind.STEP, EventCode.NONE, memory)

    def tick(self, memory: Memory) -> None:
        """No step has ended for half a second."""
        self._write(RecordKind.TICK, EventCode.NONE, memory)

    def event(self, code: EventCode, memory: Memory, *, values: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Something happened; ``values`` as ``EventCode`` tells."""
        self._write(RecordKind.EVENT, code, memory, values)

    def close(self) -> None:
        """Write no more; the file stays, as it does when a process ends."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(
        self, kind: RecordKind, code: EventCode, memory: Memory, values: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        self._seq += 1
        allocated, reserved, peak = memory
        split = (reserved - allocated) // 2
        sample = Sample(
            self._seq, kind, code, self._device, time.time_ns(), time.monotonic_ns(), self.steps, self.steps, 1,
            allocated, reserved, allocated, split, allocated, peak, reserved, peak, split, peak,
            0, 0, 500, 20, 400, 3000, *values,
        )  # fmt: skip
        os.pwrite(self._fd, encode_record(sample), self._header.offset(self._device, self._seq))


def user_folder(run_dir: Path, uid: int) -> Path:
    """Where rings of a user lie; made if it is not there. For another user than oneself only root can."""
    folder = run_dir / str(uid)
    if not folder.exists():
        folder.mkdir(mode=0o700)
        if uid != os.geteuid():
            os.chown(folder, uid, -1)
    return folder


def identity_of(
    job_id: str,
    rank: int,
    *,
    world_size: int,
    local_rank: int = 0,
    attempt: int = 0,
    devices: Sequence[str] = ("GPU-00000000-0000-0000-0000-000000000000",),
) -> RankIdentity:
    """Who a simulated rank says it is."""
    return RankIdentity(
        JobId(job_id),
        attempt,
        GlobalRank(rank),
        LocalRank(local_rank),
        world_size,
        "simulated",
        torch_version="2.13.0",
        device_uuids=tuple(DeviceUuid(device) for device in devices),
    )
