"""All jobs across their nodes; a view is made again only after news of one of its ranks. No lock, no clock.

The board is for a cluster of ten thousand ranks of which a fifth reports each second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegauge.cluster.coordinator.grouping import RankOnNode, alarm_first, job_of, job_views
from tidegauge.cluster.coordinator.known_node import KnownNode, RankOfProcess
from tidegauge.core.ids import JobKey, OwnedJob, ProcessId
from tidegauge.core.job_records.earlier_runs import EarlierRuns
from tidegauge.core.jobs.rank_groups import NameOfGroup, RankGroup, RankGroups
from tidegauge.core.peer_bounds import PeerBound
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import JobView, RankSummary


class _Place(NamedTuple):
    """A job's ranks on one node."""

    node: KnownNode
    keys: dict[RankOfProcess, None]


class JobBoard:
    """The ranks of all ``KnownNode``s by job. Only its methods change ``KnownNode.ranks``; ``touch`` must follow any
    other change of a node that its jobs show. Use it under the coordinator's lock."""

    def __init__(self) -> None:
        self._places: dict[JobKey, dict[str, _Place]] = {}
        self._attempts: dict[OwnedJob, set[JobKey]] = defaultdict(set)
        self._groups: dict[OwnedJob, RankGroups] = defaultdict(RankGroups)
        self._views: dict[JobKey, tuple[JobView, ...]] = {}
        """One of each group."""
        self._earlier: dict[JobKey, EarlierRuns] = {}
        self._touched: set[JobKey] = set()
        self._sorted: tuple[JobView, ...] = ()

    def knows(self, job: JobKey) -> bool:
        """Whether a rank of this attempt is known, running or ended."""
        return job in self._places

    def put(self, node: KnownNode, key: RankOfProcess, rank: RankSummary) -> None:
        before, job = node.ranks.get(key), job_of(rank)
        node.ranks[key] = rank
        if before is not None and before.uid != rank.uid:
            self._leave(node, key, job_of(before))
            before = None
        if before is None:
            self._places.setdefault(job, {}).setdefault(node.node_id, _Place(node, {})).keys[key] = None
            self._attempts[job.owned].add(job)
        self._touched.add(job)

    def remove(self, node: KnownNode, key: RankOfProcess) -> None:
        rank = node.ranks.pop(key, None)
        if rank is not None:
            self._leave(node, key, job_of(rank))

    def touch(self, node: KnownNode) -> None:
        """Mark all jobs of a node as changed, after a change of its health, name or launches."""
        self._touched.update(map(job_of, node.ranks.values()))

    def jobs(self) -> tuple[JobView, ...]:
        """All views, the most alarming first, then by id. A job without news is the same object as last time."""
        if self._touched:
            for job in {touched.owned for touched in self._touched}:
                self._make(job)
            self._touched.clear()
            self._sorted = tuple(sorted((view for views in self._views.values() for view in views), key=alarm_first))
        return self._sorted

    def know_earlier_runs(self, job: JobKey, earlier: EarlierRuns) -> None:
        """Judge this attempt by earlier runs of the same job, too, until it is gone."""
        if job in self._places:
            self._earlier[job] = earlier
            self._touched.add(job)

    def peer_bounds(self, node: KnownNode, ranks: Iterable[RankSummary]) -> Iterator[PeerBound]:
        """Bounds of these ranks that hold and that their own nodes do not know, as their jobs were last viewed."""
        for rank in ranks:
            view = None if rank.verdict.state is LeakState.OK else self._view_of(node, rank)
            bound = None if view is None else view.bounds.get(int(rank.identity.rank))
            if bound is not None and not bound.is_own and bound.holds:
                yield PeerBound(rank.process, bound)

    def group_names(self, node: KnownNode, ranks: Iterable[RankSummary]) -> Iterator[NameOfGroup]:
        """Group names of these ranks, for jobs with several groups, as they were last viewed; none for a new rank."""
        for rank in ranks:
            view = self._view_of(node, rank)
            if view is not None and view.group_name:
                yield NameOfGroup(rank.process, view.group_name)

    def group_of(self, job: JobKey, hostname: str, process: ProcessId) -> JobKey:
        """The group of ranks of ``job`` that a process is in, or was lately."""
        groups = self._groups.get(job.owned)
        return job.whole if groups is None else job._replace(group=groups.key_of((hostname, process)) or "")

    def remember_group(self, job: JobKey, group: RankGroup) -> None:
        self._groups[job.owned].remember(job.attempt, group)

    def _view_of(self, node: KnownNode, rank: RankSummary) -> JobView | None:
        job = job_of(rank)
        views = self._views.get(job, ())
        if len(views) < 2:
            return views[0] if views else None
        key = self._groups[job.owned].key_of((node.hostname, rank.process))
        return next((view for view in views if view.group == key), None)

    def members(self, job: JobKey) -> Iterator[RankOnNode]:
        """The processes of a job: two for a rank that was restarted in place."""
        for node, keys in self._places.get(job, {}).values():
            hostname, node_id = node.hostname, node.node_id
            stale = node.was_stale or node.gone_s is not None
            for key in keys:
                rank, named = node.ranks[key], key in node.named
                hidden = node.opener_silent_s is not None and rank.alive and not named
                yield RankOnNode(rank, hostname, stale or hidden, node_id, node.launch_of(rank), named)

    def job_keys(self) -> tuple[JobKey, ...]:
        return tuple(self._places)

    def _make(self, job: OwnedJob) -> None:
        attempts = self._attempts[job]
        for gone in [one for one in attempts if one not in self._places]:
            attempts.remove(gone)
            self._views.pop(gone, None)
        if attempts:
            members = {one: list(self.members(one)) for one in attempts}
            self._views.update(job_views(members, self._groups[job], self._earlier))
        else:
            del self._attempts[job]
            self._groups.pop(job, None)

    def _leave(self, node: KnownNode, key: RankOfProcess, job: JobKey) -> None:
        places = self._places[job]
        keys = places[node.node_id].keys
        del keys[key]
        if not keys:
            del places[node.node_id]
        if not places:
            del self._places[job]
            self._earlier.pop(job, None)
        self._touched.add(job)
