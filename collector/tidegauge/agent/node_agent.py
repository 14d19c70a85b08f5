"""The node agent: ``poll`` updates this node's knowledge of its ranks, ``view`` hands it out."""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tidegauge.agent.agent_state import AgentState
from tidegauge.agent.attribution import AttributionSources
from tidegauge.agent.container_run_dirs.discovery import Containers
from tidegauge.agent.evidence.collector import EvidenceCollector, open_evidence_collector
from tidegauge.agent.kubernetes.pod_resources import open_pod_resources
from tidegauge.agent.kubernetes.pods import NamespacesOfPods, PodBook
from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.opening.port import Opener
from tidegauge.agent.opening.remote import open_opener
from tidegauge.agent.orders import Sockets, carry_out
from tidegauge.agent.ports import (
    Clock,
    DetectorFactory,
    GpuReading,
    GpuSource,
    HolderSource,
    NoHolders,
    NoSteps,
    ProcSource,
    RecordSource,
    StepSource,
    SystemClock,
    has_ended,
)
from tidegauge.agent.processes.gpu_children import GpuChildren
from tidegauge.agent.processes.host_memory import HostMemorySource, NoHostMemory, open_host_memory
from tidegauge.agent.processes.procfs import ProcFs, in_initial_pid_namespace
from tidegauge.agent.ranks.watches import WatchedRanks
from tidegauge.agent.rings.discovery import RingFinder
from tidegauge.agent.rings.launches import Launches
from tidegauge.agent.rings.new_rings import MAX_RANKS, MAX_RINGS_S, RingSearch, Wanted
from tidegauge.agent.run_dirs.folders import HostRunDir, RunDir, watched_run_dirs
from tidegauge.agent.run_dirs.presence import RunDirMarks
from tidegauge.agent.search_thread import NodeSearch
from tidegauge.agent.slurm.node import open_slurm
from tidegauge.agent.slurm.records import SlurmRecords
from tidegauge.agent.source_health import SkipCounts, SourceHealths
from tidegauge.agent.tenant_time import TenantTime
from tidegauge.core.detector import RankDetector
from tidegauge.core.detector.unheld import MemoryInUse, UnheldMemory, UnheldMemoryWatch
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.kubernetes import PodFacts
from tidegauge.core.jobs.rank_groups import NameOfGroup
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.orders import GONE, Order, OrderResult, OrderTo
from tidegauge.core.peer_bounds import PeerBound
from tidegauge.core.persons.forgotten import Forgotten
from tidegauge.core.views import GpuView, NodeSummary, NodeView, RankView
from tidegauge.osproc.processes import is_alive
from tidegauge.rate_limited_log import FewLines

if TYPE_CHECKING:  # it needs pydantic, and `tidegauge run` judges without
    from tidegauge.settings import Settings

_log = logging.getLogger(__name__)

OPEN_FILES = 8 * MAX_RANKS
"""Descriptors that an agent asks for: rings and statm of all its ranks, and as many again for everything else."""


STALE_AFTER_S = 7.0
"""Two polls of a quiet node, and time for one to be late."""
STALE_POLLS = 5
"""The same in polls, where the setting makes these rarer than a second."""
MIN_SEARCH_PERIOD_S = 1.0
"""Between two searches for what is new. One costs a third of what a poll of eight ranks does."""


class StaleViewError(Exception):
    """No poll has completed for the time in the message."""


_COUNTS = (
    "records_lost", "records_refused", "detector_points",
    "rings_skipped", "claims_overruled", "series_dropped", "poll_deferred",
)  # fmt: skip
"""Counters of a ``NodeView``: numbers, or numbers by reason."""


def counts_of(view: NodeView) -> dict[str, Any]:
    return {name: getattr(view, name) for name in _COUNTS}


class EarlierCounts:
    """The counters of the node's earlier agents, which those of this one go on from."""

    def __init__(self, counts: Mapping[str, Any]) -> None:
        self._counts = {name: counts[name] for name in _COUNTS if name in counts}

    def with_earlier(self, view: NodeView) -> NodeView:
        if not self._counts:
            return view
        return replace(view, **{name: _sum(getattr(view, name), before) for name, before in self._counts.items()})


def _sum(now: Any, before: Any) -> Any:
    if isinstance(before, int):
        return now + before
    return {reason: now.get(reason, 0) + before.get(reason, 0) for reason in {**before, **now}}


