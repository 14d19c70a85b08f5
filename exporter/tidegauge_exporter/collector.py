"""One scrape: a ``NodeView`` in, metric families out. Nothing is kept between scrapes but two counters.

A scrape never fails: a view that cannot be had is told as ``tidegauge_collect_success{source="view"} 0``, because an
error page would take every other series of the node with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric as MetricFamily

from tidegauge.core.views import NodeView, RankView
from tidegauge_exporter.families import INFO_VALUE, Families
from tidegauge_exporter.labels import label_value
from tidegauge_exporter.metric_rows import ReadMetric
from tidegauge_exporter.metrics import (
    CLAIMS_OVERRULED,
    COLLECT_DURATION,
    COLLECT_SUCCESS,
    GPU_METRICS,
    NODE_TABLE,
    RANK_INFO,
    RANK_METRICS,
    RECORDS_LOST,
    RECORDS_REFUSED,
    RINGS_SKIPPED,
    SAMPLES_PER_TARGET,
    SERIES_DROPPED,
)

log = logging.getLogger(__name__)

VIEW = "view"
"""The source that stands for the node's state as a whole. The collector alone speaks of it."""
DUPLICATE = "duplicate"
BUDGET = "budget"


class NodeCollector:
    """A custom Collector of prometheus_client. Scrapes may run at once: each works on its own view and families.

    ``view`` hands out the node's present state, quickly; ``clock`` measures how long that took, in seconds.
    """

    def __init__(self, view: Callable[[], NodeView], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter({DUPLICATE: 0, BUDGET: 0})
        self._view_failed = False

    def describe(self) -> Iterable[MetricFamily]:
        """All names without a reading, so that registering does not count as a scrape."""
        return Families(NODE_TABLE).all()

    def collect(self) -> Iterable[MetricFamily]:
        began_s = self._clock()
        try:
            families = self._families(self._view())
        except Exception as error:
            self._note_view(error)
            families = Families(NODE_TABLE)  # without counters: some of them are the view's, and would seem to fall
            families.add(COLLECT_SUCCESS, (VIEW,), 0)
        else:
            self._note_view(None)
            families.add(COLLECT_SUCCESS, (VIEW,), 1)
        families.add(COLLECT_DURATION, (VIEW,), self._clock() - began_s)
        return families.filled()

    def _families(self, view: NodeView) -> Families:
        families = Families(NODE_TABLE)
        dropped = _add_ranks(families, view)
        dropped[DUPLICATE] += _add_gpus(families, view)
        _add_self(families, view)
        with self._lock:
            self._dropped.update(dropped)
            totals = self._dropped.copy()
        totals.update(view.series_dropped)
        for reason, count in totals.items():
            families.add(SERIES_DROPPED, (label_value(reason),), count)
        return families

    def _note_view(self, error: Exception | None) -> None:
        """One line when the view begins to fail and one when it works again, however often it is scraped."""
        with self._lock:
            changed, self._view_failed = self._view_failed != (error is not None), error is not None
        if not changed:
            return
        if error is None:
            log.info("the node's state can be read again")
        else:
            log.error("the node's state cannot be read, scrapes say so until it can", exc_info=error)


def _add_ranks(families: Families, view: NodeView) -> Counter[str]:
    """Adds every rank whose labels are its own, as long as the target's budget lasts; says how many series it left out.

    The first of two ranks with the same labels stays: a job can claim another's name, and one that came later must
    not push out one that is already watched.
    """
    dropped: Counter[str] = Counter()
    seen: set[tuple[str, ...]] = set()
    left = SAMPLES_PER_TARGET
    cluster, hostname = label_value(view.cluster), label_value(view.hostname)
    for rank in view.ranks:
        labels = _rank_labels(rank, cluster, hostname)
        readings = _readings(rank)
        size = len(readings) + 1
        if labels in seen:
            dropped[DUPLICATE] += size
        elif size > left:
            dropped[BUDGET] += size
        else:
            seen.add(labels)
            left -= size
            for metric, value in readings:
                families.add(metric, labels, value)
            families.add(RANK_INFO, (*labels, *_rank_facts(rank, hostname)), INFO_VALUE)
    return dropped


def _add_gpus(families: Families, view: NodeView) -> int:
    """Adds every GPU once; returns how many series of repeated ones it left out."""
    dropped = 0
    seen: set[tuple[str, ...]] = set()
    for gpu in view.gpus:
        labels = tuple(map(label_value, (view.cluster, view.hostname, gpu.gpu, gpu.uuid)))
        readings = [(metric, value) for metric in GPU_METRICS if (value := metric.read(gpu)) is not None]
        if labels in seen:
            dropped += len(readings)
            continue
        seen.add(labels)
        for metric, value in readings:
            families.add(metric, labels, value)
    return dropped


def _add_self(families: Families, view: NodeView) -> None:
    for source, worked in view.collect_success.items():
        if source != VIEW:
            families.add(COLLECT_SUCCESS, (label_value(source),), float(worked))
    for source, duration_s in view.collect_duration_s.items():
        if source != VIEW:
            families.add(COLLECT_DURATION, (label_value(source),), duration_s)
    for reason, count in view.rings_skipped.items():
        families.add(RINGS_SKIPPED, (label_value(reason),), count)
    families.add(RECORDS_LOST, (), view.records_lost)
    families.add(RECORDS_REFUSED, (), view.records_refused)
    for claim, count in view.claims_overruled.items():
        families.add(CLAIMS_OVERRULED, (label_value(claim),), count)


def _rank_labels(rank: RankView, cluster: str, hostname: str) -> tuple[str, ...]:
    who = rank.identity
    facts = (who.job_id, who.attempt, who.rank, who.local_rank)
    return (cluster, *map(label_value, facts), hostname, label_value(rank.gpu), label_value(rank.uuid))


def _rank_facts(rank: RankView, hostname: str) -> tuple[str, ...]:
    """In the order of ``RANK_INFO.labels``. ``node`` is where the agent runs, whatever a container calls itself."""
    who = rank.identity
    return (
        label_value(rank.process.pid),
        hostname,
        label_value(who.torch_version),
        label_value(who.alloc_conf),
        label_value(who.profile),
    )


def _readings(rank: RankView) -> list[tuple[ReadMetric[RankView], float]]:
    """Everything that is known of this rank."""
    return [
        (metric, value)
        for metric in RANK_METRICS
        if (rank.alive or metric.lingers) and (value := metric.read(rank)) is not None
    ]
