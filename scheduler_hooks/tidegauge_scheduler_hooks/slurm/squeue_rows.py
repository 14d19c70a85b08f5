"""Reads one job from ``squeue -O``, and tells the state of a run of it. Pure.

All fields but the last are numbers or words of Slurm's own. The comment, which is its owner's, comes last, so that it
cannot pass for another field.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegauge_scheduler_hooks.ports import Presence

FIELDS = (
    "JobID", "ArrayTaskID", "UserID", "State", "RestartCnt", "StartTime", "PriorityLong", "BatchFlag",
    "Requeue", "HetJobID", "Comment",
)  # fmt: skip
FORMAT = ",".join(f"{field}:.|" for field in FIELDS)
"""For ``squeue -O`` (squeue(1)): unlimited width, each field with a ``|`` behind it."""

ALIVE = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "CONFIGURING"})
"""The job states (squeue(1), JOB STATE CODES) in which a run has its processes, or is getting them."""
ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


class Run(NamedTuple):
    """One start of one job."""

    job_id: int
    """Its own number, also for a task of an array."""
    restarts: int
    started_unix_s: int

    @property
    def incarnation(self) -> str:
        """``7#1@1795264650``: a job that was requeued has another restart count, and a reused number has another
        start."""
        return f"{self.job_id}#{self.restarts}@{self.started_unix_s}"


class SqueueRow(NamedTuple):
    """One job as ``squeue`` reports it; fields as in ``SlurmJob``."""

    job_id: int
    array: bool
    """A task of an array, or the rest of one: commands with its number may mean all tasks."""
    uid: int
    state: str
    restarts: int
    started_unix_s: int | None
    held: bool
    """Its priority is 0: it will not start by itself."""
    batch: bool
    may_requeue: bool
    het: bool
    comment: str
    """Invalid UTF-8 is kept by ``surrogateescape``, so that it can be written back unharmed."""


def parse_incarnation(text: str) -> Run | None:
    """The run that ``Run.incarnation`` names; ``None`` for any other text."""
    job_id, _, rest = text.partition("#")
    restarts, _, started = rest.partition("@")
    numbers = [_count(part) for part in (job_id, restarts, started)]
    if None in numbers:
        return None
    run = Run(*(number for number in numbers if number is not None))
    return run if run.incarnation == text else None


def parse_look(output: bytes) -> SqueueRow:
    """The one job that ``squeue -h -O FORMAT`` printed, with times as seconds (``SLURM_TIME_FORMAT=%s``).

    Raises ``ValueError`` for anything else.
    """
    fields = output.decode(errors="surrogateescape").split("|", len(FIELDS) - 1)
    if len(fields) != len(FIELDS) or not fields[-1].endswith("|\n"):
        raise ValueError(f"{len(fields)} fields instead of {len(FIELDS)}")
    field = dict(zip(FIELDS, fields))
    return SqueueRow(
        job_id=_number(field, "JobID"),
        array=field["ArrayTaskID"] != "N/A",
        uid=_number(field, "UserID"),
        state=field["State"],
        restarts=_number(field, "RestartCnt"),
        started_unix_s=_count(field["StartTime"]),
        held=_number(field, "PriorityLong") == 0,
        batch=_number(field, "BatchFlag") != 0,
        may_requeue=_number(field, "Requeue") != 0,
        het=(_count(field["HetJobID"]) or 0) != 0,
        comment=field["Comment"].removesuffix("|\n"),
    )


def presence_of(run: Run, uid: int, look: SqueueRow | None) -> Presence:
    """The state of a run of a job of ``uid``, given the present row of the job (``None``: there is no such job)."""
    if look is None or (look.job_id, look.uid) != (run.job_id, uid) or look.restarts < run.restarts:
        return Presence.GONE
    replaced = look.restarts > run.restarts
    if look.state in WAITING or (look.state in ENDING and replaced):
        return Presence.HELD if look.held else Presence.REPLACED
    if look.state in ENDING:
        return Presence.STOPPING
    if look.state not in ALIVE:
        return Presence.GONE
    if replaced:
        return Presence.REPLACED
    return Presence.RUNNING if look.started_unix_s == run.started_unix_s else Presence.GONE


def _number(field: dict[str, str], name: str) -> int:
    found = _count(field[name])
    if found is None:
        raise ValueError(f"{name} is not a number")
    return found


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
