"""Runs incidents, actions and the records of jobs inside the coordinator: opens the database as soon as it can be, then
works once a second.

Only this module and ``schedulers`` import the hooks (policy, carrying out, adapters), and only when they need them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_switch import ActionSwitch
from tidegauge.cluster.incident_loops.earlier_runs import EarlierRunsLookup
from tidegauge.cluster.incident_loops.incident_recording import IncidentRecorder
from tidegauge.cluster.incident_loops.job_recording import JobRecorder
from tidegauge.cluster.incident_loops.notifying import Tell, TellingBoard
from tidegauge.cluster.incident_loops.schedulers import open_node_conditions, open_schedulers
from tidegauge.cluster.service_record import StateFiles
from tidegauge.cluster.store import ActStore, RecordRoom, Store, StoreError, open_store, sqlite_url
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import AuditError, Decision, LoopStatus
from tidegauge.core.incidents.loop_figures import SlurmLabels
from tidegauge.core.incidents.steps import IncidentRules
from tidegauge.core.job_records.record import JobEvent
from tidegauge.core.verdicts import Severity
from tidegauge.settings import Settings
from tidegauge.steady_clock import PolicyClock, SteadyClock

if TYPE_CHECKING:
    from tidegauge_scheduler_hooks.end_remarks import EndRemarks
    from tidegauge_scheduler_hooks.job_ends import JobEnds
    from tidegauge_scheduler_hooks.ports import Messenger

log = logging.getLogger(__name__)

TURN_EVERY_S = 1.0
DAY_S = 86400.0
PRUNE_AGAIN_S = 600.0


class Loop(Protocol):
    """The methods of ``tidegauge_scheduler_hooks.closed_loop.ClosedLoop`` that are called here."""

    def tick(self) -> None: ...

    def status(self) -> LoopStatus: ...

    def slurm_labels(self) -> Mapping[JobKey, SlurmLabels]: ...

    def job_events(self) -> Sequence[JobEvent]: ...

    def open_incidents(self) -> Sequence[Incident]: ...


class RecordWriter(Protocol):
    """Writes what is to stay. Expected failures raise nothing; ``problem`` is why nothing is written."""

    @property
    def problem(self) -> str | None: ...
    def tick(self) -> None: ...


@dataclass(frozen=True)
class Opened:
    """The loop with its database and clocks."""

    store: Store
    loop: Loop
    now_s: Callable[[], float]
    ages_s: Callable[[], float] | None = None
    """What incidents become old by, besides ``now_s``: that begins at the host's clock, which may be wrong."""
    recorders: tuple[RecordWriter, ...] = ()
    views: Mapping[str, RecordWriter] = field(default_factory=dict)
    """What is shown in a scheduler, by a name for people: a problem of theirs is that scheduler's, and loses no
    record."""


class ActionLoop:
    """The loop of incidents and actions: ``start`` begins its thread; all other methods are thread-safe."""

    def __init__(
        self, open_all: Callable[[], Opened], *, keep_incidents_s: float, keep_jobs_s: float = float("inf")
    ) -> None:
        self.telling = TellingBoard(monotonic_s=time.monotonic)
        """Where the notifier says how it stands."""
        self._open_all = open_all
        self._keep_incidents_s = keep_incidents_s
        self._keep_jobs_s = keep_jobs_s
        self._opened: Opened | None = None
        self._problem: str | None = None
        self._stopped = threading.Event()
        self._prune_s = float("-inf")

    def start(self) -> None:
        threading.Thread(target=self._run, name="tidegauge-actions", daemon=True).start()

    def stop(self) -> None:
        """Begin no further turn. What is under way ends by itself, or the next coordinator takes it up."""
        self._stopped.set()

    def status(self) -> LoopStatus:
        """The status of the loop; until the database is open, the reason why it is not."""
        if self._opened is not None:
            status = self._opened.loop.status()
            problems = (recorder.problem for recorder in self._opened.recorders)
            not_shown = {name: view.problem for name, view in self._opened.views.items() if view.problem is not None}
            return replace(
                status, records_problem=next(filter(None, problems), None),
                scheduler_problems={**status.scheduler_problems, **not_shown}, telling=self.telling.read(),
            )  # fmt: skip
        problem = self._problem or "not opened yet"
        return LoopStatus(mode="observe", policy_file=None, store_problem=problem, telling=self.telling.read())

    def slurm_labels(self) -> Mapping[JobKey, SlurmLabels]:
        """Labels from Slurm for the jobs that are there; empty until the database is open."""
        return {} if self._opened is None else self._opened.loop.slurm_labels()

    def store(self) -> Store:
        """The database. Raises ``StoreError`` while it is not open."""
        if self._opened is None:
            raise StoreError(self._problem or "the database is not open yet")
        return self._opened.store

    def now_s(self) -> float:
        """The policy clock. Raises ``StoreError`` while the database, from which it continues, is not open."""
        self.store()
        assert self._opened is not None, "there is a database"
        return self._opened.now_s()

    def turn(self) -> None:
        """One turn; never raises."""
        try:
            if self._opened is None:
                self._opened = self._open_all()
                self._problem = None
                log.info("incidents and actions: resuming from the database")
            self._opened.loop.tick()
            self._prune(self._opened)
        except AuditError as error:
            if self._problem is None:
                log.error("no incidents are recorded and no actions are taken: %s", error)
            self._problem = str(error)
        except Exception:
            # The loop is what looks after actions under way: it must outlive a defect in one turn.
            log.exception("a pass over incidents and actions failed; continuing")
        writers = () if self._opened is None else (*self._opened.recorders, *self._opened.views.values())
        for recorder in writers:
            self._record(recorder)

    def _record(self, recorder: RecordWriter) -> None:
        try:
            recorder.tick()
        except Exception:
            log.exception("a pass over the records of jobs and incidents failed; continuing")

    def _run(self) -> None:
        while not self._stopped.wait(TURN_EVERY_S):
            self.turn()

    def _prune(self, opened: Opened) -> None:
        now_s = opened.now_s()
        if now_s < self._prune_s:
            return
        self._prune_s = now_s + DAY_S
        aged_s = now_s if opened.ages_s is None else min(now_s, opened.ages_s())
        try:
            opened.store.prune(before_s=aged_s - self._keep_incidents_s)
            opened.store.jobs.prune(before_s=aged_s - self._keep_jobs_s)
            opened.store.profiles.prune(before_s=aged_s - self._keep_jobs_s)
        except StoreError as error:
            self._prune_s = now_s + PRUNE_AGAIN_S
            log.warning("old incidents and records of jobs could not be deleted: %s", error)


