"""What people look for among the records of jobs. Pure."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.kubernetes import NamespaceScope

ANY = "*"
"""In a job's name: any characters, also none."""


class RecordFilter(NamedTuple):
    """Which jobs that ended; ``None``: whichever."""

    since_s: float = 0.0
    until_s: Optional[float] = None
    """Ended before this time, as ``since_s`` is at or after it."""
    user_name: Optional[str] = None
    account: Optional[str] = None
    job_name: Optional[str] = None
    """Whole, or a pattern with ``ANY``."""
    how: Optional[JobEnd] = None
    job_id: Optional[str] = None
    """Or the name of a task of a Slurm array, ``123_4``."""
    within: Optional[Union[str, NamespaceScope]] = None
    """What somebody may see at all: jobs of this owner, or of this scope."""


class RecordSought(NamedTuple):
    """One job, by its id or by its name; ``None``: whichever."""

    job_id: Optional[str] = None
    """As in ``RecordFilter``."""
    job_name: Optional[str] = None
    attempt: Optional[int] = None
    uid: Optional[int] = None
    user_name: Optional[Union[str, NamespaceScope]] = None
    """The owner, or a scope that the job is in."""


EVERY_ENDED = RecordFilter()
