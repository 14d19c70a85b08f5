"""The coordinator turns reports of nodes into jobs across ranks. No Ray, no HTTP, no clock of its own.

It keeps nothing on disk: an agent repeats the state of all its ranks in every report, so a restarted coordinator is
complete again after one report period. Incidents and audit, which must not be lost, are in ``cluster.store``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from tidegauge.cluster.coordinator.event_log import EventLog
from tidegauge.cluster.coordinator.evidence_index import EvidenceIndex
from tidegauge.cluster.coordinator.forgotten_list import without_forgotten
from tidegauge.cluster.coordinator.grouping import job_of, look_first, one_per_rank
from tidegauge.cluster.coordinator.job_board import JobBoard
from tidegauge.cluster.coordinator.known_node import MAX_RANKS_KEPT, KnownNode, RankOfProcess
from tidegauge.cluster.coordinator.order_queue import OrderQueue
from tidegauge.cluster.coordinator.piece_queue import PieceQueue
from tidegauge.cluster.coordinator.report_pacing import ReportPacing
from tidegauge.cluster.coordinator.settings_store import JobSettingsStore
from tidegauge.cluster.views import EngineNode, Event, EventKind, NodeHealth, NodeStatus
from tidegauge.core.ids import DeviceUuid, JobKey, ProcessId
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.evidence import EvidenceNews
from tidegauge.core.job_records.earlier_runs import EarlierRuns
from tidegauge.core.jobs.kubernetes import PodFacts
from tidegauge.core.jobs.launches import LaunchSummary
from tidegauge.core.jobs.rank_groups import RankGroup
from tidegauge.core.memory_history import MemoryHistory, MemoryPoint
from tidegauge.core.persons.forgotten import Forgotten
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.views import JobView, NodeSummary, RankSummary
from tidegauge.protocol.messages import ReportReply

# Which node has a process now: an engine that is started again gives its node another id, and the jobs go on.


def present_nodes(nodes: Mapping[str, KnownNode], job: JobKey, targets: Sequence[tuple[ProcessId, str]]) -> list[str]:
    """The node that has each process now, for processes (ranks or keepers of ``job``) and the nodes that they were on.

    A node that was restarted has another id. A process keeps its node while that is present, and where no node or
    several report such a process: pids and start times may coincide on two nodes, and an order must not be guessed onto
    one.
    """
    present = {node_id for node_id, node in nodes.items() if node.gone_s is None}
    found: dict[ProcessId, list[str]] = {process: [] for process, node_id in targets if node_id not in present}
    if found:
        # A fleet has thousands of ranks: all of them are gone through once, whatever the number of targets.
        for node_id in present:
            for process in _those_of(nodes[node_id], job, found.keys()):
                found[process].append(node_id)
    return [
        found[process][0] if node_id not in present and len(found[process]) == 1 else node_id
        for process, node_id in targets
    ]


def _those_of(node: KnownNode, job: JobKey, processes: Collection[ProcessId]) -> set[ProcessId]:
    """The ones of ``processes`` that the node reports as ranks or keepers of ``job``."""
    whose = (job.uid, job.job_id)
    ranks = {
        process
        for (_, process), rank in node.ranks.items()
        if process in processes and (rank.uid, rank.identity.job_id) == whose
    }
    keepers = {
        process
        for process, launch in node.launches.items()
        if process in processes and (launch.uid, launch.job_id) == whose
    }
    return ranks | keepers


STALE_AFTER_S = 10.0
"""Ten default report periods: longer than a stalled host or an actor restart (about 1 s), far shorter than the engine's
own death detection (10-65 s). Where agents report less often, three of their periods."""

MAX_PODS_ASKED = 1024
"""Answered in one reply: more than a kubelet runs."""


class Coordinator:
    """Thread-safe. ``wall_s`` gives Unix time for people, ``monotonic_s`` measures ages."""

    def __init__(
        self,
        *,
        wall_s: Callable[[], float],
        monotonic_s: Callable[[], float],
        incarnation: str,
        stale_after_s: float = STALE_AFTER_S,
        linger_s: float = 120.0,
    ) -> None:
        self.incarnation = incarnation
        self.orders = OrderQueue(
            incarnation=incarnation, hostname_of=self.hostname_of, expected_every_s=self.expected_every_s,
            where_now=self._where_now, monotonic_s=monotonic_s,
        )  # fmt: skip
        """The way to processes on the nodes."""
        self.kept_evidence = EvidenceIndex()
        """What agents collected, on its way into the database."""
        self.profiles: PieceQueue[RankProfile] = PieceQueue()
        """Memory profiles on their way into the database."""
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._stale_after_s = stale_after_s
        self._linger_s = linger_s
        self._lock = threading.RLock()
        self._nodes: dict[str, KnownNode] = {}
        self._board = JobBoard()
        self._pacing = ReportPacing()
        self._usable_bytes: dict[DeviceUuid, int] | None = None
        """``gpu_usable_bytes`` as last made; ``None``: some node has other GPUs by now."""
        self._events = EventLog(wall_s)
        self._settings_store: JobSettingsStore | None = None
        self._pod_of: Callable[[str], PodFacts | None] | None = None
        self._forgotten: tuple[Forgotten, ...] = ()

    def lay_down(self, store: JobSettingsStore) -> None:
        """From now on send agents the settings of ``store`` with the replies to their reports.

        The store reads this coordinator: ``JobSettingsStore(…, reporting=coordinator.heard_lately)``.
        """
        self._settings_store = store

    def forget(self, forgotten: Iterable[Forgotten]) -> None:
        """From now on pass over what agents report of these persons' past, and have agents delete what they store."""
        self._forgotten = tuple(forgotten)

    def know_pods(self, pod_of: Callable[[str], PodFacts | None]) -> None:
        """From now on answer agents which pods they see. ``pod_of`` (by uid) must not block."""
        self._pod_of = pod_of

    def now_unix_s(self) -> float:
        """Of the head's clock."""
        return self._wall_s()

    def report(self, summary: NodeSummary) -> ReportReply:
        """Take in one agent's summary. Repeating a report, or sending an older one late, changes nothing."""
        summary, evidence_gone, profiles_gone = without_forgotten(summary, self._forgotten)
        with self._lock:
            now_s = self._monotonic_s()
            node = self._nodes.setdefault(summary.node_id, KnownNode(summary.node_id))
            if node.gone_s is not None or not node.is_news(summary):
                return ReportReply(accepted=False, coordinator=self.incarnation)
            before, was_stale = node.summary, node.was_stale
            node.take_summary(summary, now_s)
            if _usable(before) != _usable(summary):
                self._usable_bytes = None
            if before is None:
                self._events.tell(
                    EventKind.NODE_JOINED, node, f"agent {summary.agent_pid} reports from {summary.hostname}"
                )
            elif before.incarnation != summary.incarnation:
                node.retired.append(before.incarnation)
                self._events.tell(
                    EventKind.AGENT_RESTARTED, node,
                    f"the agent on {summary.hostname} was restarted (pid {before.agent_pid} -> {summary.agent_pid})",
                )  # fmt: skip
            if before is not None and was_stale:
                self._events.tell(EventKind.NODE_BACK, node, f"{summary.hostname} reports again")
            self._take_ranks(node, summary.ranks, now_s)
            every_s, peer_bounds = self._pace_of(node, now_s), tuple(self._board.peer_bounds(node, summary.ranks))
            group_names = tuple(self._board.group_names(node, summary.ranks))
            evidence = tuple(
                replace(piece, job=self._board.group_of(piece.job, node.hostname, piece.process))
                for piece in summary.evidence
            )
            profiles = tuple(
                replace(piece, job=self._board.group_of(piece.job, node.hostname, piece.process))
                for piece in summary.profiles
            )
        self.orders.take_results(summary.node_id, summary.order_results)
        orders, store = self.orders.orders_for(summary.node_id), self._settings_store
        settings = None if store is None else store.reply_to(summary, before=before)
        return ReportReply(
            accepted=True,
            coordinator=self.incarnation,
            orders=orders,
            job_settings=settings,
            evidence_kept=(*self.kept_evidence.take(evidence), *evidence_gone),
            profiles_kept=(*self.profiles.take(profiles), *profiles_gone),
            forgotten=self._forgotten,
            snapshots_wanted=self.kept_evidence.wanted_on(summary.hostname),
            pods=self._pods(summary.pods_wanted),
            peer_bounds=peer_bounds,
            group_names=group_names,
            report_every_s=every_s,
        )

    def note_problem(self, node_id: str, problem: str | None) -> bool:
        """Note for people what could not be understood of the node's latest report; whether that is news. A node that
        the engine has not listed is none of ours."""
        with self._lock:
            node = self._nodes.get(node_id)
            if node is None or node.problem == problem:
                return False
            node.problem = problem
            return True

    def engine_nodes(self, alive: Iterable[EngineNode]) -> None:
        """Take the nodes that are alive in the engine: all others are gone. Also lets time pass."""
        with self._lock:
            now_s = self._monotonic_s()
            listed = {node.node_id: node for node in alive}
            for node_id, engine in listed.items():
                known = self._nodes.setdefault(node_id, KnownNode(node_id))
                if known.gone_s is not None:
                    known.gone_s, self._usable_bytes = None, None
                    # What was taken for ended when it was lost may well train: nobody knows before its next report.
                    known.was_stale = known.heard_s is not None
                    self._board.touch(known)
                known.engine = engine
            for node in list(self._nodes.values()):
                if node.node_id not in listed and node.gone_s is None:
                    self._lose(node, now_s)
            self._let_time_pass(now_s)

    def nodes(self) -> tuple[NodeStatus, ...]:
        """The status of every known node; those that are gone are listed until they have lingered."""
        with self._lock:
            now_s = self._monotonic_s()
            self._let_time_pass(now_s)
            statuses = [self._status(node, now_s) for node in self._nodes.values()]
            return tuple(sorted(statuses, key=lambda status: (status.hostname, status.node_id)))

    def jobs(self) -> tuple[JobView, ...]:
        """Jobs across their nodes: running ones, and ended ones for ``linger_s``. Most alarming first.

        A job without a report since the last call is the same object.
        """
        with self._lock:
            self._let_time_pass(self._monotonic_s())
            jobs = self._board.jobs()
            self._pacing.look_at(jobs)
            return jobs

    def ended_launches(self) -> Mapping[str, Sequence[LaunchSummary]]:
        """Every ``tidegauge run`` that ended lately, by the engine's id of its node."""
        with self._lock:
            return {node_id: node.ended_launches for node_id, node in self._nodes.items() if node.ended_launches}

    def memory(
        self,
        job_id: str,
        attempt: int,
        uid: int | None = None,
        *,
        group: str = "",
        rank: int | None = None,
        most: int | None = None,
    ) -> Mapping[int, tuple[MemoryPoint, ...]]:
        """The memory history of the ranks of a job's group, by global rank, the rank to look at first first; empty for
        an unknown job.

        ``uid=None``: any owner. ``group`` as in ``JobKey``. Times are the coordinator's: the clock of a node may be
        wrong. The history lasts as long as the rank, and begins anew when the coordinator does.
        """
        with self._lock:
            self._let_time_pass(self._monotonic_s())
            asked = [key for key in self._board.job_keys() if key[:2] == (job_id, attempt) and uid in (None, key.uid)]
            members = [
                one
                for key in asked
                for one in self._board.members(key)
                if self._board.group_of(key, *one.place).group == group
            ]
            ranks = one_per_rank(one for one in members if rank in (None, one.rank.identity.rank))
            worst_first = sorted(ranks, key=lambda one: look_first(one.rank))[:most]
            return {
                int(one.rank.identity.rank): self._nodes[one.node_id].history(one.rank).points() for one in worst_first
            }

    def memory_line(self, node_id: str, rank: RankSummary, *, columns: int) -> tuple[int, ...]:
        """``MemoryHistory.used_bytes`` of a rank on a node; empty once the rank is forgotten."""
        with self._lock:
            node = self._nodes.get(node_id)
            return () if node is None else node.history(rank).used_bytes(columns)

    def history_of(self, node_id: str, rank: RankSummary) -> MemoryHistory:
        """A copy of the memory history of a rank on a node; empty once the rank is forgotten. The lock is held for a
        copy of 5 KB."""
        with self._lock:
            node = self._nodes.get(node_id)
            return MemoryHistory() if node is None else node.history(rank).copy()

    def know_earlier_runs(self, job: JobKey, earlier: EarlierRuns) -> None:
        """From now on judge this attempt by earlier runs of the same job, too."""
        with self._lock:
            self._board.know_earlier_runs(job, earlier)

    def evidence(self) -> Mapping[JobKey, Sequence[EvidenceNews]]:
        """Briefs of each job's evidence, oldest first."""
        return self.kept_evidence.news()

    def remember_groups(self, incidents: Iterable[Incident]) -> None:
        """Restore the groups of ranks of open incidents, after a restart."""
        with self._lock:
            for incident in incidents:
                if incident.group_name:  # of a job that has several
                    job = incident.key.job
                    places = frozenset((one.hostname, one.process) for one in incident.findings)
                    self._board.remember_group(job, RankGroup(job.group, incident.group_name, places))

    def reporting(self) -> tuple[NodeSummary, ...]:
        """The latest summary of every node that is not gone, for service discovery.

        Stale nodes are included: Prometheus finds out whether their ``/metrics`` answers.
        """
        with self._lock:
            self._let_time_pass(self._monotonic_s())
            return tuple(n.summary for n in self._nodes.values() if n.summary is not None and n.gone_s is None)

    def heard_lately(self) -> tuple[NodeSummary, ...]:
        """The latest summary of every node that is neither stale nor gone."""
        with self._lock:
            now_s = self._monotonic_s()
            return tuple(
                node.summary
                for node in self._nodes.values()
                if node.summary is not None and self._health(node, now_s) is NodeHealth.OK
            )

    def gpu_usable_bytes(self) -> Mapping[DeviceUuid, int]:
        """CUDA's total memory of every GPU of nodes that are not gone: memory fractions are parts of it."""
        with self._lock:
            self._let_time_pass(self._monotonic_s())
            if self._usable_bytes is None:
                present = [node.summary for node in self._nodes.values() if node.gone_s is None]
                self._usable_bytes = {uuid: most_bytes for summary in present for uuid, most_bytes in _usable(summary)}
            return self._usable_bytes

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """Events after number ``after`` (0: all that are kept), oldest first."""
        with self._lock:
            return self._events.after(after)

    def last_heard(self, node_id: str) -> tuple[float, str] | None:
        """The time of the latest report of the node's agent (monotonic seconds), and the agent's incarnation."""
        with self._lock:
            node = self._nodes.get(node_id)
            if node is None or node.summary is None or node.heard_s is None:
                return None
            return node.heard_s, node.summary.incarnation

    def expected_every_s(self, node_id: str) -> float:
        """The report period that the node's agent was asked for; 0: that of its own setting."""
        with self._lock:
            node = self._nodes.get(node_id)
            return 0.0 if node is None else node.expected_every_s

    def hostname_of(self, node_id: str) -> str:
        """Empty for a node that nobody knows."""
        with self._lock:
            node = self._nodes.get(node_id)
            return "" if node is None else node.hostname

    def _pace_of(self, node: KnownNode, now_s: float) -> float:
        every_s = self._pacing.every_s(node.node_id, nodes=len(self._nodes))
        quick = every_s > 0 and self.orders.is_talking_to(node.node_id, now_s=now_s)
        node.tell_pace(0.0 if quick else every_s, stale_after_s=self._stale_after_s)
        return node.told_every_s[0]

    def _pods(self, uids: Sequence[str]) -> tuple[PodFacts, ...]:
        pod_of = self._pod_of
        return () if pod_of is None else tuple(filter(None, map(pod_of, uids[:MAX_PODS_ASKED])))

    def _where_now(self, job: JobKey, targets: Sequence[tuple[ProcessId, str]]) -> list[str]:
        with self._lock:
            return present_nodes(self._nodes, job, targets)

    def _take_ranks(self, node: KnownNode, ranks: Iterable[RankSummary], now_s: float) -> None:
        taken = islice(ranks, MAX_RANKS_KEPT)  # no agent reports more
        reported: dict[RankOfProcess, RankSummary] = {(r.identity.key, r.process): r for r in taken}
        at_unix_s = self._wall_s()
        for key, rank in reported.items():
            node.take_memory(key, rank, at_unix_s)
            if rank.alive and not self._board.knows(job_of(rank)):
                self._events.tell_job(node, rank)
            self._board.put(node, key, rank)
            if rank.alive:
                node.ended_s.pop(key, None)
            else:
                node.ended_s.setdefault(key, now_s)
            self._events.tell_verdict(node, key, rank)
        node.named = frozenset(reported)
        for key in node.ranks.keys() - reported.keys():
            # The agent has forgotten it, so its process is gone (agents keep ended ranks for a while themselves).
            if node.ranks[key].alive:
                if node.may_hide_ranks(now_s):
                    continue
                self._board.put(node, key, replace(node.ranks[key], alive=False))
            node.ended_s.setdefault(key, now_s)
        for key in node.crowded_out():
            self._forget(node, key)
        self._board.touch(node)

    def _lose(self, node: KnownNode, now_s: float) -> None:
        node.gone_s = now_s
        node.problem = None
        self._usable_bytes = None
        for key, rank in list(node.ranks.items()):
            # With the node's agent gone nobody can say whether the process still runs: it is stale, and it ends here.
            self._board.put(node, key, replace(rank, alive=False))
            node.ended_s.setdefault(key, now_s)
        self._events.tell(EventKind.NODE_GONE, node, f"node {node.hostname or node.node_id[:8]} is gone")

    def _let_time_pass(self, now_s: float) -> None:
        for node_id, node in list(self._nodes.items()):
            if now_s > node.stale_at_s and not node.was_stale and node.gone_s is None:
                node.was_stale = True
                self._board.touch(node)
                self._events.tell(
                    EventKind.NODE_STALE, node,
                    f"no report from {node.hostname} for {node.patience_s:.0f} s: its figures are out of date",
                )  # fmt: skip
            ended = node.ended_s and [key for key, at_s in node.ended_s.items() if now_s - at_s > self._linger_s]
            for key in ended:
                # One that the agent still names would come back with its next report, and be announced again.
                if key not in node.named or node.gone_s is not None:
                    self._forget(node, key)
            if node.gone_s is not None and now_s - node.gone_s > self._linger_s:
                for key in list(node.ranks):
                    self._forget(node, key)
                del self._nodes[node_id]

    def _forget(self, node: KnownNode, key: RankOfProcess) -> None:
        self._board.remove(node, key)
        node.ended_s.pop(key, None)
        node.histories.pop(key, None)
        self._events.forget(key)

    def _health(self, node: KnownNode, now_s: float) -> NodeHealth:
        if node.gone_s is not None:
            return NodeHealth.GONE
        if node.heard_s is None:
            return NodeHealth.WAITING
        return NodeHealth.STALE if now_s > node.stale_at_s else NodeHealth.OK

    def _status(self, node: KnownNode, now_s: float) -> NodeStatus:
        summary = node.summary
        return NodeStatus(
            node_id=node.node_id,
            hostname=node.hostname,
            address=None if node.engine is None or node.gone_s is not None else node.engine.address,
            health=self._health(node, now_s),
            agent_pid=None if summary is None else summary.agent_pid,
            incarnation=None if summary is None else summary.incarnation,
            metrics_address=None if summary is None else summary.metrics_address,
            last_report_age_s=None if node.heard_s is None else now_s - node.heard_s,
            ranks=sum(rank.alive for rank in node.ranks.values()),
            gpus=() if summary is None else summary.gpus,
            problem=node.problem,
        )


def _usable(summary: NodeSummary | None) -> list[tuple[DeviceUuid, int]]:
    """CUDA's total memory of every GPU of a node."""
    gpus = () if summary is None else summary.gpus
    return [(gpu.uuid, gpu.usable_bytes) for gpu in gpus if gpu.usable_bytes is not None]