def open_actions(
    settings: Settings, coordinator: Coordinator, files: StateFiles, *, tell: Tell | None = None
) -> Opened:
    """Open the loop of one coordinator. ``tell`` notifies owners without a scheduler. Raises ``StoreError``."""
    room = RecordRoom(memory_bytes=int(settings.keep_jobs_gib * (1 << 30)))
    store = open_store(settings.database_url or sqlite_url(files.root), jobs=room)
    try:
        loop, ends, remarks, views, now_s = _loop_over(store, settings, coordinator, files, tell)
        jobs = JobRecorder(
            coordinator.jobs, store.jobs, events=loop.job_events, labels=loop.slurm_labels,
            ended_launches=coordinator.ended_launches, told_ends=ends.told, look_at_ended=remarks.look,
            history_of=coordinator.history_of,
            now_s=now_s, monotonic_s=time.monotonic,
        )  # fmt: skip
        incidents = IncidentRecorder(
            loop.open_incidents, coordinator.jobs, store.incidents, history_of=coordinator.history_of,
            monotonic_s=time.monotonic,
        )  # fmt: skip
        earlier = EarlierRunsLookup(coordinator.jobs, store.jobs, coordinator.know_earlier_runs, now_s=now_s)
        return Opened(store, loop, now_s, SteadyClock(files.clock).unix_s, (jobs, incidents, earlier), views)
    except BaseException:
        store.close()  # this is tried again every second
        raise


def _loop_over(
    store: Store, settings: Settings, coordinator: Coordinator, files: StateFiles, tell: Tell | None
) -> tuple[Loop, JobEnds, EndRemarks, Mapping[str, RecordWriter], Callable[[], float]]:
    from tidegauge_scheduler_hooks.closed_loop import ClosedLoop, workers_for
    from tidegauge_scheduler_hooks.end_remarks import EndRemarks
    from tidegauge_scheduler_hooks.job_ends import JobEnds
    from tidegauge_scheduler_hooks.policy.files import PolicySource
    from tidegauge_scheduler_hooks.shown_incidents import ShownIncidents

    clock = PolicyClock(wall_s=time.time, monotonic_s=time.monotonic, not_before_s=store.newest_s())
    switch = ActionSwitch(files.actions)
    schedulers = open_schedulers(settings, coordinator, files)
    workers = ThreadPoolExecutor(workers_for(len(schedulers)), thread_name_prefix="tidegauge-action")
    loop = ClosedLoop(
        cluster=coordinator,
        incidents=store.incidents,
        audit=store.audit,
        schedulers=schedulers,
        policy=PolicySource(settings.policy_file),
        switches=lambda: switch.read(now_s=clock.now_s()),
        exemptions=lambda: _exempt(store.acts, clock.now_s()),
        now_s=clock.now_s,
        monotonic_s=time.monotonic,
        wall_s=time.time,
        submit=workers.submit,
        messenger=None if tell is None else _messenger(tell),
        commands=coordinator.orders,
        rules=IncidentRules(min_severity=Severity(settings.incident_severity)),
    )
    ends = JobEnds(schedulers, submit=workers.submit, monotonic_s=time.monotonic)
    remarks = EndRemarks(schedulers, submit=workers.submit, monotonic_s=time.monotonic)
    shown = ShownIncidents(
        schedulers, loop.open_incidents, store.incidents, store.audit.records_of, coordinator.jobs,
        submit=workers.submit, now_s=clock.now_s, monotonic_s=time.monotonic,
    )  # fmt: skip
    conditions = open_node_conditions(settings, coordinator, submit=workers.submit)
    views: dict[str, RecordWriter] = {"shown incidents": shown}
    if conditions is not None:
        views["kubernetes nodes"] = conditions
    return loop, ends, remarks, views, clock.now_s


def _exempt(acts: ActStore, now_s: float) -> Mapping[JobKey, str]:
    """Who exempted which job, in words, the same for as long as it lasts. Without a name: the channel reads them."""
    return {
        job: f"{'an admin' if act.as_admin else 'its owner'} exempted it until {_utc(act.until_unix_s or 0.0)}"
        for job, act in acts.exemptions(now_s=now_s).items()
    }


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _messenger(tell: Tell) -> Messenger:
    from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

    class ByNotifier:
        def tell(self, decision: Decision) -> str:
            told = tell(decision)
            if told.where is not None:
                return told.where
            if told.retry_after_s is not None:
                raise TemporaryError(told.problem, retry_after_s=told.retry_after_s)
            raise PermanentError(told.problem)

    return ByNotifier()
