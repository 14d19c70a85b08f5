"""Writes a record of every job and the memory of its ranks into the database: when it begins, once a minute while it
runs, and when it ends."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.incidents.loop_figures import SlurmLabels
from tidegauge.core.job_records.memory import HistoryOf, JobMemory, MemorySoFar
from tidegauge.core.job_records.record import (
    JobEnd,
    JobEvent,
    JobRecord,
    by_job,
    end_by_actions,
    end_of_launch,
    lost,
    record_of,
    with_end,
    with_events,
)
from tidegauge.core.jobs.launches import LaunchSummary
from tidegauge.core.jobs.slurm import SCHEDULER as SLURM
from tidegauge.core.views import JobView

log = logging.getLogger(__name__)

KEEP_UP_S = 60.0
"""A coordinator that is killed loses so much of a running job's peaks that a program reset, and of its verdicts."""
SAME_START_S = 3600.0
"""A job id that comes back so long after its job ended is another start. Steps of a job may be minutes apart."""
MISSED_AFTER_S = 600.0
"""How long after its own start the coordinator waits for jobs that ran before it: agents need seconds to come back."""
MAX_UNWRITTEN = 10_000
"""Ended jobs that wait for a database that is away; the oldest beyond it are dropped."""
MAX_RANKS_A_TICK = 500
"""Ranks whose memory is read and written in one tick, for the loop of incidents waits: a third of a second, and ten
thousand that end at once are written in twenty seconds, before their histories are forgotten."""
NEVER = float("inf")


class JobRecords(Protocol):
    """The methods of ``store.JobRecordStore`` that are called here. They raise ``AuditError``."""

    def save(self, records: Sequence[JobRecord], /) -> None: ...

    def latest(self, jobs: Collection[JobKey], /) -> Mapping[JobKey, JobRecord]: ...

    def running(self) -> Sequence[JobRecord]: ...

    def save_memory(self, memory: Mapping[JobRecord, JobMemory], /) -> None: ...

    def memory(self, record: JobRecord, /) -> JobMemory | None: ...


class _LaunchOfJob(NamedTuple):
    """A ``tidegauge run``, and the restart of it that an attempt is."""

    node_id: str
    process: ProcessId | None
    """``None``: its ranks had ended when they were first seen. It is the one of that name."""
    restarts: int


@dataclass
class _Followed:
    """A job that is watched, or was and is not written yet."""

    record: JobRecord
    views: tuple[JobView, ...]
    """Those that ``record`` was made of last."""
    due_s: float
    """When its record is written next (monotonic); ``NEVER``: it is written as it is."""
    goes_on: bool
    """There is a memory of it in the database that is not read yet."""
    memory: MemorySoFar = field(default_factory=MemorySoFar)
    launches: set[_LaunchOfJob] = field(default_factory=set)
    """Those that its living ranks descended from."""

    @property
    def cost(self) -> int:
        """Ranks to read and to write."""
        return max(sum(len(view.ranks) for view in self.views), 1)


