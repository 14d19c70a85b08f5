"""Reads all jobs from ``squeue --json``, from 22.05 to 26.05. Pure.

These releases share no schema. A number is ``7``, ``null`` or ``{"set": …, "infinite": …, "number": 7}``; a state is
one word or a list of them. Names and comments hold any bytes that their owners wrote, also invalid UTF-8; being JSON
they cannot pass for another field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegauge_scheduler_hooks.slurm.squeue_rows import ALIVE, ENDING, WAITING

_DECODER = json.JSONDecoder(strict=False)
_LARGEST = (1 << 63) - 1
"""The largest number that Slurm counts in; NaN is not below it."""
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class SlurmJob:
    """One job, or one task of an array."""

    job_id: int
    """Its own number, also for a task of an array."""
    uid: int
    states: frozenset[str]
    """A base state and flags such as COMPLETING; 22.05 says one of them only."""
    restarts: int
    started_unix_s: int | None
    """``None``: it has no start yet."""
    ends_unix_s: int | None
    """When its time limit ends it. Slurm counts "no limit" as a year in most releases."""
    batch: bool
    may_requeue: bool
    """``Requeue``: sbatch's default, or ``--no-requeue``. It does not show that the owner allows it."""
    het: bool
    """A part of a heterogeneous job."""
    array_job_id: int | None = None
    array_task_id: int | None = None
    comment: str = ""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    nodes: str = ""
    """As a host list, ``n[1-2]``."""
    gres: tuple[str, ...] = ()
    """Its gres on each of ``nodes``, in their order: ``gpu:h200:2(IDX:0-1)``."""

    @property
    def running(self) -> bool:
        """Whether it has its processes, and is not being ended."""
        return bool(self.states & ALIVE) and not self.states & (ENDING | WAITING)

    @property
    def name(self) -> str | None:
        """The name for commands. The number of an array's last task is that of the whole array, so an array without a
        task number has none."""
        if self.array_job_id is None:
            return str(self.job_id)
        return None if self.array_task_id is None else f"{self.array_job_id}_{self.array_task_id}"


def read_jobs(content: bytes) -> list[SlurmJob]:
    """The jobs that a squeue printed; entries that are no complete job are left out.

    One job at a time becomes objects: ten thousand of them are up to 190 MB of text, and many times that as objects.
    Raises ``ValueError`` for text that no squeue prints, and if it reports that it could not get the jobs."""
    # A byte a character: as UTF-8 one comment with an emoji would make the whole text four times as large.
    text = content.decode("latin-1")
    jobs: list[SlurmJob] = []
    entries = 0

    def add(entry: object) -> None:
        nonlocal entries
        entries += 1
        job = _job(entry)
        if job is not None:
            jobs.append(job)

    try:
        rest = _members(text, add)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if rest.get("errors"):
        raise ValueError(f"it reports: {json.dumps(rest['errors'])[:200]}")
    if not isinstance(rest.get("jobs"), list) or (entries and not jobs):
        raise ValueError("it names no job in a known form")
    return jobs


def _members(text: str, add_job: Callable[[object], None]) -> dict[str, Any]:
    """The object that ``text`` is, but with the elements of ``jobs`` handed to ``add_job`` one by one."""
    found: dict[str, Any] = {}
    at = _after(text, 0, "{")
    while True:
        name, at = _DECODER.raw_decode(text, _skip(text, at))
        at = _skip(text, _after(text, at, ":"))
        if name == "jobs" and text[at : at + 1] == "[":
            at = _elements(text, at, add_job)
            found["jobs"] = []
        else:
            found[str(name)], at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ",":
            _after(text, at, "}")
            return found
        at += 1


def _elements(text: str, at: int, add: Callable[[object], None]) -> int:
    """Hand each element of the array at ``at`` to ``add``; returns where it ends."""
    at = _skip(text, _after(text, at, "["))
    if text[at : at + 1] == "]":
        return at + 1
    while True:
        element, at = _DECODER.raw_decode(text, _skip(text, at))
        add(element)
        at = _skip(text, at)
        if text[at : at + 1] != ",":
            return _after(text, at, "]")
        at += 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _after(text: str, at: int, char: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != char:
        raise ValueError(f"no {char!r} at character {at}")
    return at + 1


def _job(entry: object) -> SlurmJob | None:
    """``None`` without the identity of a run: its numbers and its state."""
    if not isinstance(entry, dict):
        return None
    job_id, uid, restarts = (_number(entry.get(name)) for name in ("job_id", "user_id", "restart_cnt"))
    states = _texts(entry.get("job_state"))
    if not job_id or uid is None or restarts is None or not states:
        return None
    array_job_id = _number(entry.get("array_job_id")) or None
    return SlurmJob(
        job_id=job_id,
        uid=uid,
        states=frozenset(states),
        restarts=restarts,
        started_unix_s=_number(entry.get("start_time")) or None,
        ends_unix_s=_number(entry.get("end_time")) or None,
        batch=_flag(entry.get("batch_flag")),
        may_requeue=_flag(entry.get("requeue")),
        het=bool(_number(entry.get("het_job_id"))),
        array_job_id=array_job_id,
        array_task_id=_number(entry.get("array_task_id")) if array_job_id is not None else None,
        comment=_text(entry.get("comment")) or "",
        account=_text(entry.get("account")),
        partition=_text(entry.get("partition")),
        qos=_text(entry.get("qos")),
        nodes=_text(entry.get("nodes")) or "",
        gres=_texts(entry.get("gres_detail")),
    )


def _number(value: object) -> int | None:
    """A count or a time, in any notation; ``None``: unset, unlimited or none."""
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return None
        value = value.get("number")
    # Not by math.isfinite: an int of hundreds of digits is no float, and raises.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST:
        return None
    return int(value)


def _flag(value: object) -> bool:
    return value if isinstance(value, bool) else bool(_number(value))


def _text(value: object) -> str | None:
    """``None`` for an empty or missing text."""
    if not isinstance(value, str) or not value:
        return None
    try:
        return value.encode("latin-1").decode(errors="replace")
    except UnicodeEncodeError:
        return value  # it was written with escapes


def _texts(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(text for text in values if isinstance(text, str) and text)
