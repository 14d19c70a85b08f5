"""Watches the node's ranks from the first sight of a ring to its removal: which live, have ended, are shown."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegauge.agent.attribution import AttributionSources, SourceAnswer
from tidegauge.agent.evidence.files import RankFolder
from tidegauge.agent.kubernetes.pods import NamespacesOfPods
from tidegauge.agent.ports import DetectorFactory, GpuReading, ProcessFacts, ProcessUsage, ProcSource
from tidegauge.agent.processes.command_socket import ProcessSocket
from tidegauge.agent.processes.host_memory import HostMemorySource
from tidegauge.agent.ranks.names import NamesOfProcesses
from tidegauge.agent.ranks.rank import RankState
from tidegauge.agent.rings.discovery import RingFile, RingPlace
from tidegauge.agent.rings.new_rings import MAX_RANKS, MAX_RANKS_PER_TENANT, FoundRing
from tidegauge.agent.rings.reader import MAX_RECORDS_PER_READ, RingReader
from tidegauge.agent.search_thread import NodeSearch
from tidegauge.agent.tenant_time import TenantTime
from tidegauge.core.host_memory import HostMemory
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.rank_groups import NameOfGroup, RankGroup, RankGroups
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.ring_layout import LayoutError
from tidegauge.core.run_dirs import socket_name
from tidegauge.core.views import RankView, with_fields
from tidegauge.rate_limited_log import FewLines

# Groups of ranks of the jobs on one node: ranks that were launched together, and each group's name. The node knows only
# its own ranks; the coordinator, which sees the whole job, decides the names.

_Job = tuple[str, int]


class GroupsOfNode:
    """Names the groups of the node's ranks. Only ``hear`` is thread-safe."""

    def __init__(self) -> None:
        self._books: dict[_Job, RankGroups] = {}
        self._heard: Mapping[ProcessId, str] = {}
        self._asked: object = None
        self._found: dict[ProcessId, RankGroup] = {}
        self._settled = False
        """The last two looks asked the same, and found the same."""

    def hear(self, names: Iterable[NameOfGroup]) -> None:
        """Take the coordinator's names for the groups of this node's processes (``ReportReply.group_names``)."""
        self._heard = {one.process: one.name for one in names}

    def look(self, views: Sequence[RankView]) -> dict[ProcessId, RankGroup]:
        """The group of each process, under its shown name."""
        heard = self._heard
        asked = (
            heard,
            [(one.identity, one.process, one.uid, one.alive, one.parent, one.slurm, one.pod) for one in views],
        )
        same, self._asked = asked == self._asked, asked
        if same and self._settled:
            return self._found
        found = self._look(views, heard)
        self._settled, self._found = same and found == self._found, found
        return found

    def _look(self, views: Sequence[RankView], heard: Mapping[ProcessId, str]) -> dict[ProcessId, RankGroup]:
        by_job: dict[_Job, list[RankView]] = defaultdict(list)
        for view in views:
            by_job[view.identity.job_id, view.uid].append(view)
        self._books = {job: self._books.get(job) or RankGroups() for job in by_job}
        groups = {}
        for job, members in by_job.items():
            for group in self._books[job].look(view.group_member("", lives=view.alive) for view in members):
                told = {heard[process] for _, process in group.places if process in heard}
                usual = told.pop() if len(told) == 1 else group.name  # that of a rank that is new, too
                for _, process in group.places:
                    name = heard.get(process, usual)
                    groups[process] = group if name == group.name else group._replace(name=name)
        return groups


# Ranks that live and are not shown: each counted once, by reason.

MAX_REMEMBERED = 4096
"""Processes for each reason; beyond that they are forgotten, and counted again."""


class NotShown:
    """Counts living ranks that are not shown, by reason. Not thread-safe."""

    def __init__(self, lines: FewLines) -> None:
        self.counts: Counter[str] = Counter()
        self._lines = lines
        self._known: dict[str, set[ProcessId]] = {}

    def add(self, reason: str, process: ProcessId, *, now_s: float) -> None:
        known = self._known.setdefault(reason, set())
        if process in known:
            return
        if len(known) >= MAX_REMEMBERED:
            known.clear()
        known.add(process)
        self.counts[reason] += 1
        self._lines.say(logging.WARNING, "pid %d is not shown (%s)", process.pid, reason, now_s=now_s)


