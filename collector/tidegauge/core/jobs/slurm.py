"""A process's place in Slurm, and the words with which owners instruct Tidegauge in a job's comment.

Values only; who asks Slurm is ``agent.slurm.node`` (on the nodes) and ``tidegauge_scheduler_hooks.slurm``.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from tidegauge.core.ids import JobId

SCHEDULER = "slurm"
"""As the probe and ``tidegauge_job_info`` call it."""

KEEP, MAY_REQUEUE = "keep", "requeue"
_WORD = re.compile(r"(?<![\w.-])tidegauge:([a-z]+)(?![\w=-])")
"""Whatever marks stand around it: one that is missed could be the owner's wish to be left alone."""


class SlurmPlace(NamedTuple):
    """Location of a process in Slurm, as its node's slurmd reports it (``listpids`` of scontrol(1)), never as the
    process claims."""

    job_id: JobId
    """The job's own number, also for a task of an array."""
    step_id: str
    """``0``, ``1`` …, ``batch``, ``interactive`` or ``extern``."""
    array_job_id: Optional[int] = None
    """``SLURM_ARRAY_JOB_ID``, from the node's prolog; with ``array_task_id`` the name by which people know the job."""
    array_task_id: Optional[int] = None
    account: Optional[str] = None
    """From the node's prolog, as ``partition``."""
    partition: Optional[str] = None


class SlurmJobRecord(NamedTuple):
    """A job's record on its node, written by the Slurm prolog as root (deploy/slurm/prolog.sh)."""

    job_id: JobId
    uid: int
    restarts: int
    """``SLURM_RESTART_COUNT``."""
    array_job_id: Optional[int] = None
    array_task_id: Optional[int] = None
    partition: Optional[str] = None
    gpus: tuple[str, ...] = ()
    """This node's GPUs of the job as Slurm counts them (``SLURM_JOB_GPUS``): allocated, not a card's identity."""
    account: Optional[str] = None


def comment_words(comment: Optional[str]) -> frozenset[str]:
    """The words after ``tidegauge:`` in a job's comment (``sbatch --comment=tidegauge:keep``)."""
    return frozenset(_WORD.findall((comment or "").lower()))


def array_name(place: SlurmPlace) -> Optional[str]:
    """``123_4``, as ``squeue`` writes a task of an array; ``None`` for a job of its own."""
    if place.array_job_id is None or place.array_task_id is None:
        return None
    return f"{place.array_job_id}_{place.array_task_id}"
