"""Writes memory profiles into the database, and asks ranks for one when somebody wants it now.

Agents ask by themselves (``core.profile_policy``). What people asked for is in memory only: whoever waits for it asks
again after a restart, and a profile that was made meanwhile is in the database.
"""

from __future__ import annotations

import functools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.views import AskedProfile, AskState, ProfileProblem
from tidegauge.core.evidence.rank_evidence import MAX_ID_CHARS
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import AuditError, RankTarget
from tidegauge.core.job_records.record import JobEnd, end_of
from tidegauge.core.orders import Reply
from tidegauge.core.profile.rank_profile import PROFILE_ASKED, RankProfile
from tidegauge.core.profile.request import MAX_S, TRIP_S, profile_request
from tidegauge.core.views import JobView
from tidegauge.steady_clock import PolicyClock

log = logging.getLogger(__name__)

TURN_EVERY_S = 1.0
ANSWER_WITHIN_S = 15.0
"""A rank says at once that it begins; the way there and back takes two to three reports of its agent."""
ENDED_TRIP_S = 10.0
"""A rank that has ended may have left a whole recording: its node makes the profile in some seconds."""
MAX_RANKS = 64
"""Asked at once."""
MAX_OUTCOMES = 1024
"""Remembered of profiles that came: a rank's answer may name one that is here already."""
MAX_JOBS = 100
"""Of which it is remembered what was asked for."""
WORKERS = 4
_HOW = {JobEnd.ENDED: "by itself", JobEnd.KILLED: "killed", JobEnd.OOM: "out of GPU memory"}


class _Recording(NamedTuple):
    """The process that was asked for a profile."""

    process: ProcessId
    ended_s: float | None = None
    """When it was first seen to have ended."""


class ProfileTable(Protocol):
    """The method of ``store.ProfileStore`` that is called here. It raises ``AuditError``."""

    def keep(self, found: Sequence[RankProfile], *, at_s: float) -> None: ...


