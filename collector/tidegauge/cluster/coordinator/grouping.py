"""Groups ranks on nodes into jobs; ``judge_job`` says how alarming a job is. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tidegauge.core.detector.peers import judge_job
from tidegauge.core.ids import GlobalRank, JobKey, ProcessId
from tidegauge.core.job_records.earlier_runs import EarlierRuns, change_words, with_earlier_runs
from tidegauge.core.jobs.launches import LaunchSummary
from tidegauge.core.jobs.rank_groups import GroupMember, Place, RankGroup, RankGroups
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.peer_bounds import with_shared_bounds
from tidegauge.core.verdicts import LeakState, alarm_level
from tidegauge.core.views import JobView, RankSummary, name_owners

"""Of one job's owners."""


class RankOnNode(NamedTuple):
    """A rank and the node that reports it."""

    rank: RankSummary
    hostname: str
    stale: bool
    """Nobody has reported on it lately."""
    node_id: str
    launch: LaunchSummary | None = None
    """The ``tidegauge run`` that it descends from, as of the same report."""
    named: bool = True
    """Its agent told of it in its latest report."""

    @property
    def group_member(self) -> GroupMember:
        return self.rank.group_member(self.hostname, lives=self.rank.alive and not self.stale)

    @property
    def place(self) -> Place:
        return self.hostname, self.rank.process


def job_of(rank: RankSummary) -> JobKey:
    """The attempt of a job that a rank belongs to, with all its groups."""
    identity = rank.identity
    return JobKey(identity.job_id, identity.attempt, rank.uid)


def job_views(
    attempts: Mapping[JobKey, Sequence[RankOnNode]], known: RankGroups, earlier: Mapping[JobKey, EarlierRuns] = {}
) -> dict[JobKey, tuple[JobView, ...]]:
    """The views of each attempt of a job, one for each group of ranks. ``earlier``: earlier runs of attempts."""
    groups = known.look([one.group_member for members in attempts.values() for one in members])
    views = _of_groups(attempts, groups, earlier)
    return _with_replicas(views) if any(group.replica for group in groups) else views


def _of_groups(
    attempts: Mapping[JobKey, Sequence[RankOnNode]], groups: Sequence[RankGroup], earlier: Mapping[JobKey, EarlierRuns]
) -> dict[JobKey, tuple[JobView, ...]]:
    if len(groups) == 1:
        return {
            job: (make_job(job, one_per_rank(members), groups[0], earlier.get(job)),)
            for job, members in attempts.items()
        }
    group_of = {member: group for group in groups for member in group.members()}
    views = {}
    for job, members in attempts.items():
        parts: dict[RankGroup, list[RankOnNode]] = defaultdict(list)
        for one in members:
            member = one.group_member
            parts[group_of[member.restarts, member.place]].append(one)
        views[job] = tuple(
            make_job(job, one_per_rank(part), group, earlier.get(job))
            for group, part in sorted(parts.items(), key=lambda one: one[0].key)
        )
    return views


def _with_replicas(views: Mapping[JobKey, tuple[JobView, ...]]) -> dict[JobKey, tuple[JobView, ...]]:
    """The same, each replica with how all replicas of its server are. Workloads of one name are one job: those of each
    kind count by themselves, and what is no replica has none."""
    alive: dict[str, dict[str, list[JobView]]] = defaultdict(dict)
    for view in (view for ones in views.values() for view in ones):
        pod = view.ranks[0].pod
        if pod is not None and pod.replica:
            alive[pod.kind].setdefault(pod.replica, []).extend([view] if view.running else [])
    counted = {kind: _counted(kind, by_replica.values()) for kind, by_replica in alive.items()}
    return {job: tuple(_with_count(view, counted) for view in ones) for job, ones in views.items()}


def _counted(kind: str, alive: Collection[Sequence[JobView]]) -> Replicas:
    growing = sum(any(view.state is LeakState.LEAK for view in ones) for ones in alive)
    return Replicas(kind, sum(map(bool, alive)), growing)


def _with_count(view: JobView, counted: Mapping[str, Replicas]) -> JobView:
    pod = view.ranks[0].pod
    return view if pod is None or not pod.replica else replace(view, replicas=counted[pod.kind])