class PollSettings(Protocol):
    """The settings (``tidegauge.settings.Settings``) that polls need."""

    @property
    def cluster(self) -> str: ...

    @property
    def linger_s(self) -> float: ...

    @property
    def poll_period_s(self) -> float: ...


class NodeAgent:
    """Finds and reads rings, queries NVML and /proc, judges its ranks. Uses no Ray and no HTTP, and has no
    threads but those of ``steps``, ``holders``, ``evidence``, ``host_memory``, ``state`` and ``start_searching``.

    One thread calls ``poll``; any thread may call ``view`` and ``summary``.
    """

    def __init__(
        self,
        settings: PollSettings,
        *,
        hostname: str,
        gpus: GpuSource | None,
        procs: ProcSource,
        clock: Clock,
        run_dirs: Sequence[Path],
        steps: StepSource | None = None,
        records: RecordSource | None = None,
        containers: Containers | None = None,
        pods: PodBook | None = None,
        namespaces: NamespacesOfPods | None = None,
        holders: HolderSource | None = None,
        evidence: EvidenceCollector | None = None,
        host_memory: HostMemorySource | None = None,
        search_procs: ProcSource | None = None,
        max_s_for_rings: float = MAX_RINGS_S,
        time_to_read: TenantTime | None = None,
        detector_factory: DetectorFactory = RankDetector,
        wanted: Wanted | None = None,
        marks: RunDirMarks | None = None,
        state: AgentState | None = None,
        opener: Opener = LOCAL,
    ) -> None:
        """``steps``: this node's slurmd. ``records``: the prolog's, by default below ``run_dirs``. ``containers``: the
        node's, which have rings as well. ``pods``: the head's answers about pods, ``None``: Kubernetes is
        disabled. ``namespaces``: of pods, for limits. ``holders``: this node's kubelet. ``evidence``: ``None``: none is
        collected. ``host_memory``: of the ranks' process trees; without it only their own processes count.
        ``search_procs``: for the thread of ``start_searching``, by default ``procs``. ``max_s_for_rings``: processor
        time for the new rings of each tenant in one look; ``time_to_read``: for all rings of each in one poll.
        ``wanted``: which ranks are watched; without it all. ``marks`` tell ``tidegauge run`` that somebody judges.
        ``state``: of an earlier agent on this node, to go on from; ``None``: begin anew, and keep nothing. ``opener``
        has the rights over other users' files."""
        self._settings = settings
        self._hostname = hostname
        self._gpus = gpus
        self._procs = procs
        self._clock = clock
        self._steps = steps or NoSteps()
        self._pods = pods
        self._holders = holders or NoHolders()
        self._evidence = evidence
        self._host_memory = host_memory or NoHostMemory()
        self._children = GpuChildren(procs)
        self._unheld = UnheldMemoryWatch()
        self._skips = SkipCounts(_log)
        self._own_run_dirs = tuple(HostRunDir(path, opener) for path in run_dirs)
        self._containers = containers
        namespaces = namespaces or NamespacesOfPods()
        self._whose = namespaces.whose
        search_procs = search_procs or procs
        time_for_rings = TenantTime(self._whose, max_cpu_s=max_s_for_rings)
        rings = RingSearch(
            RingFinder(self._run_dirs, self._skips, time_for_rings),
            search_procs,
            namespaces,
            linger_s=settings.linger_s,
            watched=lambda: self._watches.by_tenant,
            time=time_for_rings,
            wanted=wanted,
        )
        self._launches = Launches(self._run_dirs, search_procs, linger_s=settings.linger_s, whose=self._whose)
        elsewhere = None if opener is LOCAL else opener
        self._search = NodeSearch(rings, self._launches, containers, evidence, self._skips, clock, elsewhere)
        self._watches = WatchedRanks(
            self._search,
            procs,
            AttributionSources(self._steps, records or SlurmRecords(run_dirs), pods, self._holders),
            hostname=hostname,
            linger_s=settings.linger_s,
            detector_factory=detector_factory,
            host_memory=self._host_memory,
            namespaces=namespaces,
            time=time_to_read,
            kept=self._kept_of,
        )
        self._state = state
        self._lines = FewLines(_log)
        self._counted = EarlierCounts({})
        if state is not None:
            self._take_up(state.node())
        self._marks = marks or RunDirMarks(())
        self._polling = threading.Lock()
        self._closed = False
        self._poll_failures = 0
        self._may_report = False
        self._sources = SourceHealths(clock)
        self._view = NodeView(hostname=hostname, cluster=settings.cluster, now_unix_s=clock.unix_s())
        self._viewed_ns = clock.monotonic_ns()
        self._sockets: Sockets = {}
        self._tenants: Mapping[ProcessId, Tenant] = {}
        """Of ranks."""

    def start_searching(self, *, on_found: Callable[[], None] = lambda: None) -> None:
        """Search apart from the polls from now on, so that they never wait for anybody's files. Without this call
        each poll searches first. ``on_found`` is called in the search thread after it found a ring."""
        self._search.start(max(MIN_SEARCH_PERIOD_S, self._settings.poll_period_s), on_found=on_found)

    def may_report(self) -> bool:
        """Whether the ranks that were there before this agent are in its view, as far as that is waited for."""
        return self._may_report

    def poll(self) -> None:
        """One round of reading and judging. Never raises: what fails shows in ``view().collect_success``."""
        with self._polling:
            if self._closed:
                return
            try:
                view = self._counted.with_earlier(self._round())
                self._keep_state(view)
                self._view = view
                self._viewed_ns = self._clock.monotonic_ns()
                self._poll_failures = 0
            except Exception:
                self._poll_failures += 1
                if self._poll_failures == 1:
                    _log.exception("a poll failed; keeping the last figures")

    def search_now(self) -> None:
        """Let the search thread look, unless it has only just done so: the poll is over, and the processor's caches are
        warm. Without this call it looks a little later."""
        self._search.look_soon()

    def view(self) -> NodeView:
        """The last complete round."""
        return self._view

    def fresh_view(self) -> NodeView:
        """``view``, if it is recent. Raises ``StaleViewError`` when polls hang, fail, or have only just gone on: the
        process was stopped, or the driver did not return."""
        age_s = (self._clock.monotonic_ns() - self._viewed_ns) / 1e9
        if age_s > max(STALE_AFTER_S, STALE_POLLS * self._settings.poll_period_s):
            raise StaleViewError(f"no poll has finished for {age_s:.0f} s")
        return self._view

    def summary(self, *, node_id: str, incarnation: str, metrics_address: str | None) -> NodeSummary:
        """The last complete round in short, for the coordinator."""
        view = self._view
        return NodeSummary(
            node_id=node_id,
            hostname=view.hostname,
            agent_pid=os.getpid(),
            incarnation=incarnation,
            metrics_address=metrics_address,
            sent_unix_s=self._clock.unix_s(),
            ranks=tuple(rank.summary() for rank in view.ranks),
            gpus=view.gpus,
            launches=view.launches,
            ended_launches=view.ended_launches,
            slurm_node=self._steps.pids() is not None,
            evidence=() if self._evidence is None else self._evidence.waiting(),
            profiles=() if self._evidence is None else self._evidence.profiles_waiting(),
            pods_wanted=() if self._pods is None else self._pods.wanted(),
            sent_mono_s=self._clock.monotonic_ns() / 1e9,
            opener_answers=view.collect_success.get("opener"),
        )

    def hear_of_pods(self, pods: Iterable[PodFacts]) -> None:
        """The coordinator's answer to ``NodeSummary.pods_wanted``."""
        if self._pods is not None:
            self._pods.hear(pods)

    def hear_of_evidence(
        self, kept: Collection[str], wanted: frozenset[str] | None, profiles_kept: Collection[str] = ()
    ) -> None:
        """The coordinator's answer to ``NodeSummary.evidence`` and ``profiles``, and which snapshots must stay
        (``ReportReply``)."""
        if self._evidence is not None:
            self._evidence.hear(kept, wanted, profiles_kept)

    def hear_of_forgotten(self, forgotten: Sequence[Forgotten]) -> None:
        """Take the persons whose snapshots are to be deleted (``ReportReply.forgotten``)."""
        if self._evidence is not None:
            self._evidence.hear_of_forgotten(forgotten)

    def hear_of_bounds(self, bounds: Iterable[PeerBound]) -> None:
        """Take the growth bounds that peers lend to this node's ranks (``ReportReply.peer_bounds``)."""
        if self._evidence is not None:
            self._evidence.hear_of_bounds(bounds)

    def hear_of_groups(self, names: Iterable[NameOfGroup]) -> None:
        """Take the names of the groups of this node's ranks (``ReportReply.group_names``)."""
        self._watches.hear_of_groups(names)

    def carry_out(self, order: Order) -> OrderResult:
        """Ask a process that the last round found. Blocks for up to ``order.timeout_s``; not for the polling thread."""
        why_not = None if self._evidence is None else self._evidence.hear_of_order(order)
        if why_not is not None:
            return OrderResult(order.order_id, error=why_not)
        result = carry_out(order, self._sockets)
        if result.error is not None and has_ended(self._procs, order.process):
            return replace(result, kind=GONE)
        return result

    def tenant_of(self, order: Order) -> Tenant:
        """The tenant of the process that an order is for, as far as the last round found it."""
        of_rank = self._tenants.get(order.process)
        to = self._sockets.get((order.to, order.process))
        return of_rank or (Tenant(order.uid) if to is None else self._whose(to.folder.tenant))

    def close(self) -> None:
        """Release files and driver. A poll that is under way ends first; later ones do nothing."""
        with self._polling:
            if not self._closed:
                self._closed = True
                self._keep_all()
                self._marks.close()
                self._watches.close()
                self._search.close()
                self._steps.close()
                self._holders.close()
                self._host_memory.close()
                if self._evidence is not None:
                    self._evidence.close()
                if self._gpus is not None:
                    self._gpus.close()

    def _take_up(self, kept: Mapping[str, Any]) -> None:
        if not kept:
            return
        try:
            self._counted = EarlierCounts(kept["counts"])
            if self._evidence is not None and kept["budgets"] is not None:
                self._evidence.take_up_budgets(kept["budgets"])
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("what was kept of this node cannot be used: %s", error)

    def _kept_of(self, process: ProcessId) -> Mapping[str, Any] | None:
        """What was kept of a rank that was found just now."""
        kept = None if self._state is None else self._state.rank(process)
        if kept is None:
            return None
        try:
            if self._evidence is not None and kept["evidence"] is not None:
                self._evidence.take_up_rank(process, kept["evidence"])
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("the kept readings of pid %d cannot be used: %s", process.pid, error)
        return kept

    def _state_of(
        self, states: Mapping[ProcessId, Callable[[], Mapping[str, Any]]]
    ) -> Callable[[ProcessId], Mapping[str, Any]]:
        evidence = self._evidence

        def of(process: ProcessId) -> Mapping[str, Any]:
            return {**states[process](), "evidence": None if evidence is None else evidence.rank_state(process)}

        return of

    def _keep_state(self, view: NodeView) -> None:
        """Let the next agent know what this one knows. Before anybody is told of ``view``'s counters, they are on their
        way to the disk. Never raises."""
        if self._state is None:
            return
        now_s = self._clock.monotonic_ns() / 1e9
        try:
            budgets = None if self._evidence is None else self._evidence.budgets()
            self._state.keep_node({"counts": counts_of(view), "budgets": budgets})
            states = self._watches.states()
            self._state.keep_ranks(states, self._state_of(states), now_s)
        except Exception as error:
            text = "the agent's state could not be kept; a restarted agent may not know all of it"
            self._lines.say(logging.ERROR, text, now_s=now_s, exc_info=error)

    def _keep_all(self) -> None:
        if self._state is None:
            return
        states = self._watches.states()
        try:
            self._state.close(states, self._state_of(states), self._clock.monotonic_ns() / 1e9)
        except Exception:
            _log.exception("the agent's state could not be kept at its end")

    def _run_dirs(self) -> Sequence[RunDir]:
        inside = () if self._containers is None else self._containers.run_dirs
        return (*self._own_run_dirs, *inside)

    def _round(self) -> NodeView:
        if self._search.is_apart:
            return self._read_all()
        with self._search.under_way():
            return self._read_all()

    def _read_all(self) -> NodeView:
        now_s = self._clock.monotonic_ns() / 1e9
        self._marks.hold(now_s)
        if not self._search.is_apart:
            self._search.look()
        # Before the ranks: a restart that comes in between must not make ranks of the last attempt look like the next.
        self._launches.hold()
        with self._sources.measured("proc"):
            self._watches.look_after_processes(now_s)
        gpus, gpus_mono_ns = self._read_gpus()
        self._search.hear_of_gpus(frozenset(pid for gpu in gpus for pid in gpu.process_bytes or ()))
        # Before what was found is taken. Rings that an opener refused a moment ago are tried again only later: who was
        # watched before this agent and lives is waited for as well.
        if not self._may_report:
            hidden = () if self._state is None else self._state.unclaimed()
            is_complete = self._search.has_found_all and not any(map(is_alive, hidden))
            self._may_report = is_complete or self._search.has_waited
        with self._sources.measured("rings"):
            self._watches.take(self._search.found(), now_s)
            self._watches.read(gpus, gpus_mono_ns=gpus_mono_ns, now_s=now_s)
        watches = self._watches
        if self._pods is not None:
            self._pods.keep(watches.pod_uids())
        sockets = watches.sockets()
        self._sockets = {
            **{(OrderTo.RANK, process): where for process, where in sockets.items()},
            **{(OrderTo.LAUNCH, process): where for process, where in self._launches.sockets().items()},
        }
        self._tenants = watches.tenants()
        now_unix_s = self._clock.unix_s()
        ranks = self._launches.named(watches.views(now_s=now_s, now_unix_s=now_unix_s))
        with suppress(OSError):  # look_after_processes has logged it
            self._children.look(gpus, {rank.process.pid: rank.process for rank in ranks if rank.alive}, now_s)
        self._host_memory.watch(_heads_of_trees(ranks))
        ranks = self._children.named(ranks, gpus)
        ours = watches.living_pids() | self._children.pids
        gone = self._listed_and_gone(gpus, ours)
        unheld = self._unheld.look(_memory_in_use(gpus, gone), now_s)
        gpu_views = tuple(_gpu_view(gpu, ours, gone, unheld.get(gpu.uuid)) for gpu in gpus)
        if self._evidence is not None:
            ranks = self._evidence.look(watches.folders(), ranks, gpu_views, now_s, sockets)
        self._hear_of_others()
        success, duration_s = self._sources.success, self._sources.duration_s
        searched, searched_s = self._search.success, self._search.duration_s
        return NodeView(
            hostname=self._hostname,
            cluster=self._settings.cluster,
            now_unix_s=now_unix_s,
            ranks=ranks,
            gpus=gpu_views,
            # What is new is found before it is read: rings fail where either does.
            collect_success={**searched, **success, "rings": searched.get("rings", True) and success["rings"]},
            collect_duration_s={
                **searched_s,
                **duration_s,
                "rings": searched_s.get("rings", 0.0) + duration_s["rings"],
            },
            rings_skipped={**self._skips.snapshot(), **({} if self._evidence is None else self._evidence.refusals())},
            records_lost=watches.lost_records,
            records_refused=watches.refused_records,
            detector_points=watches.detector_points,
            claims_overruled=dict(watches.overruled),
            series_dropped=dict(watches.dropped),
            poll_deferred={**self._search.deferred, "records": watches.deferred_records},
            launches=self._launches.summaries,
            ended_launches=self._launches.ended,
            memory=self._host_memory.node(),
        )

    def _read_gpus(self) -> tuple[tuple[GpuReading, ...], int]:
        """The GPUs and the moment (CLOCK_MONOTONIC) at which they were read; none if NVML fails or is not there."""
        if self._gpus is None:
            return (), self._clock.monotonic_ns()
        before_ns = self._clock.monotonic_ns()
        readings: tuple[GpuReading, ...] = ()
        with self._sources.measured("nvml"):
            readings = self._gpus.read()
        return readings, (before_ns + self._clock.monotonic_ns()) // 2

    def _listed_and_gone(self, gpus: Sequence[GpuReading], ours: frozenset[int]) -> frozenset[int]:
        """Pids of processes that have ended although NVML lists them, on GPUs whose processes can be seen. ``ours``:
        pids that live."""

        def is_gone(pid: int) -> bool:
            try:
                return self._procs.is_gone(pid)
            except OSError:  # look_after_processes has logged it
                return False

        seen = [gpu for gpu in gpus if gpu.further_pids is not None]
        listed = {pid for gpu in seen for pid in (*(gpu.process_bytes or ()), *(gpu.further_pids or ()))}
        return frozenset(filter(is_gone, listed - ours))

    def _hear_of_others(self) -> None:
        """Note the health of sources with threads of their own: slurmd, kubelet, host memory and evidence."""
        evidence = None if self._evidence is None else self._evidence.health()
        others = (
            ("slurm", self._steps.health()),
            ("pod_resources", self._holders.health()),
            ("host_memory", self._host_memory.health()),
            ("evidence", evidence),
        )
        for source, health in others:
            if health is not None:
                self._sources.success[source] = health.success
                self._sources.duration_s[source] = health.duration_s


