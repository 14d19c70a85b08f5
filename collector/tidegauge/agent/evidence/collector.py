"""Evidence collection: polls pick up the files that ranks wrote, a thread processes them, reports pass the results on.
Recordings for memory profiles go the same way, and the thread asks ranks for them.

Finding files costs two file names per rank every two seconds; the search thread (``search``) does it where there is
one. One further thread unpacks, compares and stores, one piece at a time: it shares the interpreter with the polls,
but no poll waits for it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegauge.agent.evidence.attempts import EvidenceAttempts
from tidegauge.agent.evidence.budget import EvidenceBudget
from tidegauge.agent.evidence.files import EvidenceFinder, FoundFiles, RankFolder
from tidegauge.agent.evidence.growth_bounds import GrowthBounds
from tidegauge.agent.evidence.making import NodeFacts, job_of, other_jobs_bytes
from tidegauge.agent.evidence.node_profiles import NodeProfiles, RankAsk, open_node_profiles
from tidegauge.agent.evidence.profile_budget import cpu_s
from tidegauge.agent.evidence.readings import RankReadings
from tidegauge.agent.evidence.remote_store import EVIDENCE_FOLDER, open_store
from tidegauge.agent.evidence.snapshot_archive import Keeping, SnapshotArchive
from tidegauge.agent.evidence.snapshot_store import SnapshotStoreError
from tidegauge.agent.evidence.waiting import WaitingEvidence
from tidegauge.agent.evidence.work import EvidenceWork
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.ports import Clock, SourceHealth
from tidegauge.agent.processes.command_socket import ProcessSocket
from tidegauge.agent.source_health import SkipCounts
from tidegauge.core.evidence import Evidence
from tidegauge.core.ids import DeviceUuid, ProcessId
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge.core.orders import Order
from tidegauge.core.peer_bounds import PeerBound
from tidegauge.core.persons.forgotten import Forgotten
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.views import GpuView, RankView
from tidegauge.rate_limited_log import FewLines
from tidegauge.steady_clock import SteadyClock

if TYPE_CHECKING:  # it needs pydantic, and `tidegauge run` judges without
    from tidegauge.settings import Settings

_log = logging.getLogger(__name__)

MAX_QUEUED = 8
"""Each has up to three files open."""
MAX_FREE = 1024
TIDY_EVERY_S = 900.0
CLOSE_WAITS_S = 5.0
CLOCK_FILE = "clock.json"
_GIB = 1 << 30


NO_SOCKETS: Mapping[ProcessId, ProcessSocket] = {}


class _Task(NamedTuple):
    found: FoundFiles
    node: NodeFacts


class _Forget(NamedTuple):
    """Delete what is forgotten now."""


class _Refusal(NamedTuple):
    what: str
    error: UnsafeFileError


class EvidenceCollector:
    """Collects this node's evidence. The polling thread calls ``look``; that or the search thread calls ``search``; any
    thread may call ``waiting``, ``hear`` and ``health``."""

    def __init__(
        self,
        archive: SnapshotArchive,
        waiting: WaitingEvidence,
        attempts: EvidenceAttempts,
        budget: EvidenceBudget,
        bounds: GrowthBounds,
        *,
        hostname: str,
        clock: Clock,
        profiles: NodeProfiles | None = None,
    ) -> None:
        """``profiles``: ``None``: no memory profiles are made."""
        self._archive = archive
        self._bounds = bounds
        self._waiting = waiting
        self._budget = budget
        self._profiles = profiles
        self._work = EvidenceWork(archive, waiting, attempts, None if profiles is None else profiles.waiting)
        self._hostname = hostname
        self._clock = clock
        self._skips = SkipCounts(_log)
        self._slips = FewLines(_log)
        """The thread's."""
        self._finder = EvidenceFinder(self._skips)
        self.is_searched_apart = False
        """Whether another thread calls ``search``; else ``look`` does."""
        self._folders: Mapping[ProcessId, RankFolder] = {}
        self._found: queue.SimpleQueue[FoundFiles] = queue.SimpleQueue()
        self._again: queue.SimpleQueue[FoundFiles] = queue.SimpleQueue()
        """Files that were found and could not be taken yet."""
        self._readings = RankReadings()
        self._views: dict[ProcessId, RankView] = {}
        """Each rank's last view: one that has ended may have none any more."""
        self._gpus: Mapping[DeviceUuid, GpuView] = {}
        self._tasks: queue.SimpleQueue[_Task | RankAsk | _Forget | None] = queue.SimpleQueue()
        self._refusals: queue.SimpleQueue[_Refusal] = queue.SimpleQueue()
        """From other threads, to be counted by the next round."""
        self._taken_before: queue.SimpleQueue[Tenant] = queue.SimpleQueue()
        """Whose budget was charged for a piece that an agent before took."""
        self._free: dict[tuple[ProcessId, bool], None] = {}
        """The thread's: of which files a piece of before was free."""
        self._idle = threading.Condition()
        self._under_way = 0
        self._closed = False
        self._health: SourceHealth | None = None
        self._wanted: frozenset[str] | None = None
        self._forgotten: Sequence[Forgotten] = ()
        """As last heard; the thread deletes it at once, and again when it tidies up."""
        self._wanted_before: frozenset[str] | None = None
        """The last known ``_wanted``; ``None``: none since this agent began."""
        self._thread: threading.Thread | None = None

    def budgets(self) -> dict[str, Any]:
        """What was used of the hourly limits, as JSON can say it."""
        profiles = None if self._profiles is None else self._profiles.budget.state_dict()
        return {"evidence": self._budget.state_dict(), "profiles": profiles}

    def take_up_budgets(self, state: Mapping[str, Any]) -> None:
        """Go on from an earlier agent's ``budgets``. Raises ``ValueError``, ``KeyError`` or ``TypeError``."""
        self._budget.load_state_dict(state["evidence"])
        if self._profiles is not None and state["profiles"] is not None:
            self._profiles.budget.load_state_dict(state["profiles"])

    def rank_state(self, process: ProcessId) -> dict[str, Any]:
        """What is remembered of a rank beside its files, as JSON can say it."""
        profile = None if self._profiles is None else self._profiles.state_dict(process)
        return {"readings": self._readings.state_dict(process), "profile": profile}

    def take_up_rank(self, process: ProcessId, state: Mapping[str, Any]) -> None:
        """Go on from an earlier agent's ``rank_state``, before the first view of the rank. Raises ``ValueError``,
        ``KeyError`` or ``TypeError``."""
        if state["readings"] is not None:
            self._readings.load_state_dict(process, state["readings"])
        if self._profiles is not None and state["profile"] is not None:
            self._profiles.load_state_dict(process, state["profile"])

    def look(
        self,
        folders: Mapping[ProcessId, RankFolder],
        views: Sequence[RankView],
        gpus: Sequence[GpuView],
        now_s: float,
        sockets: Mapping[ProcessId, ProcessSocket] = NO_SOCKETS,
    ) -> tuple[RankView, ...]:
        """One round: ``folders`` of all ranks that are watched, ``views`` of those that are shown, ``sockets`` of those
        that can be asked. Returns the views with the bounds of their growth that evidence found, and with what their
        last profile did."""
        known = {**self._views, **{view.process: view for view in views}}
        self._views = {process: known[process] for process in folders if process in known}
        self._readings.take(views, gpus, now_s)
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        while not self._taken_before.empty():
            self._budget.give_back(self._taken_before.get())
        while not self._refusals.empty():
            refused = self._refusals.get()
            self._skips.add(f"evidence_{refused.error.reason}", refused.what, str(refused.error), now_s=now_s)
        self._folders = folders
        if not self.is_searched_apart:
            self.search(now_s)
        while not self._found.empty():
            self._take(self._found.get(), now_s)
        bounded = self._bounds.applied(views, folders.keys())
        if self._profiles is None:
            return bounded
        shown, asks = self._profiles.look(bounded, sockets, folders.keys(), now_s)
        for ask in asks:
            self._give(ask)
        return shown

    def search(self, now_s: float) -> None:
        """Open what is new beside the rings of the ranks that were watched at the last ``look``."""
        while not self._again.empty():
            self._finder.look_again(self._again.get())
        for found in self._finder.new_files(self._folders, now_s):
            self._found.put(found)

    def waiting(self) -> tuple[Evidence, ...]:
        """Evidence for the next report."""
        return self._waiting.pieces()

    def profiles_waiting(self) -> tuple[RankProfile, ...]:
        """Memory profiles for the next report."""
        return () if self._profiles is None else self._profiles.waiting.pieces()

    def hear(self, kept: Collection[str], wanted: frozenset[str] | None, profiles_kept: Collection[str] = ()) -> None:
        """Take the coordinator's answer: pieces that it has, and snapshots that must stay (``ReportReply``)."""
        self._waiting.kept(kept)
        if self._profiles is not None:
            self._profiles.waiting.kept(profiles_kept)
        self._wanted = wanted
        if wanted is not None:
            self._wanted_before = wanted
        self._have_thread()

    def hear_of_order(self, order: Order) -> str | None:
        """The coordinator asks a rank of this node for something. Returns why the rank is not to be asked: it would
        record in vain."""
        if self._profiles is None:
            return None
        view = self._views.get(order.process)
        why_not = self._profiles.hear_of_order(order, view, self._clock.monotonic_ns() / 1e9)
        if why_not is not None:
            what = f"a memory profile of pid {order.process.pid}"
            self._refusals.put(_Refusal(what, UnsafeFileError("too_many", why_not)))
        return why_not

    def hear_of_bounds(self, bounds: Iterable[PeerBound]) -> None:
        """Take the coordinator's current list of bounds that peers lend to ranks of this node."""
        self._bounds.borrow(bounds)

    def hear_of_forgotten(self, forgotten: Sequence[Forgotten]) -> None:
        """Take the coordinator's list of persons whose snapshots are to be deleted."""
        if tuple(forgotten) != tuple(self._forgotten):
            self._forgotten = forgotten
            self._give(_Forget())

    def health(self) -> SourceHealth | None:
        """The result of the last piece; ``None`` before the first. An internal error and a snapshot that could not be
        stored are failures; a refused file is none."""
        return self._health

    def refusals(self) -> Mapping[str, int]:
        """Files refused so far, by reason."""
        return self._skips.snapshot()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until all that was taken is done; whether it is."""
        with self._idle:
            return self._idle.wait_for(lambda: self._under_way == 0, timeout_s)

    def close(self) -> None:
        """Take nothing more; wait for what is being worked on, but not for ever."""
        self._closed = True
        self._tasks.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_WAITS_S)

    def _take(self, found: FoundFiles, now_s: float) -> None:
        view = self._views.get(found.process)
        if view is None and found.at.ended:
            found.close()  # nobody will ever know whose it was
        elif view is None or self._under_way >= MAX_QUEUED or not self._has_room(found, view):
            self._again.put(found)
        elif not self._may_read(found, tenant := view.tenant, now_s):
            found.close()
            why = f"the ranks of {tenant} have written more than is read within an hour"
            self._refuse(found, UnsafeFileError("too_many", why))
        else:
            gpu = None if view.uuid is None else self._gpus.get(view.uuid)
            others = None if gpu is None else gpu.bytes_beside(view.process.pid)
            jobs = None if gpu is None or others is None else other_jobs_bytes(view, gpu, self._views.values())
            readings = self._readings.of(found.process)
            node = NodeFacts(view, self._hostname, readings, self._clock.unix_s(), others, jobs)
            self._give(_Task(found, node))

    def _may_read(self, found: FoundFiles, tenant: Tenant, now_s: float) -> bool:
        if found.recording is not None and self._profiles is not None:
            return self._profiles.budget.can_read(tenant, now_s)
        return self._budget.take(tenant, now_s)

    def _has_room(self, found: FoundFiles, view: RankView) -> bool:
        profiles = None if found.recording is None else self._profiles
        waiting = self._waiting if profiles is None else profiles.waiting
        return waiting.has_room(tenant_of(job_of(view)))

    def _give(self, task: _Task | RankAsk | _Forget) -> None:
        with self._idle:
            self._under_way += 1
        self._tasks.put(task)
        self._have_thread()

    def _have_thread(self) -> None:
        with self._idle:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="tidegauge-evidence", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        tidy_at_s = time.monotonic()
        while True:
            try:
                task = self._tasks.get(timeout=max(0.0, tidy_at_s - time.monotonic()))
            except queue.Empty:
                tidy_at_s = time.monotonic() + TIDY_EVERY_S
                self._tidy()
                continue
            if task is None:
                return
            try:
                self._do(task)
            finally:
                with self._idle:
                    self._under_way -= 1
                    self._idle.notify_all()

    def _do(self, task: _Task | RankAsk | _Forget) -> None:
        if isinstance(task, _Forget):
            self._forget()
        elif isinstance(task, _Task):
            try:
                self._process(task)
            finally:
                task.found.close()
        elif self._profiles is not None:
            try:
                self._profiles.ask(task)
            except Exception as error:
                text, pid, now_s = "pid %d could not be asked for a profile", task.process.pid, time.monotonic()
                self._slips.say(logging.ERROR, text, pid, now_s=now_s, exc_info=error)

    def _process(self, task: _Task) -> None:
        began_ns, began_cpu_s, name = self._clock.monotonic_ns(), cpu_s(), _name(task.found)
        success, is_free = True, False
        try:
            done = self._work.do(task.found, task.node, now_s=began_ns / 1e9, protected=self._protected)
            if done is not None:
                for refused in done.refused:
                    self._refusals.put(_Refusal(name, refused))
                self._learn(done.piece, task.node)
                success = self._archive.works
            else:
                is_free = self._is_of_before(task.found)
        except UnsafeFileError as error:
            self._refuse(task.found, error)
        except OSError as error:
            self._refuse(task.found, UnsafeFileError("unreadable", str(error)))
        except Exception as error:
            text, pid = "evidence of pid %d could not be processed", task.found.process.pid
            self._slips.say(logging.ERROR, text, pid, now_s=began_ns / 1e9, exc_info=error)
            success = False
        tenant = task.node.view.tenant
        if task.found.recording is None:
            if is_free:
                self._taken_before.put(tenant)
        elif self._profiles is not None and not is_free:
            self._profiles.budget.spend(tenant, cpu_s() - began_cpu_s, began_ns / 1e9)
        self._health = SourceHealth(success, (self._clock.monotonic_ns() - began_ns) / 1e9)

    def _is_of_before(self, found: FoundFiles) -> bool:
        """Whether a file that was taken before lay there when this agent began to watch its process, as after a
        restart: that costs the process's user nothing. Once for each of a process's files: one that is written again
        and again under an old name is read again and again."""
        key = found.process, found.recording is not None
        if key in self._free:
            return False
        self._free[key] = None
        while len(self._free) > MAX_FREE:
            del self._free[next(iter(self._free))]
        return True

    def _refuse(self, found: FoundFiles, error: UnsafeFileError) -> None:
        self._refusals.put(_Refusal(_name(found), error))
        if found.recording is not None and self._profiles is not None:
            self._profiles.lost(found.process, str(error))

    def _learn(self, piece: Evidence | RankProfile, node: NodeFacts) -> None:
        if isinstance(piece, Evidence):
            self._bounds.learn(piece)
            self._waiting.add(piece)
        elif self._profiles is not None:
            self._profiles.learn(piece, node.view)

    @property
    def _protected(self) -> frozenset[str]:
        """Keys of snapshots that must stay; before the coordinator's first answer all of them."""
        return self._archive.keys() if self._wanted_before is None else self._wanted_before

    def _forget(self) -> None:
        try:
            self._archive.forget(self._forgotten)
        except SnapshotStoreError as error:
            _log.warning("snapshots of a user who is forgotten are not deleted yet: %s", error)
        except Exception:
            _log.exception("snapshots of a user who is forgotten could not be deleted")

    def _tidy(self) -> None:
        self._forget()
        try:
            profiles = frozenset() if self._profiles is None else self._profiles.waiting.snapshot_keys()
            self._archive.tidy(
                now_unix_s=self._clock.unix_s(),
                wanted=self._wanted,
                protected=self._protected | self._waiting.snapshot_keys() | profiles,
            )
        except Exception:
            _log.exception("old snapshots could not be checked")


