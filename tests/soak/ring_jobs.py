"""Jobs of ranks that are processes with real rings, begun and ended all the time, in every way that a job can end.

The process of a rank is a ``sleep``: the agent asks the kernel for pid, start time and owner, and gets the truth. Its
ring is written by the probe's own ``RingWriter``, from here, ten times a second: ``RingWriter`` cares for no pid.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from fleet.ring_files import user_folder

from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity
from tidegauge.core.ring_layout import DEFAULT_CAPACITY, RingHeader
from tidegauge.core.run_dirs import ring_name
from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.osproc.processes import identity_of
from tidegauge.probe.run_files.ring_writer import RingWriter
from tidegauge.probe.run_files.run_folder import RunFolder, open_run_folder
from tidegauge.probe.runtime.readings import Counts

GIB = 1 << 30
MIB = 1 << 20
STEPS_PER_S = 10.0
LEAK_BYTES = 24 * MIB
"""A step: called a leak after some 20 s, critical because a card of 80 GiB lasts for six minutes."""
SMALL_CAPACITY = 256
BURST = 3 * SMALL_CAPACITY
"""Records between two polls of the agent in a ring of 256: most are lost, which it has to count and to survive."""


class Fate(Enum):
    """How a job of ranks goes, and ends."""

    CLEAN = "ends cleanly"
    KILLED = "is killed"
    LEAKS = "leaks, is killed"
    RUNS_OUT = "runs out of memory"
    RESTARTS = "is killed, begins a next attempt"
    WRAPS = "writes faster than is read"
    DETACHES = "is no longer watched, lives on"


FATES = (
    *(Fate.CLEAN, Fate.KILLED) * 8,
    *(Fate.RESTARTS, Fate.WRAPS, Fate.DETACHES) * 2,
    *(Fate.LEAKS, Fate.LEAKS, Fate.RUNS_OUT),
)
"""Drawn from. Growth is rarer than life."""
USERS = (os.geteuid(), *range(40_000, 40_019)) if os.geteuid() == 0 else (os.geteuid(),)
"""Whose jobs are, drawn from: a user gets 100 incidents an hour. Others' processes and rings only root can make."""
LIFE_S = dict.fromkeys(Fate, 20.0) | {Fate.LEAKS: 50.0}


@dataclass
class Rank:
    """One process and its ring."""

    process: subprocess.Popen[bytes]
    ring: RingWriter
    step: int = 0
    allocated_bytes: int = 20 * GIB


@dataclass
class RingJob:
    """What is running of one job."""

    name: str
    uid: int
    attempt: int
    fate: Fate
    ends_s: float
    ranks: list[Rank] = field(default_factory=list)


