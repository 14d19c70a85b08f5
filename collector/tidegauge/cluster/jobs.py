"""Ranks on nodes in, jobs out: who belongs together; how alarming the whole is says ``judge_job``. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegauge.core.detector.peers import judge_job
from tidegauge.core.ids import GlobalRank
from tidegauge.core.launches import LaunchSummary
from tidegauge.core.views import JobView, RankSummary


class RankOnNode(NamedTuple):
    """A rank and where its figures come from."""

    rank: RankSummary
    hostname: str
    stale: bool
    """Nobody has reported on it lately."""
    node_id: str
    launch: LaunchSummary | None = None
    """The ``tidegauge run`` that it descends from, as of the same report."""


class _Group(NamedTuple):
    """What makes ranks one job. The owner (uid, from the kernel) belongs to it: a job id is only a claim of the
    process, and nobody may make somebody else's job look guilty by claiming its id."""

    job_id: str
    attempt: int
    uid: int


def jobs_of(ranks: Iterable[RankOnNode]) -> tuple[JobView, ...]:
    """All jobs, the most alarming first, then by id."""
    groups: dict[_Group, list[RankOnNode]] = defaultdict(list)
    for one in ranks:
        key = one.rank.identity.key
        groups[_Group(key.job_id, key.attempt, one.rank.uid)].append(one)
    jobs = [_job(group, one_per_rank(members)) for group, members in groups.items()]
    return tuple(sorted(jobs, key=_alarm_first))


def _alarm_first(job: JobView) -> tuple[int, int, str, int]:
    severity = 0 if job.severity is None else job.severity.level
    return -job.state.level, -severity, job.job_id, -job.attempt


def look_first(rank: RankSummary) -> tuple[int, int, float, float, int]:
    """Sort key: the rank to look at first is first. Surest, gravest, first to run out, fullest; then by number."""
    verdict, limit_bytes = rank.verdict, rank.limit_bytes
    severity = 0 if verdict.severity is None else verdict.severity.level
    seconds = math.inf if verdict.seconds_to_oom is None else verdict.seconds_to_oom.likely
    share = (rank.reserved_bytes + (rank.nontorch_bytes or 0)) / limit_bytes if limit_bytes else 0.0
    return -verdict.state.level, -severity, seconds, -share, int(rank.identity.rank)


def one_per_rank(members: Iterable[RankOnNode]) -> list[RankOnNode]:
    """A rank that was restarted in place has two processes for a while: the living, then the latest, speaks for it."""
    best: dict[GlobalRank, RankOnNode] = {}
    for one in members:
        rank = one.rank.identity.rank
        if rank not in best or _standing(one) > _standing(best[rank]):
            best[rank] = one
    return [best[rank] for rank in sorted(best)]


def _standing(one: RankOnNode) -> tuple[bool, bool, float]:
    return one.rank.alive, not one.stale, one.rank.last_sample_unix_s


def _job(group: _Group, members: Sequence[RankOnNode]) -> JobView:
    ranks = tuple(one.rank for one in members)
    judged = judge_job({int(rank.identity.rank): rank.verdict for rank in ranks})
    identity = ranks[0].identity
    launch, launch_node = _launch_of(members)
    return JobView(
        job_id=group.job_id,
        attempt=group.attempt,
        job_name=identity.job_name,
        user_name=ranks[0].user_name,
        scheduler=identity.scheduler,
        world_size=max(rank.identity.world_size for rank in ranks),
        hostnames=tuple(sorted({one.hostname for one in members})),
        ranks=ranks,
        state=judged.state,
        severity=judged.severity,
        signal=judged.signal,
        suspects=tuple(suspect.rank for suspect in judged.suspects),
        running=any(rank.alive for rank in ranks),
        stale=tuple(int(one.rank.identity.rank) for one in members if one.stale),
        common=judged.common,
        rank_nodes=tuple(one.node_id for one in members),
        rank_hostnames=tuple(one.hostname for one in members),
        launch=launch,
        launch_node=launch_node,
        exempt=any(one.launch is not None and one.launch.exempt for one in members if one.rank.alive),
    )


def _launch_of(members: Iterable[RankOnNode]) -> tuple[LaunchSummary | None, str | None]:
    """The ``tidegauge run`` that all living ranks descend from, and its node. A job over several nodes has one on each,
    or a scheduler: then it is none of theirs alone."""
    launches = {(one.launch, one.node_id) for one in members if one.rank.alive}
    if len(launches) != 1:
        return None, None
    launch, node_id = launches.pop()
    return (None, None) if launch is None else (launch, node_id)