def _name(found: FoundFiles) -> str:
    return f"{found.at.folder}/{found.first.name}"


def open_evidence_collector(
    settings: Settings, *, hostname: str, clock: Clock, profiles: NodeProfiles | None = None
) -> EvidenceCollector:
    """Open the collector; ``profiles`` are opened too, if they are not given. An unusable store costs the stored
    snapshots, not the evidence, and is logged once, here."""
    store, problem = None, ""
    try:
        store = open_store(settings, hostname=hostname)
    except SnapshotStoreError as error:
        problem = str(error)
        _log.error("snapshots are not kept (setting snapshot_store): %s", problem)
    budget = EvidenceBudget()
    keeping = Keeping(settings.keep_snapshots_s, int(settings.keep_snapshots_gib * _GIB))
    folder = settings.state_dir / EVIDENCE_FOLDER
    steady = SteadyClock(folder / CLOCK_FILE)
    archive = SnapshotArchive(
        store, keeping, budget, cluster=settings.cluster, problem=problem, steady_unix_s=steady.unix_s
    )  # fmt: skip
    return EvidenceCollector(
        archive,
        WaitingEvidence(folder),
        EvidenceAttempts(folder),
        budget,
        GrowthBounds(folder),
        hostname=hostname,
        clock=clock,
        profiles=profiles or open_node_profiles(settings.state_dir),
    )
