"""Selection and order of the jobs, ranks and incidents in ``tidegauge top``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from tidegauge.cli.jobs.names import Named, SeveralJobsError, meant
from tidegauge.cluster.api.overview import JobLine, RankLine
from tidegauge.core.ids import JobKey, known_as
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.wording import name_job
from tidegauge.core.units import format_count
from tidegauge.core.verdicts import alarm_level

RowOrderT = TypeVar("RowOrderT", bound="RowOrder")


class RowOrder(str, Enum):
    """An order of rows; a key goes through all orders of a table."""

    @property
    def next(self: RowOrderT) -> RowOrderT:
        """The order after this one, round and round."""
        orders = list(type(self))
        return orders[(orders.index(self) + 1) % len(orders)]


class Sort(RowOrder):
    """The order of jobs and ranks."""

    TIME = "time"
    """The order by predicted time to OOM."""
    MEMORY = "memory"
    """The order by share of memory in use, the largest first."""
    GROWTH = "growth"
    """The order by growth per step, the largest first."""
    NAME = "name"
    STATE = "state"
    USER = "user"
    HOST = "host"
    RANKS = "ranks"
    STEP = "step"
    BYTES = "bytes"
    """The order by memory in use, the largest first."""

    @property
    def words(self) -> str:
        """The order in a title: "by time to OOM"."""
        return {
            Sort.TIME: "by time to OOM",
            Sort.MEMORY: "by share of memory used",
            Sort.GROWTH: "by growth per step",
            Sort.NAME: "by name",
            Sort.STATE: "by state",
            Sort.USER: "by user",
            Sort.HOST: "by host",
            Sort.RANKS: "by number of ranks",
            Sort.STEP: "by step",
            Sort.BYTES: "by memory used",
        }[self]


@dataclass(frozen=True)
class Selection:
    """The filter and order that the user chose."""

    sort: Sort = Sort.TIME
    user: str | None = None
    """The user whose jobs are shown; ``None``: all."""
    text: str = ""
    """The text that rows must contain, in any case."""

    def words(self, *, whose: bool) -> str:
        """Order and filter in words: "by name, of ada, with 'llm'"; the user only if ``whose``."""
        parts = [self.sort.words]
        parts += [f"of {self.user}"] * (whose and self.user is not None) + [f"with {self.text!r}"] * bool(self.text)
        return ", ".join(parts)


class IncidentRow(NamedTuple):
    """An open incident and the last decision about it."""

    incident: Incident
    ranks: tuple[int, ...]
    last: DecisionRecord | None


class JobRow(NamedTuple):
    """A job and its open incidents, the most severe first."""

    job: JobLine
    incidents: tuple[IncidentRow, ...]

    @property
    def key(self) -> JobKey:
        return key_of(self.job)

    @property
    def called(self) -> JobKey:
        """The key with the names that people see: its owner's in place of an id that was made up, and the group's."""
        return self.key._replace(job_id=known_as(self.job.job_id, self.job.job_name), group=self.job.group_name)

    @property
    def other_name(self) -> str | None:
        """The name or id that ``called`` does not have."""
        return self.job.job_id if self.is_called_by_name else self.job.job_name

    @property
    def is_called_by_name(self) -> bool:
        return self.called.job_id != self.job.job_id


class JobMeant(NamedTuple):
    """The job that an act is about."""

    key: JobKey
    called: JobKey
    """The key with the names that people see."""
    user_name: str
    scheduler: str | None
    is_exempt: bool = False

    @property
    def words(self) -> str:
        return f"{name_job(self.called)} of {self.user_name}"


def job_of_line(job: JobLine) -> JobMeant:
    row = JobRow(job, ())
    return JobMeant(row.key, row.called, job.user_name, job.scheduler, job.exempt)


def key_of(job: JobLine) -> JobKey:
    """The key that identifies a job in the next answer."""
    return JobKey(job.job_id, job.attempt, job.uid, job.group)


def job_rows(jobs: Iterable[JobLine], incidents: Sequence[IncidentRow], choice: Selection) -> list[JobRow]:
    """The selected jobs, sorted; jobs that have ended come last in any order."""
    of_job = by_job(incidents)
    rows = [
        JobRow(job, of_job.get(key_of(job), ()))
        for job in jobs
        if choice.user in (None, job.user_name) and has_text(choice.text, _said_of_job(job))
    ]
    return sorted(rows, key=lambda row: (not row.job.running, _JOB_KEYS[choice.sort](row.job), *_by_name(row.job)))


def count_words(rows: Sequence[JobRow]) -> str:
    """How many jobs the rows are, as the headline counts them: "7 jobs, 1 ended" ("… in 9 groups of ranks")."""
    living = [row.key.owned for row in rows if row.job.running]
    running, ended = set(living), {row.key.owned for row in rows} - set(living)
    groups = f" in {format_count(len(living), 'group')} of ranks" if len(living) > len(running) else ""
    return f"{format_count(len(running), 'job')}{groups}" + (f", {len(ended):,} ended" if ended else "")


def rank_rows(ranks: Iterable[RankLine], choice: Selection) -> list[RankLine]:
    """The selected ranks, sorted; ranks that have ended come last."""
    rows = [rank for rank in ranks if has_text(choice.text, _said_of_rank(rank))]
    return sorted(rows, key=lambda rank: (not rank.alive, _RANK_KEYS[choice.sort](rank), rank.rank))


def incident_rows(incidents: Iterable[IncidentRow], choice: Selection) -> list[IncidentRow]:
    """The incidents of the selected jobs: the most severe first, then the newest."""
    rows = [
        line
        for line in incidents
        if choice.user in (None, line.incident.user_name) and has_text(choice.text, _said_of_incident(line.incident))
    ]
    return sorted(rows, key=lambda line: (-line.incident.severity.level, -line.incident.number))


def by_job(incidents: Sequence[IncidentRow]) -> Mapping[JobKey, tuple[IncidentRow, ...]]:
    """The incidents of each job, the most severe first."""
    found: dict[JobKey, tuple[IncidentRow, ...]] = {}
    for line in incident_rows(incidents, Selection()):
        key = line.incident.key.job
        found[key] = (*found.get(key, ()), line)
    return found


def find_job(jobs: Iterable[JobLine], name: str) -> list[JobLine]:
    """The groups of ranks of the job with that name, the most severe first: running ones, else the latest attempt.

    Among jobs of several users, the most severe one is chosen. Raises ``SeveralJobsError``.
    """
    found = meant(jobs, name, _named)
    found = [job for job in found if job.running] or found
    if len(ids := {job.job_id for job in found}) > 1:
        raise SeveralJobsError(name, ids)
    first = max(found, key=lambda job: (job.running, job.attempt, *_alarm(job)), default=None)
    if first is None:
        return []
    groups = [
        job
        for job in found
        if (job.uid, job.running) == (first.uid, first.running)
        and (job.attempt == first.attempt or (job.running and job.group_name))  # its launcher may have started it again
    ]
    return sorted(groups, key=_alarm, reverse=True)


def _named(job: JobLine) -> Named:
    return Named(job.job_id, job.attempt, job.array, job.job_name, job.group_name)


def _alarm(job: JobLine) -> tuple[int, int]:
    return alarm_level(job.state, job.severity)


def _time(line: RankLine) -> tuple[float, int, int, float]:
    seconds = math.inf if line.seconds_to_oom is None else line.seconds_to_oom.likely
    state, severity = alarm_level(line.state, line.severity)
    return seconds, -state, -severity, -(line.used_share or 0.0)


def _growth(line: RankLine) -> float:
    return 0.0 if line.bytes_per_step is None else -line.bytes_per_step.likely


def _by_name(job: JobLine) -> tuple[list[tuple[int, str]], int, int, str]:
    """The sort key of a name, in which numbers count as numbers: 4712 comes after 471."""
    parts = re.split(r"([0-9]{1,18})", job.job_id.casefold())
    numbered = [(int(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
    return numbered, -job.attempt, job.uid, job.group


_JOB_KEYS: Mapping[Sort, Callable[[JobLine], Any]] = {
    Sort.TIME: lambda job: _time(job.first),
    Sort.MEMORY: lambda job: -(job.used_share or 0.0),
    Sort.GROWTH: lambda job: _growth(job.first),
    Sort.NAME: lambda _: 0,
    Sort.STATE: lambda job: [-level for level in _alarm(job)],
    Sort.USER: lambda job: job.user_name.casefold(),
    Sort.HOST: lambda job: job.first.hostname,
    Sort.RANKS: lambda job: -job.world_size,
    Sort.STEP: lambda job: -job.step,
    Sort.BYTES: lambda job: -job.used_bytes,
}
_RANK_KEYS: Mapping[Sort, Callable[[RankLine], Any]] = {
    Sort.TIME: _time,
    Sort.MEMORY: lambda rank: -(rank.used_share or 0.0),
    Sort.GROWTH: _growth,
    Sort.NAME: lambda _: 0,
    Sort.STATE: lambda rank: [-level for level in alarm_level(rank.state, rank.severity)],
    Sort.USER: lambda _: 0,
    Sort.HOST: lambda rank: rank.hostname,
    Sort.RANKS: lambda _: 0,
    Sort.STEP: lambda rank: -rank.step,
    Sort.BYTES: lambda rank: -rank.used_bytes,
}


def _said_of_job(job: JobLine) -> Iterable[str | None]:
    return (
        job.job_id,
        job.group_name,
        job.array,
        job.job_name,
        job.user_name,
        job.scheduler,
        job.state.value,
        job.first.hostname,
        job.first.pod,
    )


def _said_of_rank(rank: RankLine) -> Iterable[str | None]:
    return rank.hostname, rank.pod, f"rank {rank.rank}", rank.state.value


def _said_of_incident(incident: Incident) -> Iterable[str | None]:
    hosts = (finding.hostname for finding in incident.findings)
    return incident.key.job.job_id, incident.job_name, incident.user_name, incident.key.cause.value, *hosts


def has_text(text: str, said: Iterable[str | None]) -> bool:
    return not text or any(text.casefold() in each.casefold() for each in said if each)
