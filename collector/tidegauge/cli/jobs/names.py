"""A job's name in a table: its id, the name that ``squeue`` shows of a task of a Slurm array, its group of ranks where
it has several, and a later attempt. Where a command takes a job, it takes what the tables print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from tidegauge.cli.errors import USAGE, CommandError
from tidegauge.core.ids import known_as
from tidegauge.core.text import one_line

T = TypeVar("T")
MAX_NAMED = 4


class Named(NamedTuple):
    """What a group of ranks of a job is known by."""

    job_id: str
    attempt: int
    array: str | None = None
    given: str | None = None
    """The name that its owner gave the job."""
    group: str = ""
    """As people call it."""

    @property
    def ids(self) -> frozenset[str]:
        """What means the job with all of its groups and attempts."""
        return frozenset({self.job_id, self.array or self.job_id, known_as(self.job_id, self.given)})

    @property
    def names(self) -> frozenset[str]:
        """What tables call this group of this attempt."""
        return frozenset(
            make(one, self.attempt, array, group=self.group)
            for make in (job_name, short_job_name)
            for one in self.ids
            for array in (None, self.array)
        )


class SeveralJobsError(CommandError):
    """A name that its owners gave to several jobs."""

    def __init__(self, name: str, job_ids: Iterable[str]) -> None:
        first, *rest = sorted(map(one_line, job_ids))
        others = f"{', '.join(rest[:MAX_NAMED])}{' …' if len(rest) > MAX_NAMED else ''}"
        super().__init__(
            f"{1 + len(rest)} jobs have the name {one_line(name)!r}: use a job id, {first} or {others}",
            exit_code=USAGE,
        )


def meant(jobs: Iterable[T], text: str, named: Callable[[T], Named]) -> list[T]:
    """The groups of ranks that ``text`` is a name of, as people write it or as a table prints it: one that has just
    that name, else those of all jobs with that id."""
    jobs = list(jobs)
    return [job for job in jobs if text in named(job).ids] or [job for job in jobs if text in named(job).names]


def job_name(job_id: str, attempt: int, array: str | None = None, *, group: str = "") -> str:
    """ "4711", "4711 (123_4)", "4711 (step 1, attempt 2)": the first attempt is 0 and goes without saying."""
    return _name(job_id, array, group or None, f"attempt {attempt}" if attempt else None)


def short_job_name(job_id: str, attempt: int, array: str | None = None, *, group: str = "") -> str:
    """The same where there is little room: "4711 (2)"."""
    return _name(job_id, array, group or None, str(attempt) if attempt else None)


def _name(job_id: str, *more: str | None) -> str:
    known = [one for one in more if one is not None]
    return f"{job_id} ({', '.join(known)})" if known else job_id