def alarm_first(job: JobView) -> tuple[int, int, str, int, str]:
    """Sort key: the most alarming job first, then by id."""
    state, severity = alarm_level(job.state, job.severity)
    return -state, -severity, job.job_id, -job.attempt, job.group


def look_first(rank: RankSummary) -> tuple[int, int, float, float, int]:
    """Sort key: the rank to look at first is first. Surest, gravest, first to run out, fullest; then by number."""
    verdict = rank.verdict
    held_bytes = rank.reserved_bytes + (rank.nontorch_bytes or 0)
    share = held_bytes / rank.limit_bytes if rank.limit_bytes else 0.0
    if verdict.state is LeakState.OK:  # nearly always
        return 0, 0, math.inf, -share, int(rank.identity.rank)
    state, severity = alarm_level(verdict.state, verdict.severity)
    seconds = math.inf if verdict.seconds_to_oom is None else verdict.seconds_to_oom.likely
    return -state, -severity, seconds, -share, int(rank.identity.rank)


def one_per_rank(members: Iterable[RankOnNode]) -> list[RankOnNode]:
    """One process for each rank: of two, after a restart in place, the living, then the latest."""
    best: dict[GlobalRank, RankOnNode] = {}
    for one in members:
        rank = one.rank.identity.rank
        other = best.get(rank)
        if other is None or _standing(one) > _standing(other):
            best[rank] = one
    return [best[rank] for rank in sorted(best)]


def _standing(one: RankOnNode) -> tuple[bool, bool, bool, bool, float, ProcessId, str]:
    """Prefers the process that its agent chose (``agent.ranks.watches``), then the one that trains to a helper, or the
    program that started it. Process and node break ties, so that the order of reports does not matter."""
    rank = one.rank
    return rank.alive, not one.stale, one.named, rank.step > 0, rank.last_sample_unix_s, rank.process, one.node_id


def make_job(
    job: JobKey, members: Sequence[RankOnNode], group: RankGroup, earlier: EarlierRuns | None = None
) -> JobView:
    """The view of a job's group of these ranks, sorted by number (``one_per_rank``)."""
    ranks = with_shared_bounds([one.rank for one in members], [one.stale for one in members])
    if earlier is not None:
        ranks = with_earlier_runs(ranks, earlier)
    judged = judge_job({int(rank.identity.rank): rank.verdict for rank in ranks})
    identity = ranks[0].identity
    launch, launch_node = _launch_of(members)
    return JobView(
        job_id=job.job_id,
        attempt=job.attempt,
        job_name=identity.job_name,
        user_name=_user_name(ranks),
        scheduler=identity.scheduler,
        world_size=max(rank.identity.world_size for rank in ranks),
        hostnames=tuple(sorted({one.hostname for one in members})),
        ranks=ranks,
        state=judged.state,
        severity=judged.severity,
        signal=judged.signal,
        suspects=tuple([suspect.rank for suspect in judged.suspects]),
        running=any(rank.alive for rank in ranks),
        stale=tuple([int(one.rank.identity.rank) for one in members if one.stale]),
        common=judged.common,
        rank_nodes=tuple([one.node_id for one in members]),
        rank_hostnames=tuple([one.hostname for one in members]),
        launch=launch,
        launch_node=launch_node,
        exempt=any(one.launch is not None and one.launch.exempt for one in members if one.rank.alive),
        group=group.key,
        group_name=group.name,
        change=None if earlier is None else change_words(ranks, earlier),
    )


def _user_name(ranks: Sequence[RankSummary]) -> str:
    """The owner of the job. Nodes that do not know the name of the uid are ignored if others do; names that differ are
    all listed, and then nobody owns the job."""
    names = {rank.user_name for rank in ranks}
    if len(names) > 1:
        names -= {str(rank.uid) for rank in ranks}
    return name_owners(names)


def _launch_of(members: Iterable[RankOnNode]) -> tuple[LaunchSummary | None, str | None]:
    """The ``tidegauge run`` that all living ranks descend from, and its node; ``None`` if there are several."""
    launches = {
        (None if one.launch is None else one.launch.process, one.node_id): one.launch
        for one in members
        if one.rank.alive
    }
    if len(launches) != 1:
        return None, None
    ((_, node_id), launch) = launches.popitem()
    return (None, None) if launch is None else (launch, node_id)