def _heads_of_trees(ranks: Sequence[RankView]) -> frozenset[ProcessId]:
    """The ranks whose process trees are measured: without workers that touched CUDA, which write a ring under their
    parent's name and end no step."""
    trains = {rank.key for rank in ranks if rank.steps > 0}
    return frozenset(rank.process for rank in ranks if rank.alive and (rank.steps > 0 or rank.key not in trains))


def _memory_in_use(gpus: Iterable[GpuReading], gone: frozenset[int]) -> Iterator[MemoryInUse]:
    """Of the GPUs of which everybody who may hold memory is known."""
    for gpu in gpus:
        if None in (gpu.used_bytes, gpu.reserve_bytes, gpu.process_bytes, gpu.further_pids):
            continue
        assert gpu.used_bytes is not None
        living = {pid: size for pid, size in (gpu.process_bytes or {}).items() if pid not in gone}
        has_processes = bool(living) or not gone.issuperset(gpu.further_pids or ())
        yield MemoryInUse(gpu.uuid, gpu.used_bytes, sum(filter(None, living.values())), has_processes)


def _gpu_view(gpu: GpuReading, our_pids: frozenset[int], gone: frozenset[int], unheld: UnheldMemory | None) -> GpuView:
    # What is told as nobody's is not told as another's: each byte counts once.
    not_others = our_pids if unheld is None else our_pids | gone
    return GpuView(
        uuid=gpu.uuid,
        gpu=gpu.gpu,
        name=gpu.name,
        total_bytes=gpu.total_bytes,
        used_bytes=gpu.used_bytes,
        other_processes_bytes=unwatched_bytes(gpu, not_others),
        usable_bytes=gpu.usable_bytes,
        process_bytes=gpu.process_bytes,
        unheld_bytes=None if unheld is None else unheld.size_bytes,
        unheld_for_s=None if unheld is None else unheld.for_s,
    )


