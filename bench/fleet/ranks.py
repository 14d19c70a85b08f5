"""Simulated jobs on a real machine: a real process for each rank, and real rings that this process writes for them.

The processes do nothing; the agent only checks that they live, since when and whose they are. All end with the process
that began them, however it ends.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import subprocess
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from fleet.ring_files import Ring, identity_of, user_folder
from fleet.series import Replay
from tidegauge.core.ids import ProcessId
from tidegauge.core.ring_layout import DEFAULT_CAPACITY
from tidegauge.core.samples import EventCode
from tidegauge.probe.process_facts import process_id

TICK_S = 0.5
"""The probe's: it writes a tick where no step ends for so long."""


class Ending(Enum):
    """How a job ends. Its rings are left behind in any case; to remove them is the agent's work."""

    CLEAN = "clean"
    """The probe says goodbye, the processes end by themselves."""
    KILLED = "killed"
    """SIGKILL, as the kernel's OOM killer or a scheduler does."""


class Idlers:
    """Processes that wait: each reads a pipe to which nobody writes, and ends when this process does."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def begin(self, uid: int) -> subprocess.Popen[bytes]:
        user = None if uid == os.geteuid() else uid
        return subprocess.Popen(
            ["/bin/cat"], stdin=self._read_end, stdout=subprocess.DEVNULL, env={}, cwd="/", user=user
        )  # fmt: skip

    def close(self) -> None:
        """End them all."""
        os.close(self._write_end)
        os.close(self._read_end)


class SimulatedJob:
    """One job's ranks on this node. ``write`` at ``due_s``; not thread-safe."""

    def __init__(
        self,
        run_dir: Path,
        job_id: str,
        replays: Sequence[Replay],
        idlers: Idlers,
        *,
        steps_per_s: float,
        uid: int | None = None,
        attempt: int = 0,
        capacity: int = DEFAULT_CAPACITY,
        now_s: float,
    ) -> None:
        """A rank for each of ``replays``. ``uid``: of whom, by default oneself; ``now_s``: ``time.monotonic()``."""
        uid = os.geteuid() if uid is None else uid
        folder = user_folder(run_dir, uid)
        devices = [f"GPU-{device:08x}-0000-0000-0000-000000000000" for device in range(len(replays))]
        self.job_id = job_id
        self.due_s = now_s
        self._step_s = 1 / steps_per_s
        self._step_due_s = now_s + self._step_s
        self.replays = tuple(replays)
        self._processes = [idlers.begin(uid) for _ in replays]
        self._rings = []
        for rank, child in enumerate(self._processes):
            who = identity_of(
                job_id, rank, world_size=len(replays), local_rank=rank, attempt=attempt, devices=devices
            )  # fmt: skip
            ring = Ring(folder, _process(child), who, device=rank, capacity=capacity)
            ring.event(EventCode.ATTACHED, replays[rank].at(0))
            self._rings.append(ring)

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._processes]

    def write(self, now_s: float) -> int:
        """Write what is due, a step or a tick of every rank; how many records that were."""
        stepped = now_s >= self._step_due_s
        for ring, replay in zip(self._rings, self.replays, strict=True):
            (ring.step if stepped else ring.tick)(replay.at(ring.steps))
        if stepped:
            self._step_due_s = max(self._step_due_s + self._step_s, now_s)
        self.due_s = min(self._step_due_s, now_s + TICK_S) if self._step_s > TICK_S else self._step_due_s
        return len(self._rings)

    def end(self, how: Ending = Ending.CLEAN) -> None:
        """Once. Its processes are gone when this returns."""
        for ring, replay in zip(self._rings, self.replays, strict=True):
            if how is Ending.CLEAN:
                ring.event(EventCode.DETACHED, replay.at(ring.steps))
            ring.close()
        for child in self._processes:
            child.kill()
        for child in self._processes:
            child.wait()


class SimulatedNode:
    """All jobs of one node. Not thread-safe; ``close`` ends everything.

    With ``churn_s`` a job lives for so long on average, and another one begins in its place.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        steps_per_s: float,
        uids: Sequence[int] = (),
        churn_s: float | None = None,
        capacity: int = DEFAULT_CAPACITY,
        seed: int = 1,
    ) -> None:
        """``uids``: whose the jobs are, in turn; by default all are one's own."""
        self.records = 0
        """Written so far."""
        self.jobs_ended = 0
        self._run_dir = run_dir
        self._steps_per_s = steps_per_s
        self._uids = itertools.cycle(uids or [os.geteuid()])
        self._churn_s = churn_s
        self._capacity = capacity
        self._chance = random.Random(seed)
        self._idlers = Idlers()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, SimulatedJob] = {}
        self._ends: list[tuple[float, int]] = []
        self._due: list[tuple[float, int]] = []

    def begin(self, replays: Sequence[Replay]) -> SimulatedJob:
        """A job of so many ranks, from now on."""
        now_s, number = time.monotonic(), next(self._numbers)
        job = SimulatedJob(
            self._run_dir, f"simulated-{number}", replays, self._idlers, steps_per_s=self._steps_per_s,
            uid=next(self._uids), capacity=self._capacity, now_s=now_s + self._chance.random() / self._steps_per_s,
        )  # fmt: skip
        self._jobs[number] = job
        heapq.heappush(self._due, (job.due_s, number))
        if self._churn_s is not None:
            heapq.heappush(self._ends, (now_s + self._chance.expovariate(1 / self._churn_s), number))
        return job

    def write_due(self) -> float:
        """Write what is due by now, end and begin jobs whose time it is; returns when (``time.monotonic()``) to come
        again."""
        now_s = time.monotonic()
        while self._ends and self._ends[0][0] <= now_s:
            self._replace(heapq.heappop(self._ends)[1])
        while self._due and self._due[0][0] <= now_s:
            _, number = heapq.heappop(self._due)
            job = self._jobs.get(number)
            if job is not None:
                self.records += job.write(now_s)
                heapq.heappush(self._due, (job.due_s, number))
        return self._due[0][0] if self._due else now_s + TICK_S

    def _replace(self, number: int) -> None:
        job = self._jobs.pop(number)
        job.end(self._chance.choice(list(Ending)))
        self.jobs_ended += 1
        self.begin(job.replays)

    def close(self) -> None:
        for job in self._jobs.values():
            job.end(Ending.KILLED)
        self._jobs.clear()
        self._idlers.close()


def _process(child: subprocess.Popen[bytes]) -> ProcessId:
    process = process_id(child.pid)
    assert process is not None, f"pid {child.pid} ended at once"
    return process
