"""Names of jobs in tables: id, Slurm array task, group of ranks, attempt. Commands accept a job by any of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from tidegauge.cli.errors import UsageError
from tidegauge.core.ids import job_name, known_as, short_job_name
from tidegauge.core.text import one_line

T = TypeVar("T")
MAX_NAMED = 4


class Named(NamedTuple):
    """The names of a group of ranks of a job."""

    job_id: str
    attempt: int
    array: str | None = None
    given: str | None = None
    """The name that its owner gave the job."""
    group: str = ""
    """The displayed name of the group."""

    @property
    def ids(self) -> frozenset[str]:
        """The names of the job with all its groups and attempts."""
        return frozenset({self.job_id, self.array or self.job_id, known_as(self.job_id, self.given)})

    @property
    def names(self) -> frozenset[str]:
        """The names of this group of this attempt in tables."""
        return frozenset(
            make(one, self.attempt, array, group=self.group)
            for make in (job_name, short_job_name)
            for one in self.ids
            for array in (None, self.array)
        )


class SeveralJobsError(UsageError):
    """A name is ambiguous: several jobs have it."""

    def __init__(self, name: str, job_ids: Iterable[str]) -> None:
        first, *rest = sorted(map(one_line, job_ids))
        others = f"{', '.join(rest[:MAX_NAMED])}{' …' if len(rest) > MAX_NAMED else ''}"
        super().__init__(f"{1 + len(rest)} jobs have the name {one_line(name)!r}: use a job id, {first} or {others}")


def other_jobs(name: str, job_id: str, others: Iterable[str]) -> str:
    """The sentence for a name that several jobs have, of which ``job_id`` is taken; ``others`` in order."""
    ids = list(map(one_line, others))
    listed = f"{', '.join(ids[:MAX_NAMED])}{' …' if len(ids) > MAX_NAMED else ''}"
    return f"{1 + len(ids)} jobs have the name {one_line(name)!r}; this is {one_line(job_id)}, others are {listed}"


def meant(jobs: Iterable[T], text: str, named: Callable[[T], Named]) -> list[T]:
    """The groups of ranks that ``text`` names: all of the jobs with that id, else those with that name in a table."""
    jobs = list(jobs)
    return [job for job in jobs if text in named(job).ids] or [job for job in jobs if text in named(job).names]