def unwatched_bytes(gpu: GpuReading, our_pids: frozenset[int]) -> int | None:
    """Bytes on ``gpu`` of processes that are neither watched ranks nor their children; ``None`` where the driver does
    not give them."""
    if gpu.process_bytes is None:
        return None
    used = [size for pid, size in gpu.process_bytes.items() if pid not in our_pids]
    return None if None in used else sum(size for size in used if size is not None)


def _allow_open_files() -> None:
    """Raise the limit of open files: every rank takes two, and a shell gives a process 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES:  # RLIM_INFINITY is -1
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES if hard < 0 else min(OPEN_FILES, hard), hard))


def open_node_agent(
    settings: Settings, environ: Mapping[str, str] = os.environ, *, state: AgentState | None = None
) -> NodeAgent:
    """The agent of this machine: NVML, slurmd and kubelet where there are any, /proc, and the run directories.
    ``state``: for the one agent of the node's service."""
    from tidegauge.agent.nvml import open_nvml  # not in a base install, whose `tidegauge run` judges all the same

    run_dirs = watched_run_dirs(settings, environ)
    _allow_open_files()
    is_hosts = in_initial_pid_namespace()
    gpus = open_nvml(sees_all=is_hosts)
    if gpus is not None and not is_hosts:
        _log.warning(
            "not in the host's pid namespace: pids from NVML may not match, and other users' ranks may be invisible"
        )
    opener = open_opener(settings.opener_socket, run_dirs)
    procs, clock, namespaces = ProcFs(opener=opener), SystemClock(), NamespacesOfPods()
    hostname = settings.hostname or socket.gethostname()
    steps = open_slurm(settings, procs, environ)
    return NodeAgent(
        settings,
        hostname=hostname,
        gpus=gpus,
        procs=procs,
        search_procs=ProcFs(opener=opener),
        clock=clock,
        run_dirs=run_dirs,
        steps=steps,
        containers=Containers(run_dirs, candidates=steps.pids, whose=namespaces.whose, opener=opener),
        pods=None if settings.kubernetes == "off" else PodBook(),
        namespaces=namespaces,
        holders=open_pod_resources(settings, opener),
        evidence=open_evidence_collector(settings, hostname=hostname, clock=clock),
        host_memory=open_host_memory(procs),
        marks=RunDirMarks(run_dirs),
        state=state,
        opener=opener,
    )