_log = logging.getLogger(__name__)

MAX_RECORDS_PER_POLL = 8 * MAX_RECORDS_PER_READ
"""Of all ranks: a quarter of a second of work. Eight ranks of 10 ms steps write 400 between two polls."""
MAX_RECORDS_PER_TENANT_AND_POLL = 4 * MAX_RECORDS_PER_READ
"""Of one tenant's ranks; with many tenants each has an equal share of ``MAX_RECORDS_PER_POLL``."""
MAX_POLL_S = 0.3
"""Time for reading rings, shared by all tenants equally."""
MAX_TENANT_POLL_S = 0.15
"""Of that; five hundred ranks at two steps a second take half of it."""
WALL_SHARE = 0.5
"""Of the time that passes, as ``TenantTime`` has it: rings in containers may lie on a disk."""


@dataclass(eq=False)
class _Watch:
    """The ring of a process that lives or has just ended."""

    ring: RingFile
    reader: RingReader
    facts: ProcessFacts
    rank: RankState
    ended_s: float | None = None
    detached_s: float | None = None
    turn: int = 0
    """The poll at which it was read last."""
    read_to_the_end: bool = False
    answer: SourceAnswer = field(default_factory=SourceAnswer)
    """The sources' answer about the job of the process."""
    counted: set[str] = field(default_factory=set)
    """Claims whose overruling is counted already."""

    ancestors: tuple[ProcessId, ...] = ()
    """Those that the process descended from when it was found, its parent first."""
    behind: ProcessId | None = None
    """The one that had its name when both were over: it does not get the name when that one is forgotten."""
    tenant: Tenant = field(init=False)
    """The tenant that it counts to."""

    def __post_init__(self) -> None:
        folder, process = self.ring.place.folder, self.facts.process
        self.socket = ProcessSocket(folder, self.facts.uid, socket_name(self.ring.process), process)
        """Its command socket beside its ring, whose owner the kernel confirmed."""
        self.tenant = self.facts.tenant
        self._beside = RankFolder(folder, self.ring.process, self.tenant, ended=False)

    @property
    def beside(self) -> RankFolder:
        """Its folder for evidence about its own memory."""
        if self._beside[2:] != (self.tenant, self.ended_s is not None):
            self._beside = self._beside._replace(tenant=self.tenant, ended=self.ended_s is not None)
        return self._beside

    def state_dict(self) -> Mapping[str, Any]:
        return {
            "reader": self.reader.position(), "rank": self.rank.state_dict(), "counted": sorted(self.counted),
        }  # fmt: skip

    @property
    def over_s(self) -> float | None:
        """Time of the end, after which nothing more comes; ``None`` for a rank that is watched."""
        return self.ended_s if self.detached_s is None else self.detached_s


