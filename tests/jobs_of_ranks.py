"""Jobs of ranks at one moment, without a board: the reference for `JobBoard`, and a quick way to a job in tests."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

from tidegauge.cluster.coordinator.grouping import RankOnNode, alarm_first, job_of, job_views
from tidegauge.core.ids import JobKey, OwnedJob
from tidegauge.core.jobs.rank_groups import RankGroups
from tidegauge.core.views import JobView


def jobs_of(ranks: Iterable[RankOnNode]) -> tuple[JobView, ...]:
    """All jobs of ``ranks`` without earlier knowledge, the most alarming first, then by id."""
    jobs: dict[OwnedJob, dict[JobKey, list[RankOnNode]]] = defaultdict(lambda: defaultdict(list))
    for one in ranks:
        job = job_of(one.rank)
        jobs[job.owned][job].append(one)
    views = (job_views(attempts, RankGroups()).values() for attempts in jobs.values())
    return tuple(sorted(itertools.chain.from_iterable(itertools.chain.from_iterable(views)), key=alarm_first))