class RingJobs:
    """``turn`` ten times a second; ``close`` ends what is left. Not thread-safe."""

    def __init__(self, run_dir: Path, *, start_every_s: float = 2.0, seed: int = 9) -> None:
        self.begun: Counter[str] = Counter()
        """Jobs by fate, and litter by kind."""
        self._folders = {uid: _folder(run_dir, uid) for uid in USERS}
        self._start_every_s = start_every_s
        self._random = random.Random(seed)
        self._names = (f"soak-{number}" for number in itertools.count(1))
        self._jobs: list[RingJob] = []
        self._litter = Litter(Path(self._folders[USERS[0]].path))
        self._next_start_s = time.monotonic()

    def turn(self) -> None:
        """Begin what is due, write one record a rank, end what is due."""
        now_s = time.monotonic()
        if now_s >= self._next_start_s:
            self._next_start_s = now_s + self._start_every_s
            fate, uid = self._random.choice(FATES), self._random.choice(USERS)
            self._begin(next(self._names), uid, 0, fate, now_s)
            self.begun.update(self._litter.turn(now_s))
        for job in self._jobs:
            for rank in job.ranks:
                self._write(job, rank)
        for job in [job for job in self._jobs if now_s >= job.ends_s]:
            self._jobs.remove(job)
            self._end(job, now_s)

    @property
    def running(self) -> int:
        """Ranks, now."""
        return sum(len(job.ranks) for job in self._jobs)

    def close(self) -> None:
        for job in self._jobs:
            for rank in job.ranks:
                _kill(rank.process)
                rank.ring.abandon()
        self._jobs.clear()
        self._litter.close()
        for folder in self._folders.values():
            folder.close()

    def _begin(self, name: str, uid: int, attempt: int, fate: Fate, now_s: float) -> None:
        world_size = self._random.choice((1, 1, 2, 4))
        life_s = LIFE_S[fate] * self._random.uniform(0.5, 1.2)
        job = RingJob(name, uid, attempt, fate, now_s + life_s)
        profile = self._random.choice(("stats", "auto"))
        for number in range(world_size):
            job.ranks.append(self._rank(job, number, world_size, profile))
        self._jobs.append(job)
        self.begun[fate.value] += 1

    def _rank(self, job: RingJob, number: int, world_size: int, profile: str) -> Rank:
        user = None if job.uid == os.geteuid() else job.uid
        process = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL, user=user)
        identity = identity_of(process.pid)
        assert identity is not None, "a child that is not waited for has its entry in /proc"
        capacity = SMALL_CAPACITY if job.fate is Fate.WRAPS else DEFAULT_CAPACITY
        folder = self._folders[job.uid]
        ring = RingWriter(folder, _header(identity, capacity))
        if user is not None:
            os.chown(Path(folder.path) / ring_name(identity), user, -1)
        ring.reserve(0)
        uuid = DeviceUuid(f"GPU-{number:08x}-5041-0000-0000-000000000000")
        claim = RankIdentity(
            JobId(job.name), job.attempt, GlobalRank(number), LocalRank(number), world_size, "soak",
            job_name=f"job of {job.name}", profile=profile, device_uuids=(uuid,), torch_version="2.13.0",
        )  # fmt: skip
        ring.publish(claim)
        ring.append(0, counts(20 * GIB), kind=RecordKind.EVENT, event=EventCode.ATTACHED)
        return Rank(process, ring)

    def _write(self, job: RingJob, rank: Rank) -> None:
        leaks = job.fate in (Fate.LEAKS, Fate.RUNS_OUT) and rank is job.ranks[0]
        for _ in range(BURST if job.fate is Fate.WRAPS and rank.step % 50 == 49 else 1):
            rank.step += 1
            rank.allocated_bytes += LEAK_BYTES if leaks else 0
            numbers = counts(rank.allocated_bytes + self._random.randrange(64) * MIB)
            rank.ring.append(0, numbers, kind=RecordKind.STEP, steps=rank.step, raw_steps=rank.step)

    def _end(self, job: RingJob, now_s: float) -> None:
        for rank in job.ranks:
            if job.fate is Fate.RUNS_OUT:
                rank.ring.append(
                    0, counts(rank.allocated_bytes), kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY,
                    steps=rank.step, facts=(LEAK_BYTES, MIB, 80 * GIB),
                )  # fmt: skip
            if job.fate in (Fate.CLEAN, Fate.DETACHES):
                rank.ring.append(
                    0, counts(rank.allocated_bytes), kind=RecordKind.EVENT, event=EventCode.DETACHED, steps=rank.step
                )
            if job.fate is not Fate.DETACHES:
                _kill(rank.process)
            rank.ring.abandon()
        if job.fate is Fate.RESTARTS and job.attempt == 0:
            self._begin(job.name, job.uid, job.attempt + 1, job.fate, now_s)
        if job.fate is Fate.DETACHES:
            for rank in job.ranks:
                _kill(rank.process)


class Litter:
    """What other programs, and rings of dead processes, leave in a run directory. Gone again after a while, or removed
    by the agent."""

    MIN_GAP_S = 3.0
    STAYS_S = 45.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kinds = itertools.cycle(("stale ring", "no ring", "cut ring", "link", "evidence that is none"))
        self._lying: list[tuple[float, Path]] = []
        self._next_s = 0.0
        self._number = itertools.count(1)

    def turn(self, now_s: float) -> Iterator[str]:
        """Drop the next piece, clear old ones; gives the kinds that were dropped."""
        for at_s, path in [one for one in self._lying if now_s - one[0] > self.STAYS_S]:
            path.unlink(missing_ok=True)
            self._lying.remove((at_s, path))
        if now_s >= self._next_s:
            self._next_s = now_s + self.MIN_GAP_S
            kind = next(self._kinds)
            self._lying.append((now_s, self._drop(kind)))
            yield kind

    def close(self) -> None:
        for _, path in self._lying:
            path.unlink(missing_ok=True)

    def _drop(self, kind: str) -> Path:
        # A pid beyond the kernel's largest: nobody has it, so nobody's ring is touched.
        process = ProcessId((1 << 22) + next(self._number), 1)
        path = self._folder / ring_name(process)
        if kind == "stale ring":
            folder = open_run_folder(str(self._folder.parent), uid=os.geteuid())
            RingWriter(folder, _header(process, SMALL_CAPACITY)).abandon()
            folder.close()
        elif kind == "link":
            path.symlink_to("/etc/hostname")
        elif kind == "evidence that is none":
            path = path.with_suffix(".evidence.json")
            path.write_text("{}")
        else:
            path.write_bytes(b"TIDEGAUG" if kind == "cut ring" else os.urandom(8192))
        return path


def counts(allocated_bytes: int) -> Counts:
    """The sixteen numbers of a rank that holds this much in tensors and 10 GiB of cache."""
    reserved_bytes = allocated_bytes + 10 * GIB
    current = (allocated_bytes, reserved_bytes, allocated_bytes, GIB, allocated_bytes)
    return (*current, *current, 0, 0, 500, 20, 400, 3000)


def _header(process: ProcessId, capacity: int) -> RingHeader:
    return RingHeader(capacity, 1, process.pid, process.start_ticks, time.time_ns())


def _folder(run_dir: Path, uid: int) -> RunFolder:
    user_folder(run_dir, uid)
    return open_run_folder(str(run_dir), uid=uid)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