class JobRecorder:
    """For one thread: ``tick`` once a second. ``events`` gives those since its last call, ``labels`` what
    Slurm's controller tells of jobs: for nodes whose prolog does not know the account. ``look_at_ended`` is called at
    each tick with all jobs that ended of late and are written."""

    def __init__(
        self,
        jobs: Callable[[], Sequence[JobView]],
        records: JobRecords,
        *,
        events: Callable[[], Sequence[JobEvent]] = tuple,
        labels: Callable[[], Mapping[JobKey, SlurmLabels]] = dict,
        history_of: HistoryOf,
        ended_launches: Callable[[], Mapping[str, Sequence[LaunchSummary]]] = dict,
        told_ends: Callable[[Sequence[JobView]], Mapping[JobKey, JobEnd]] = lambda _: {},
        look_at_ended: Callable[[Sequence[tuple[JobView, JobRecord]]], None] = lambda _: None,
        now_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._records = records
        self._events = events
        self._labels = labels
        self._history_of = history_of
        self._ended_launches = ended_launches
        self._told_ends = told_ends
        self._look_at_ended = look_at_ended
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._followed: dict[JobKey, _Followed] = {}
        self._missed: dict[JobKey, JobRecord] = {}
        """Jobs that ran under an earlier coordinator and have not been seen by this one."""
        self._missed_read = False
        self._untaken: dict[JobKey, None] = {}
        """Jobs whose ranks' histories are to be read, the first first; those that wait for the database are not in
        it: a history is gone two minutes after its rank."""
        self._unsaved: dict[JobKey, None] = {}
        """Jobs whose memory is to be written."""
        self.problem: str | None = None
        """Why nothing is recorded."""

    def tick(self) -> None:
        """Look at all jobs, and write what is due; never raises ``AuditError``."""
        try:
            self._look()
            self._take_events()
            self._take_labels()
            self._take_ends()
            self._write()
            self.problem = None
            self._look_at_ended(
                [(one.views[0], one.record) for one in self._followed.values() if one.views and one.record.end]
            )
        except AuditError as error:
            if self.problem is None:
                log.error("no jobs are recorded: %s", error)
            self.problem = str(error)

    @property
    def unwritten(self) -> int:
        """Jobs whose memory waits for one of the next ticks."""
        return len(self._untaken) + len(self._unsaved)

    def _look(self) -> None:
        if not self._missed_read:
            self._missed = {record.job: record for record in self._records.running()}
            self._missed_read = True
        views = by_job(self._jobs())
        now_s, monotonic_s = self._now_s(), self._monotonic_s()
        before = self._records.latest(new) if (new := views.keys() - self._followed.keys()) else {}
        for job, seen in views.items():
            followed = self._followed.get(job)
            if followed is None:
                self._missed.pop(job, None)
                earlier = _same_start(before.get(job), now_s)
                record = record_of(seen, earlier, now_s=now_s)
                followed = _Followed(record, tuple(seen), monotonic_s, goes_on=earlier is not None)
                followed.memory.look(seen)
                self._followed[job] = followed
            elif len(seen) != len(followed.views) or any(a is not b for a, b in zip(seen, followed.views)):
                self._update(followed, record_of(seen, followed.record, now_s=now_s), monotonic_s)
                followed.views = tuple(seen)
                followed.memory.look(seen)
            self._followed[job].launches |= _launches_of(seen)
        gone = [job for job in self._followed if job not in views]
        for job in gone[:-MAX_UNWRITTEN]:
            del self._followed[job]
        for job in gone[-MAX_UNWRITTEN:]:
            followed = self._followed[job]
            self._update(followed, lost(followed.record), monotonic_s)
            followed.views = ()
            followed.due_s = followed.due_s if followed.due_s == NEVER else monotonic_s

    def _take_events(self) -> None:
        """Note events, and write them at once: the loop tells them to this coordinator only."""
        events: dict[JobKey, list[JobEvent]] = defaultdict(list)
        for event in self._events():
            events[event.job].append(event)
        for job, news in events.items():
            followed = self._followed.get(job)
            if followed is not None:
                before, followed.record = followed.record, with_events(followed.record, news)
                if followed.record != before:
                    followed.due_s = self._monotonic_s()

    def _take_labels(self) -> None:
        lacking = [
            job for job, one in self._followed.items() if one.record.scheduler == SLURM and one.record.account is None
        ]
        labels = {job.whole: found for job, found in self._labels().items()} if lacking else {}
        for job in lacking:
            found, followed = labels.get(job), self._followed[job]
            if found is not None:
                partition = followed.record.partition or found.partition
                record = followed.record._replace(account=found.account, partition=partition)
                self._update(followed, record, self._monotonic_s())

    def _take_ends(self) -> None:
        """Take the word of those who ended jobs, or saw them end."""
        ended = [
            one
            for one in self._followed.values()
            if one.views and one.record.end is not None and not one.record.end.is_final
        ]
        told = self._told_ends([followed.views[0] for followed in ended])
        launches = self._ended_launches()
        for followed in ended:
            record = followed.record
            after = with_end(record, end_by_actions(record))
            after = with_end(after, self._end_of_launch(followed, launches))
            after = with_end(after, told.get(followed.views[0].key))
            if after is not record:
                followed.record, followed.due_s = after, self._monotonic_s()

    def _end_of_launch(
        self, followed: _Followed, ended_launches: Mapping[str, Sequence[LaunchSummary]]
    ) -> JobEnd | None:
        launches = followed.launches or _launch_by_name(followed)
        if len(launches) != 1:
            return None  # a process of several says how a part ended
        (launch,), job = launches, followed.record.job
        ended = [
            one
            for one in ended_launches.get(launch.node_id, ())
            if one.uid == job.uid
            and (one.job_id == job.job_id if launch.process is None else one.process == launch.process)
        ]
        return end_of_launch(ended[0], launch.restarts) if len(ended) == 1 else None

    def _update(self, followed: _Followed, record: JobRecord, monotonic_s: float) -> None:
        before, followed.record = followed.record, record
        if before.end is not record.end:
            followed.due_s = monotonic_s
        elif record != before._replace(updated_unix_s=record.updated_unix_s):
            followed.due_s = min(followed.due_s, monotonic_s + KEEP_UP_S)

    def _write(self) -> None:
        monotonic_s = self._monotonic_s()
        due = [one for one in self._followed.values() if one.due_s <= monotonic_s]
        waited = monotonic_s - self._began_s >= MISSED_AFTER_S
        missed = self._missed_that_ended(all_of_them=waited)
        self._untaken |= dict.fromkeys(one.record.job for one in due)
        self._take_histories()
        self._records.save([*(one.record for one in due), *missed])
        for one in due:
            one.due_s = NEVER
        for record in missed:
            del self._missed[record.job]
        self._save_memory()
        self._followed = {job: one for job, one in self._followed.items() if one.views or self._is_unwritten(job, one)}

    def _missed_that_ended(self, *, all_of_them: bool) -> list[JobRecord]:
        """Jobs that ended under no coordinator: their ranks are gone, and some of them have a ``tidegauge run`` that
        says how it ended."""
        launches = self._ended_launches() if self._missed else {}
        ends = {job: _end_by_name(record, launches) for job, record in self._missed.items()}
        return [
            with_end(lost(record), ends[job])
            for job, record in self._missed.items()
            if all_of_them or ends[job] is not None
        ]

    def _is_unwritten(self, job: JobKey, followed: _Followed) -> bool:
        return followed.due_s != NEVER or job in self._untaken or job in self._unsaved

    def _some_of(self, waiting: dict[JobKey, None]) -> Sequence[_Followed]:
        """As many of these jobs as one tick has time for, which wait no longer."""
        some: list[_Followed] = []
        room = MAX_RANKS_A_TICK
        while waiting and room > 0:
            job = next(iter(waiting))
            del waiting[job]
            followed = self._followed.get(job)
            if followed is not None:
                some.append(followed)
                room -= followed.cost
        return some

    def _take_histories(self) -> None:
        for followed in self._some_of(self._untaken):
            followed.memory.take(followed.views, self._history_of)
            self._unsaved[followed.record.job] = None

    def _save_memory(self) -> None:
        some = [followed for followed in self._some_of(self._unsaved) if self._went_on(followed)]
        try:
            if some:
                self._records.save_memory({followed.record: followed.memory.memory() for followed in some})
        except AuditError:
            self._unsaved |= dict.fromkeys(followed.record.job for followed in some)
            raise

    def _went_on(self, followed: _Followed) -> bool:
        """Whether what an earlier coordinator stored is known. What cannot be read must not cost the other jobs theirs,
        nor be written over."""
        try:
            if followed.goes_on:
                followed.memory.go_on_from(self._records.memory(followed.record) or JobMemory())
                followed.goes_on = False
        except AuditError as error:
            log.warning("the memory of job %s is not written: %s", followed.record.job.job_id, error)
        return not followed.goes_on


def _launches_of(views: Sequence[JobView]) -> set[_LaunchOfJob]:
    return {
        _LaunchOfJob(view.launch_node, view.launch.process, view.launch.restarts)
        for view in views
        if view.launch is not None and view.launch_node is not None
    }


def _launch_by_name(followed: _Followed) -> set[_LaunchOfJob]:
    """Those of ranks that were never seen alive, by a service that was down when they ended."""
    return {
        _LaunchOfJob(node_id, None, rank.identity.restarts)
        for view in followed.views
        for node_id, rank in zip(view.rank_nodes, view.ranks)
    }


def _end_by_name(record: JobRecord, ended_launches: Mapping[str, Sequence[LaunchSummary]]) -> JobEnd | None:
    """By the one ``tidegauge run`` of that name and user, if it ended in this attempt."""
    owner = (record.job.job_id, record.job.uid)
    named = [one for several in ended_launches.values() for one in several if (one.job_id, one.uid) == owner]
    if len(named) != 1 or named[0].restarts != record.job.attempt or record.nodes != 1:
        return None
    return end_of_launch(named[0], named[0].restarts)


def _same_start(record: JobRecord | None, now_s: float) -> JobRecord | None:
    """The record that a job which is seen now goes on with."""
    if record is None or record.ended_unix_s is None or now_s - record.ended_unix_s < SAME_START_S:
        return record
    return None
