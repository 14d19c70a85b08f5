"""Whose data is forgotten, as agents and a restarted coordinator must know it: without the name. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_PART_CHARS = 80
"""Characters of one part of a snapshot's key: far below what any file system takes."""


class Forgotten(NamedTuple):
    """One person's data of before a time."""

    before_unix_s: float
    uids: tuple[int, ...] = ()
    """Of this person alone."""
    folders: tuple[str, ...] = ()
    """``folder_digest`` of jobs: where several people share a uid, the only ones that count."""

    def has(self, uid: int, job_part: str, at_unix_s: float) -> bool:
        """``job_part``: ``path_part`` of the job id."""
        mine = uid in self.uids or folder_digest(uid, job_part) in self.folders
        return mine and at_unix_s <= self.before_unix_s


def is_forgotten(forgotten: Iterable[Forgotten], uid: int, job_id: str, at_unix_s: float) -> bool:
    """Whether somebody's data of this job and time is to go."""
    part = path_part(job_id)
    return any(one.has(uid, part, at_unix_s) for one in forgotten)


def folder_digest(uid: int, job_part: str) -> str:
    """Stands for a job without naming it."""
    return hashlib.sha256(f"{uid}/{job_part}".encode()).hexdigest()


def path_part(text: str) -> str:
    """One name of a path. A changed or cut one ends in a piece of a hash, so that two names never become one."""
    safe = re.sub(r"[^A-Za-z0-9._@=+-]", "_", text)[:MAX_PART_CHARS].lstrip(".=@+-") or "_"
    if safe == text:
        return safe
    return f"{safe[: MAX_PART_CHARS - 9]}~{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"