class ProfileLoop:
    """``start`` begins its thread. ``table`` raises ``AuditError`` while the database is not open; ``submit`` runs a
    call in a worker; ``now_s`` is Unix time that never runs backwards. Any thread may call ``ask``, ``asked`` and
    ``problems``."""

    def __init__(
        self,
        coordinator: Coordinator,
        table: Callable[[], ProfileTable],
        *,
        now_s: Callable[[], float],
        submit: Callable[[Callable[[], None]], object],
        new_id: Callable[[], str] = lambda: f"profile-{secrets.token_hex(8)}",
    ) -> None:
        self._coordinator = coordinator
        self._table = table
        self._now_s = now_s
        self._submit = submit
        self._new_id = new_id
        self._lock = threading.Lock()
        self._asked: dict[JobKey, dict[int, AskedProfile]] = {}
        """By group of ranks, those asked last at the end."""
        self._recording: dict[tuple[JobKey, str], _Recording] = {}
        """By job and id of the profile, those that record."""
        self._outcomes: dict[tuple[JobKey, str], tuple[AskState, str | None]] = {}
        """By the same, what came of each, the latest at the end."""
        self._problem: str | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="tidegauge-profiles", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def turn(self) -> None:
        """One turn; never raises."""
        try:
            self._write()
            self._problem = None
        except AuditError as error:
            if self._problem is None:
                log.error("no memory profiles are kept: %s", error)
            self._problem = str(error)
        except Exception:
            log.exception("a pass over memory profiles failed; continuing")
        try:
            self._end_of_ranks()
        except Exception:
            log.exception("a pass over ranks that record a memory profile failed; continuing")

    def ask(self, job: JobKey, ranks: Collection[int]) -> Sequence[AskedProfile]:
        """Ask the living ``ranks`` of a job, all if there are none, but not those that are at it; blocks nobody. Of a
        rank that records already, for whomever, that profile is waited for.

        Returns what ``asked`` does. Raises ``LookupError`` where the job, or one of the ranks, does not run.
        """
        view = next((one for one in self._coordinator.jobs() if one.ranks and one.key == job), None)
        targets = {} if view is None else _targets(view)
        if not targets:
            raise LookupError(f"job {job.job_id} has no running rank")
        gone = [rank for rank in ranks if rank not in targets]
        if gone:
            raise LookupError(f"job {job.job_id} has no running rank {gone[0]}")
        now_s = self._now_s()
        with self._lock:
            known = self._asked.pop(job, {})
            new = [rank for rank in ranks or targets if not _is_under_way(known.get(rank), now_s)][:MAX_RANKS]
            known.update({rank: AskedProfile(rank, self._new_id(), AskState.ASKING, now_s) for rank in new})
            self._asked[job] = known
            while len(self._asked) > MAX_JOBS:
                del self._asked[next(iter(self._asked))]
            asks = [known[rank] for rank in new]
        for one in asks:
            log.info("job %s rank %d: a memory profile is requested", job.job_id, one.rank)
            self._submit(functools.partial(self._ask, job, one, targets[one.rank]))
        return self.asked(job)

    def asked(self, job: JobKey) -> Sequence[AskedProfile]:
        """What was asked for lately, by rank."""
        now_s = self._now_s()
        with self._lock:
            return [_overdue(one, now_s) for _, one in sorted(self._asked.get(job, {}).items())]

    def problems(self) -> Sequence[ProfileProblem]:
        """Of running jobs, why there is no new profile of some ranks."""
        found: dict[tuple[JobKey, str], list[int]] = {}
        for view in self._coordinator.jobs():
            for rank in view.ranks:
                if rank.alive and rank.profile_problem is not None:
                    found.setdefault((view.key, rank.profile_problem), []).append(int(rank.identity.rank))
        return [ProfileProblem(job, tuple(sorted(ranks)), problem) for (job, problem), ranks in found.items()]

    def _ask(self, job: JobKey, one: AskedProfile, target: RankTarget) -> None:
        """In a worker."""
        request = profile_request(one.profile_id, PROFILE_ASKED, join=True)
        reply = self._coordinator.orders.ask_ranks(job, [target], request, timeout_s=ANSWER_WITHIN_S)[one.rank]
        self._hear(job, one, reply, target)

    def _hear(self, job: JobKey, one: AskedProfile, reply: Reply, target: RankTarget) -> None:
        if reply.error is None:
            with self._lock:
                recorded = one._replace(profile_id=_recorded(reply) or one.profile_id)
                if self._asked.get(job, {}).get(one.rank) == one:
                    self._asked[job][one.rank] = recorded
                self._recording[job, recorded.profile_id] = _Recording(target.process)
                outcome = self._outcomes.get((job, recorded.profile_id), (AskState.RECORDING, None))
            self._change(job, recorded, *outcome)
        else:
            log.info("job %s rank %d records no memory profile now: %s", job.job_id, one.rank, reply.error)
            self._change(job, one, AskState.FAILED, reply.error)

    def _write(self) -> None:
        waiting: Mapping[tuple[JobKey, str], RankProfile] = self._coordinator.profiles.waiting()
        if not waiting:
            return
        found = list(waiting.values())
        self._table().keep([one for one in found if one.has_profile], at_s=self._now_s())
        self._coordinator.profiles.keep(waiting)
        for profile in found:
            problem = None if profile.has_profile else "; ".join(profile.problems) or None
            outcome = (AskState.DONE if profile.has_profile else AskState.FAILED, problem)
            with self._lock:
                self._outcomes[profile.job, profile.profile_id] = outcome
                while len(self._outcomes) > MAX_OUTCOMES:
                    del self._outcomes[next(iter(self._outcomes))]
                one = self._asked.get(profile.job, {}).get(profile.rank)
            if one is not None and one.profile_id == profile.profile_id:
                self._change(profile.job, one, *outcome)

    def _end_of_ranks(self) -> None:
        """Give up on ranks that ended before their recording was complete."""
        now_s = self._now_s()
        with self._lock:
            under_way = {
                (job, one.profile_id): one
                for job, asked in self._asked.items()
                for one in asked.values()
                if one.state is AskState.RECORDING
            }
            self._recording = {key: was for key, was in self._recording.items() if key in under_way}
            recording = dict(self._recording)
        if not recording:
            return
        views = [view for view in self._coordinator.jobs() if view.ranks]
        living = {(view.key.whole, rank.process) for view in views for rank in view.ranks if rank.alive}
        ended = {
            (view.key.whole, rank.process): _HOW[end_of(rank)]
            for view in views
            for rank in view.ranks
            if int(rank.identity.rank) not in view.stale
        }
        for key, was in recording.items():
            job, one = key[0], under_way[key]
            if (job.whole, was.process) in living:
                continue
            if was.ended_s is None:
                with self._lock:
                    self._recording[key] = was._replace(ended_s=now_s)
            elif now_s - was.ended_s >= ENDED_TRIP_S:
                how = ended.get((job.whole, was.process))
                problem = f"it ended{'' if how is None else f' ({how})'} before its recording was complete"
                log.info("job %s rank %d has no memory profile: %s", job.job_id, one.rank, problem)
                self._change(job, one, AskState.FAILED, problem)

    def _change(self, job: JobKey, one: AskedProfile, state: AskState, problem: str | None = None) -> None:
        with self._lock:
            known = self._asked.get(job, {}).get(one.rank)
            # A profile may be there before the rank's answer is: two reports of its agent.
            if known is not None and known.profile_id == one.profile_id and known.state is not AskState.DONE:
                self._asked[job][one.rank] = known._replace(state=state, problem=problem)

    def _run(self) -> None:
        while not self._stopped.wait(TURN_EVERY_S):
            self.turn()


def open_profiles(coordinator: Coordinator, table: Callable[[], ProfileTable]) -> ProfileLoop:
    """The loop of a running coordinator, with its workers."""
    workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="tidegauge-profile")
    clock = PolicyClock(wall_s=time.time, monotonic_s=time.monotonic)
    return ProfileLoop(coordinator, table, now_s=clock.now_s, submit=workers.submit)


def _targets(view: JobView) -> Mapping[int, RankTarget]:
    return {
        int(rank.identity.rank): RankTarget(int(rank.identity.rank), node_id, rank.process, rank.step)
        for rank, node_id in zip(view.ranks, view.rank_nodes)
        if rank.alive
    }


def _recorded(reply: Reply) -> str | None:
    """The id of what a rank records, if it says it."""
    said = None if reply.value is None else reply.value.get("id")
    return said if isinstance(said, str) and len(said) <= MAX_ID_CHARS else None


def _is_under_way(one: AskedProfile | None, now_s: float) -> bool:
    return one is not None and _overdue(one, now_s).state in (AskState.ASKING, AskState.RECORDING)


def _overdue(one: AskedProfile, now_s: float) -> AskedProfile:
    over = one.state is AskState.RECORDING and now_s - one.asked_unix_s > MAX_S + TRIP_S
    return one._replace(state=AskState.FAILED, problem="nothing came of it in time") if over else one