class WatchedRanks:
    """All ranks of the node. Not thread-safe."""

    def __init__(
        self,
        rings: NodeSearch,
        procs: ProcSource,
        attribution: AttributionSources,
        *,
        hostname: str,
        linger_s: float,
        detector_factory: DetectorFactory,
        host_memory: HostMemorySource,
        namespaces: NamespacesOfPods,
        time: TenantTime | None = None,
        kept: Callable[[ProcessId], Mapping[str, Any] | None] = lambda _: None,
    ) -> None:
        """``rings``: takes back those that are no longer watched, and waits for no file. ``kept``: the ``state_of`` a
        rank by an earlier agent, or ``None``."""
        self._kept = kept
        self._rings = rings
        self._procs = procs
        self._attribution = attribution
        self._hostname = hostname
        self._linger_s = linger_s
        self._detector_factory = detector_factory
        self._host_memory = host_memory
        self._watches: dict[RingPlace, _Watch] = {}
        self._names = NamesOfProcesses()
        self._namespaces = namespaces
        self._groups = GroupsOfNode()
        self._turn = 0
        self._time = time or TenantTime(wall_share=WALL_SHARE)
        self._lines = FewLines(_log)
        self._not_shown = NotShown(self._lines)
        self.by_tenant: Mapping[Tenant, int] = {}
        """How many ranks each tenant had when ``look_after_processes``, ``take`` or ``views`` was last done."""
        self.deferred_records = 0
        """How often, so far, a ring was not read to its end, or not at all, for the others' sake."""
        self.lost_records = 0
        """Overwritten before they were read, of all ranks so far."""
        self.refused_records = 0
        """Well-formed but impossible, of all ranks so far."""
        self.detector_points = 0
        """Readings that were judged, of all ranks so far."""
        self.overruled: Counter[str] = Counter()
        """Ranks by the claim that slurmd, kernel or driver contradicted."""

    def look_after_processes(self, now_s: float) -> None:
        """Check which ranks live; drop those that ended ``linger_s`` ago, their files included.

        Raises the last ``OSError`` of looking, after all were looked at.
        """
        failure: OSError | None = None
        for place, watch in list(self._watches.items()):
            if watch.ended_s is None:
                watch.rank.host = None
                try:
                    usage = self._procs.usage(watch.facts.process)
                except OSError as error:
                    failure = error
                    continue
                if usage is None:
                    watch.ended_s = now_s
                else:
                    watch.rank.host = self._host_of(watch.facts.process, usage)
            elif now_s - watch.ended_s >= self._linger_s and watch.read_to_the_end:
                del self._watches[place]
                self._rings.remove(watch.ring, now_s)
        self._count_tenants()
        if failure is not None:
            raise failure

    def take(self, found: Iterable[FoundRing], now_s: float) -> None:
        """Watch the ranks whose rings were found."""
        for one in found:
            before = self._watches.pop(one.ring.place, None)
            if before is not None:  # another file has its name now
                self._rings.forget(before.ring)
            process = one.facts.process
            if one.reader is None or not self._has_room(one.tenant):
                self._not_shown.add("ranks", process, now_s=now_s)
                self._rings.set_aside(one.ring)
                continue
            watch = self._watch_of(one, one.reader, now_s)
            try:
                usage = self._procs.usage(process)
            except OSError as error:
                self._rings.give_up(one.ring, error, now_s)
                continue
            watch.rank.host = None if usage is None else self._host_of(process, usage)
            self._watches[one.ring.place] = watch
            self._lines.say(logging.INFO, "watching pid %d of %s", process.pid, one.user_name, now_s=now_s)
        self._count_tenants()

    def _watch_of(self, one: FoundRing, reader: RingReader, now_s: float) -> _Watch:
        """Where an earlier agent was, or else from the beginning of what the ring holds."""

        def begun() -> _Watch:
            rank = RankState(
                one.facts, one.user_name, self._hostname, self._detector_factory, self._names.of(one.facts.process)
            )
            watch = _Watch(one.ring, reader, one.facts, rank, ancestors=one.ancestors)
            watch.tenant = one.tenant
            return watch

        watch, kept = begun(), self._kept(one.facts.process)
        if kept is None:
            return watch
        try:
            watch.rank.load_state_dict(kept["rank"])
            watch.counted = set(kept["counted"])
            reader.go_on_from(kept["reader"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            pid = one.facts.process.pid
            text = "pid %d is judged anew: what was kept of it cannot be used: %s"
            self._lines.say(logging.WARNING, text, pid, error, now_s=now_s)
            return begun()
        return watch

    def states(self) -> dict[ProcessId, Callable[[], Mapping[str, Any]]]:
        """Of each rank that is judged: what another agent needs to go on, as JSON can say it."""
        return {watch.facts.process: watch.state_dict for watch in self._watches.values() if watch.rank.is_judged}

    def _host_of(self, process: ProcessId, usage: ProcessUsage) -> HostMemory | None:
        """Memory of the process tree; of the process alone while that is unknown."""
        own = usage.anonymous_bytes
        return self._host_memory.of(process, own) or (None if own is None else HostMemory(own))

    def _has_room(self, tenant: Tenant) -> bool:
        of_tenant = sum(watch.tenant == tenant for watch in self._watches.values())
        return of_tenant < MAX_RANKS_PER_TENANT and len(self._watches) < MAX_RANKS

    def _count_tenants(self) -> None:
        self.by_tenant = Counter([watch.tenant for watch in self._watches.values()])

    def read(self, gpus: Sequence[GpuReading], *, gpus_mono_ns: int, now_s: float) -> None:
        """Read the new records of every ring and judge them, with NVML's figures of ``gpus_mono_ns``."""
        self._turn += 1
        tenants = {watch.tenant for watch in self._watches.values()}
        share = min(MAX_RECORDS_PER_TENANT_AND_POLL, MAX_RECORDS_PER_POLL // max(len(tenants), 1))
        left = dict.fromkeys(tenants, share)
        self._time.begin(min(MAX_TENANT_POLL_S, MAX_POLL_S / max(len(tenants), 1)))
        for watch in sorted(self._watches.values(), key=lambda watch: watch.turn):  # who had to wait comes first
            if watch.read_to_the_end:
                self._hear(watch, gpus)  # who its pod was may be said when it has ended
                continue
            budget = min(left[watch.tenant], MAX_RECORDS_PER_READ)
            if not self._time.is_left(watch.tenant):
                self.deferred_records += 1
                continue
            try:
                with self._time.spent_by(watch.tenant):
                    seen = self._read_one(watch, gpus, gpus_mono_ns, budget, now_s)
                left[watch.tenant] -= seen
                self.deferred_records += seen == budget
                watch.turn = self._turn - (seen == budget)
            except Exception as error:
                del self._watches[watch.ring.place]
                if isinstance(error, LayoutError) and error.reason == "replaced" and watch.ended_s is None:
                    self._rings.forget(watch.ring)
                else:
                    self._rings.give_up(watch.ring, error, now_s)

    def _read_one(self, watch: _Watch, gpus: Sequence[GpuReading], gpus_mono_ns: int, budget: int, now_s: float) -> int:
        reader, rank = watch.reader, watch.rank
        seen, lost, refused = reader.seen_records, reader.lost_records, reader.refused_records
        identity = reader.identity
        samples = reader.read(budget)
        seen = reader.seen_records - seen
        self.lost_records += reader.lost_records - lost
        self.refused_records += reader.refused_records - refused
        if reader.identity is not None and (reader.identity is not identity or not rank.known):
            rank.claim(reader.identity)
        self._hear(watch, gpus)
        rank.observe(samples, gpus, gpus_mono_ns=gpus_mono_ns)
        self.detector_points += rank.judge()
        watch.read_to_the_end = watch.ended_s is not None and budget > 0 and seen == 0
        if not rank.detached:
            watch.detached_s = None
        elif watch.detached_s is None:
            watch.detached_s = now_s
        self._count_overruled(watch)
        return seen

    def _hear(self, watch: _Watch, gpus: Sequence[GpuReading]) -> None:
        answer = self._attribution.ask(watch.facts, watch.answer, gpus, alive=watch.ended_s is None)
        evidence = self._attribution.evidence(answer, watch.facts) if answer != watch.answer else None
        if evidence is not None:
            watch.answer = answer
            watch.rank.weigh(evidence)
            self._count_overruled(watch)

    def _count_overruled(self, watch: _Watch) -> None:
        if len(watch.rank.overruled) > len(watch.counted):
            self.overruled.update(watch.rank.overruled - watch.counted)
            watch.counted |= watch.rank.overruled

    def views(self, *, now_s: float, now_unix_s: float) -> tuple[RankView, ...]:
        """Every rank that is shown now, in a fixed order, no two of one group with the same name."""
        living = {watch.facts.process for watch in self._watches.values() if watch.over_s is None}
        lingering = {
            watch.facts.process: watch
            for watch in self._watches.values()
            if watch.over_s is None or now_s - watch.over_s < self._linger_s
        }
        shown = [
            view
            for place, watch in list(self._watches.items())
            if watch.facts.process in lingering and (watch.behind is None or watch.behind in lingering)
            if (view := self._view_of(place, watch, living, now_s=now_s, now_unix_s=now_unix_s)) is not None
        ]
        if self._namespaces.learn(shown):
            shown = self._count_anew(shown, now_s)
        groups = self._groups.look(shown)
        named: dict[object, list[RankView]] = {}
        for view in shown:
            group = groups[view.process]
            named.setdefault((group.key, view.key, view.uid), []).append(
                with_fields(view, group=group.name) if group.name else view
            )
        for views in named.values():
            if len(views) > 1:
                self._decide(views, lingering, now_s)
        return tuple(sorted((views[0] for views in named.values()), key=_order))

    def _decide(self, views: list[RankView], watches: Mapping[ProcessId, _Watch], now_s: float) -> None:
        """Sort views of one name: the one that keeps it comes first, and has the others with it."""
        there = {view.process for view in views}
        spans_ns = {process: watches[process].rank.span_ns for process in there}
        last_began_ns = max(began_ns for began_ns, _ in spans_ns.values())
        views.sort(key=lambda view: _precedence(view, there, has_successor=spans_ns[view.process][1] < last_began_ns))
        for view in views:
            watches[view.process].behind = None if views[0].alive or view is views[0] else views[0].process
            if view.alive and view is not views[0]:
                self._not_shown.add("duplicate_rank", view.process, now_s=now_s)
        views[0] = with_fields(views[0], hidden=tuple(views[1:]))

    def _count_anew(self, shown: Sequence[RankView], now_s: float) -> list[RankView]:
        """Count pods whose namespace is known now as one tenant; the views without ranks beyond its limit."""
        ranks: Counter[Tenant] = Counter()
        dropped = set()
        for place, watch in list(self._watches.items()):
            watch.tenant = self._namespaces.whose(watch.facts.tenant)
            ranks[watch.tenant] += 1
            if ranks[watch.tenant] > MAX_RANKS_PER_TENANT:
                self._not_shown.add("ranks", watch.facts.process, now_s=now_s)
                self._rings.set_aside(watch.ring)
                dropped.add(watch.facts.process)
                del self._watches[place]
        return [view for view in shown if view.process not in dropped]

    def _view_of(
        self, place: RingPlace, watch: _Watch, living: Collection[ProcessId], *, now_s: float, now_unix_s: float
    ) -> RankView | None:
        above, alive = watch.ancestors, watch.over_s is None
        parent = next((one for one in above if one in living), above[0] if above else None)
        try:
            return watch.rank.view(now_unix_s=now_unix_s, alive=alive, parent=parent)
        except Exception as error:
            del self._watches[place]
            self._rings.give_up(watch.ring, error, now_s)
            return None

    def hear_of_groups(self, names: Iterable[NameOfGroup]) -> None:
        """Take the coordinator's names for the groups of this node's ranks."""
        self._groups.hear(names)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Ranks that are not shown although they live, each counted once."""
        return self._not_shown.counts

    def living_pids(self) -> frozenset[int]:
        """Pids, as the host counts them, of the processes that are watched."""
        return frozenset(w.facts.process.pid for w in self._watches.values() if w.ended_s is None)

    def pod_uids(self) -> frozenset[str]:
        """Uids of the pods of current and recently ended ranks."""
        return frozenset(w.facts.pod.pod_uid for w in self._watches.values() if w.facts.pod is not None)

    def folders(self) -> dict[ProcessId, RankFolder]:
        """Each rank's folder for evidence about its own memory, also of one that has just ended."""
        return {watch.facts.process: watch.beside for watch in self._watches.values()}

    def sockets(self) -> dict[ProcessId, ProcessSocket]:
        return {watch.facts.process: watch.socket for watch in self._watches.values() if watch.ended_s is None}

    def tenants(self) -> dict[ProcessId, Tenant]:
        return {watch.facts.process: watch.tenant for watch in self._watches.values()}

    def close(self) -> None:
        """Close every ring; the files stay for the next agent."""
        for watch in self._watches.values():
            self._rings.forget(watch.ring)
        self._watches.clear()


def _precedence(view: RankView, there: Collection[ProcessId], *, has_successor: bool) -> tuple[object, ...]:
    """Sort key for processes of a user that claim one name; the first keeps it: the living; of the dead, those that
    were not over before another began (a program that is started again in place); then the one that trains, then the
    one that started the other (an evaluator on another GPU inherited its environment), then the larger."""
    over = not view.alive
    return (over, over and has_successor, view.steps == 0, view.parent in there, -view.reserved_bytes, view.process)


def _order(view: RankView) -> tuple[object, ...]:
    gpu = -1 if view.gpu is None else view.gpu
    return (view.identity.job_id, view.identity.attempt, view.identity.rank, gpu, view.process)
