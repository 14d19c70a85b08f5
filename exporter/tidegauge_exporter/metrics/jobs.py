"""The coordinator's ``/metrics``: jobs as a whole, incidents and actions. Each rank is on its node's page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from prometheus_client.registry import Collector

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.loop_figures import JobFigures, LoopFigures, SlurmLabels
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy
from tidegauge.core.views import JobView, job_array_name
from tidegauge_exporter.metrics.coordinator_rows import JOB_LOOP_METRICS, LOOP_METRICS, NODE_COUNTS, USAGE_METRICS
from tidegauge_exporter.metrics.families import (
    INFO_VALUE,
    JOB_LABELS,
    Exposition,
    Metric,
    Samples,
    exposition,
    labels_of,
)
from tidegauge_exporter.metrics.table import COLLECT_SUCCESS, COORDINATOR_TABLE, GROUP_LABELS, JOB_INFO, JOB_METRICS

LINGER_S = 120.0
"""Seconds as on a node, so that the last counters of an ended rank can be joined with the job's facts."""


def job_metrics(
    jobs: Iterable[JobView],
    *,
    cluster: str,
    now_unix_s: float,
    linger_s: float = LINGER_S,
    accept: str | None = None,
    loop: LoopFigures | None = None,
    service: Collector | None = None,
    shown_user: Callable[[str], str] = str,
) -> Exposition:
    """The page for a scrape with the header ``Accept``: OpenMetrics if it asks for it, else text.

    Jobs that ended longer than ``linger_s`` ago are left out. Without ``loop`` there is nothing about incidents and
    actions. ``service`` collects metrics of the coordinator's process. ``shown_user``: what to show for a user's name.
    """
    samples = Samples(COORDINATOR_TABLE)
    current = (job for job in jobs if _is_current(job, now_unix_s=now_unix_s, linger_s=linger_s))
    _add_jobs(samples, current, loop, cluster=cluster, shown_user=shown_user)
    if loop is not None:
        _add_loop(samples, replace(loop, usage=_shown_usage(loop.usage, shown_user)), cluster=cluster)
    own = () if service is None else service.collect()
    return exposition([*samples.families(), *own], accept)


def _add_jobs(
    samples: Samples, jobs: Iterable[JobView], loop: LoopFigures | None, *, cluster: str,
    shown_user: Callable[[str], str],
) -> None:  # fmt: skip
    """Add one set of series a job, attempt and group of ranks; of two with the same labels, the first."""
    figures: Mapping[JobKey, JobFigures] = {} if loop is None else loop.of_jobs
    slurm: Mapping[JobKey, SlurmLabels] = {} if loop is None else loop.slurm
    seen: set[tuple[str, ...]] = set()
    for job in jobs:
        labels = labels_of(JOB_LABELS, (cluster, job.job_id, job.attempt))
        if job.group_name:
            labels |= labels_of(GROUP_LABELS, (job.group_name,))
        if tuple(labels.values()) in seen:
            continue
        seen.add(tuple(labels.values()))
        facts = (shown_user(job.user_name), job.job_name, job.scheduler, job.world_size, *_slurm_labels(job, slurm))
        samples.add_to({**labels, **_further_labels(JOB_INFO, facts)}, JOB_INFO, INFO_VALUE)
        for metric in JOB_METRICS:
            if (value := metric.read(job)) is not None:
                samples.add_to(labels, metric, value)
        if not job.ranks or (told := figures.get(job.key)) is None:
            continue
        for row in JOB_LOOP_METRICS:
            for values, number in row.read_all(told).items():
                samples.add_to({**labels, **_further_labels(row, values)}, row, number)


def _further_labels(metric: Metric, values: Sequence[object]) -> dict[str, str]:
    """The metric's labels after those of the job."""
    return labels_of(metric.labels[len(JOB_LABELS) :], values)


def _slurm_labels(job: JobView, known: Mapping[JobKey, SlurmLabels]) -> tuple[str | None, str | None, str | None]:
    """Partition, account and name in the job array as Slurm reports them; the name also as the nodes do, because some
    releases have it from one side only."""
    partition, account, array = (known.get(job.key) if job.ranks else None) or SlurmLabels(None, None)
    return partition, account, array or job_array_name(job)


def _add_loop(samples: Samples, loop: LoopFigures, *, cluster: str) -> None:
    for metric in (*NODE_COUNTS, *LOOP_METRICS, *USAGE_METRICS):
        for values, number in metric.read_all(loop).items():
            samples.add(metric, (cluster, *values), number)
    samples.add(COLLECT_SUCCESS, ("store",), float(loop.store_works))


def _shown_usage(
    usage: Mapping[UsageBy, Sequence[GpuUsage]], shown_user: Callable[[str], str]
) -> dict[UsageBy, list[GpuUsage]]:
    """With what to show in place of users' names."""
    return {
        by: [
            row._replace(
                name=shown_user(row.name) if by is UsageBy.USER else row.name,
                user_name=shown_user(row.user_name) if row.user_name else "",
            )
            for row in rows
        ]
        for by, rows in usage.items()
    }


def _is_current(job: JobView, *, now_unix_s: float, linger_s: float) -> bool:
    last_unix_s = max((rank.last_sample_unix_s for rank in job.ranks), default=0.0)
    return job.running or now_unix_s - last_unix_s <= linger_s
