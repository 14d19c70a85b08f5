"""The coordinator's ``/metrics``: jobs as a whole, incidents and actions. Each rank is on its node's page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily

from tidegauge.core.loop_figures import LoopFigures
from tidegauge.core.views import JobView
from tidegauge_exporter.families import INFO_VALUE, Families
from tidegauge_exporter.labels import label_value
from tidegauge_exporter.loop_metrics import LOOP_METRICS
from tidegauge_exporter.metrics import COLLECT_SUCCESS, COORDINATOR_TABLE, JOB_INFO, JOB_METRICS

LINGER_S = 120.0
"""As long as a node keeps the last counters of an ended rank, so that they can still be joined with the job's facts."""


class Exposition(NamedTuple):
    """An answer to a scrape."""

    body: bytes
    content_type: str


def job_metrics(
    jobs: Iterable[JobView],
    *,
    cluster: str,
    now_unix_s: float,
    linger_s: float = LINGER_S,
    accept: str | None = None,
    loop: LoopFigures | None = None,
) -> Exposition:
    """The page for a scrape whose ``Accept`` header is ``accept``: OpenMetrics if it asks for it, else text.

    Jobs that ended longer than ``linger_s`` ago are left out, whatever history the coordinator keeps. Without ``loop``
    there is nothing about incidents and actions.
    """
    families = Families(COORDINATOR_TABLE)
    current = (job for job in jobs if _is_current(job, now_unix_s=now_unix_s, linger_s=linger_s))
    _add_jobs(families, current, cluster=cluster)
    if loop is not None:
        _add_loop(families, loop, cluster=cluster)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Ready(families.filled()))
    encode, content_type = choose_encoder(accept or "")
    return Exposition(encode(registry), content_type)


def _add_jobs(families: Families, jobs: Iterable[JobView], *, cluster: str) -> None:
    """One set of series a job and attempt; the first of two with the same labels stays."""
    seen: set[tuple[str, ...]] = set()
    for job in jobs:
        labels = tuple(map(label_value, (cluster, job.job_id, job.attempt)))
        if labels in seen:
            continue
        seen.add(labels)
        facts = map(label_value, (job.user_name, job.job_name, job.scheduler, job.world_size))
        families.add(JOB_INFO, (*labels, *facts), INFO_VALUE)
        for metric in JOB_METRICS:
            if (value := metric.read(job)) is not None:
                families.add(metric, labels, value)


def _add_loop(families: Families, loop: LoopFigures, *, cluster: str) -> None:
    for metric in LOOP_METRICS:
        for values, number in metric.read_all(loop).items():
            families.add(metric, (label_value(cluster), *values), number)
    families.add(COLLECT_SUCCESS, ("store",), float(loop.store_works))


def _is_current(job: JobView, *, now_unix_s: float, linger_s: float) -> bool:
    last_unix_s = max((rank.last_sample_unix_s for rank in job.ranks), default=0.0)
    return job.running or now_unix_s - last_unix_s <= linger_s


class _Ready:
    """Families that are already made, in the shape that prometheus_client asks for."""

    def __init__(self, families: list[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> list[MetricFamily]:
        return self._families
