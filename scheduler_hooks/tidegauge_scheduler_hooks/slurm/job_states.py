"""How runs ended, by rows of ``squeue -t all``: slurmctld knows a job for ``MinJobAge`` after its end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidegauge.core.job_records.record import JobEnd
from tidegauge_scheduler_hooks.slurm.squeue_rows import WAITING

FORMAT = "JobID:.|,UserID:.|,State:.|,RestartCnt:.|,PriorityLong:.|"
"""For ``squeue -O``: words and numbers of Slurm's own."""

ENDS: Mapping[str, JobEnd] = {
    "COMPLETED": JobEnd.COMPLETED,
    "FAILED": JobEnd.FAILED,
    "TIMEOUT": JobEnd.FAILED,
    "DEADLINE": JobEnd.FAILED,
    "NODE_FAIL": JobEnd.FAILED,
    "BOOT_FAIL": JobEnd.FAILED,
    "LAUNCH_FAILED": JobEnd.FAILED,
    "OUT_OF_MEMORY": JobEnd.FAILED,
    "CANCELLED": JobEnd.CANCELLED,
    "REVOKED": JobEnd.CANCELLED,
    "PREEMPTED": JobEnd.PREEMPTED,
}
"""By job state (squeue(1), JOB STATE CODES). One that was preempted and is to start again waits by then."""


class JobState(NamedTuple):
    """One job."""

    job_id: int
    uid: int
    state: str
    restarts: int
    held: bool
    """It does not start by itself."""

    def end_of(self, restarts: int) -> JobEnd | None:
        """How the run after so many restarts ended; ``None``: it has not, or this is an earlier run."""
        if self.restarts < restarts:
            return None
        if self.state in WAITING:
            return JobEnd.CANCELLED if self.held else JobEnd.REQUEUED
        return JobEnd.REQUEUED if self.restarts > restarts else ENDS.get(self.state)


def parse_states(output: bytes) -> list[JobState]:
    """What ``squeue -h -O FORMAT`` printed. Raises ``ValueError``."""
    return [_state(line) for line in output.decode(errors="replace").splitlines()]


def _state(line: str) -> JobState:
    job_id, uid, state, restarts, priority = line.removesuffix("|").split("|")
    return JobState(int(job_id), int(uid), state, int(restarts), held=int(priority) == 0)
