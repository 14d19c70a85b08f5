"""The collector of prometheus_client for one node, which makes families of a ``NodeView`` and keeps two counters.

A scrape never fails: without a view it has ``tidegauge_collect_success{source="view"} 0``, because an error page would
take every other series of the node with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tidegauge.core.views import NodeView, RankView
from tidegauge_exporter.metrics.families import INFO_VALUE, Metric, ReadMetric, Samples, empty_families, labels_of
from tidegauge_exporter.metrics.table import (
    CLAIMS_OVERRULED,
    COLLECT_DURATION,
    COLLECT_SUCCESS,
    DETECTOR_POINTS,
    GPU_LABELS,
    GPU_METRICS,
    GROUP_LABELS,
    NODE_METRICS,
    NODE_TABLE,
    POD_LABELS,
    POLL_DEFERRED,
    RANK_INFO,
    RANK_LABELS,
    RANK_METRICS,
    RANK_PROFILE,
    RECORDS_LOST,
    RECORDS_REFUSED,
    RINGS_SKIPPED,
    SAMPLES_PER_TARGET,
    SERIES_DROPPED,
)

log = logging.getLogger(__name__)

_FACTS = RANK_INFO.labels[len(RANK_LABELS) :]
_CATEGORY = RANK_PROFILE.labels[len(RANK_LABELS) :]

VIEW = "view"
"""The source that stands for the node's state as a whole, which the collector alone sets."""
DUPLICATE = "duplicate"
BUDGET = "budget"


class NodeCollector(Collector):
    """The metrics of a node. Thread-safe: each scrape works on its own view and samples.

    ``view`` returns the node's present state, quickly; ``clock`` measures its seconds. A program of the site may
    register the collector in its own registry.
    """

    def __init__(self, view: Callable[[], NodeView], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()
        self._view_failed = False

    def describe(self) -> Sequence[Family]:
        """All possible families, so that a scrape can ask for some by name (``name[]``)."""
        return empty_families(NODE_TABLE)

    def collect(self) -> Sequence[Family]:
        """The present families. Never raises."""
        began_s = self._clock()
        try:
            samples = self._samples(self._view())
        except Exception as error:
            self._note_view(error)
            # Without counters: some of them are the view's, and would seem to fall.
            samples = Samples(NODE_TABLE)
            samples.add(COLLECT_SUCCESS, (VIEW,), 0)
        else:
            self._note_view(None)
            samples.add(COLLECT_SUCCESS, (VIEW,), 1)
        samples.add(COLLECT_DURATION, (VIEW,), self._clock() - began_s)
        return samples.families()

    def _samples(self, view: NodeView) -> Samples:
        samples = Samples(NODE_TABLE)
        dropped = _add_ranks(samples, view)
        dropped[DUPLICATE] += _add_gpus(samples, view)
        _add_node(samples, view)
        _add_self(samples, view)
        with self._lock:
            self._dropped.update(dropped)
            totals = self._dropped.copy()
        totals.update(view.series_dropped)
        _add_counts(samples, SERIES_DROPPED, totals)
        return samples

    def _note_view(self, error: Exception | None) -> None:
        """Log one line when the view begins to fail, and one when it works again."""
        with self._lock:
            changed, self._view_failed = self._view_failed != (error is not None), error is not None
        if not changed:
            return
        if error is None:
            log.info("the node's state can be read again")
        else:
            log.error("the node's state cannot be read, scrapes say so until it can", exc_info=error)


def _add_ranks(samples: Samples, view: NodeView) -> Counter[str]:
    """Add every rank with labels of its own, within the target's budget. Returns the number of series left out, by
    reason.

    Of ranks with the same labels, the first by ``_precedence`` stays: a job can claim another's name.
    """
    dropped: Counter[str] = Counter()
    labelled = [(rank, _rank_labels(rank, view)) for rank in view.ranks]
    stays: dict[tuple[str, ...], RankView] = {}
    for rank, labels in sorted(labelled, key=lambda one: _precedence(one[0])):
        stays.setdefault(tuple(labels.values()), rank)
    left = SAMPLES_PER_TARGET
    for rank, labels in labelled:
        key = tuple(labels.values())
        readings, profile = _readings(rank), rank.profile_bytes if rank.alive else {}
        size = len(readings) + len(profile) + 1
        if stays.get(key) is not rank:
            dropped[DUPLICATE] += size
        elif size > left:
            dropped[BUDGET] += size
        else:
            del stays[key]
            left -= size
            for metric, value in readings:
                samples.add_to(labels, metric, value)
            for category, held in profile.items():
                samples.add_to({**labels, **labels_of(_CATEGORY, (category.value,))}, RANK_PROFILE, held)
            samples.add_to({**labels, **labels_of(_FACTS, _rank_facts(rank, view))}, RANK_INFO, INFO_VALUE)
    return dropped


def _precedence(rank: RankView) -> tuple[object, ...]:
    """The sort key of ranks that claim the same name; the first one keeps it: one that NVML lists on the GPU in the
    name, which nobody can forge, then the older process. A guessed name may be claimed before its owner starts."""
    listed = rank.alive and rank.nontorch_bytes is not None
    return not listed, rank.process.start_ticks


def _add_gpus(samples: Samples, view: NodeView) -> int:
    """Add every GPU once. Returns the number of series of repeated GPUs, which are left out."""
    dropped = 0
    seen: set[tuple[str, ...]] = set()
    for gpu in view.gpus:
        labels = labels_of(GPU_LABELS, (view.cluster, view.hostname, gpu.gpu, gpu.uuid))
        readings = [(metric, value) for metric in GPU_METRICS if (value := metric.read(gpu)) is not None]
        if tuple(labels.values()) in seen:
            dropped += len(readings)
            continue
        seen.add(tuple(labels.values()))
        for metric, value in readings:
            samples.add_to(labels, metric, value)
    return dropped


def _add_node(samples: Samples, view: NodeView) -> None:
    if view.memory is not None:
        for metric in NODE_METRICS:
            if (value := metric.read(view.memory)) is not None:
                samples.add(metric, (view.cluster, view.hostname), value)


def _add_self(samples: Samples, view: NodeView) -> None:
    for source, worked in view.collect_success.items():
        if source != VIEW:
            samples.add(COLLECT_SUCCESS, (source,), float(worked))
    for source, duration_s in view.collect_duration_s.items():
        if source != VIEW:
            samples.add(COLLECT_DURATION, (source,), duration_s)
    _add_counts(samples, RINGS_SKIPPED, view.rings_skipped)
    samples.add(RECORDS_LOST, (), view.records_lost)
    _add_counts(samples, POLL_DEFERRED, view.poll_deferred)
    samples.add(RECORDS_REFUSED, (), view.records_refused)
    samples.add(DETECTOR_POINTS, (), view.detector_points)
    _add_counts(samples, CLAIMS_OVERRULED, view.claims_overruled)


def _add_counts(samples: Samples, metric: Metric, counts: Mapping[str, int]) -> None:
    """Add the counts by the metric's label, and a 0 for each further value that is there from the start."""
    for value, count in {**dict.fromkeys(metric.from_start, 0), **counts}.items():
        samples.add(metric, (value,), count)


def _rank_labels(rank: RankView, view: NodeView) -> dict[str, str]:
    """``RANK_LABELS``; ``GROUP_LABELS`` if the job has several groups of ranks; ``POD_LABELS`` in a pod with a known
    name. ``hostname`` is the node's own, whatever a container calls itself."""
    who, place = rank.identity, rank.pod
    values = (view.cluster, who.job_id, who.attempt, who.rank, who.local_rank, view.hostname, rank.gpu, rank.uuid)
    labels = labels_of(RANK_LABELS, values)
    if rank.group:
        labels |= labels_of(GROUP_LABELS, (rank.group,))
    if place is not None and place.namespace is not None:
        labels |= labels_of(POD_LABELS, (place.namespace, place.pod, place.container))
    return labels


def _rank_facts(rank: RankView, view: NodeView) -> tuple[object, ...]:
    """The values of ``_FACTS``."""
    who = rank.identity
    return (rank.process.pid, view.hostname, who.torch_version, who.alloc_conf, who.profile)


def _readings(rank: RankView) -> list[tuple[ReadMetric[RankView], float]]:
    return [
        (metric, value)
        for metric in RANK_METRICS
        if (rank.alive or metric.lingers) and (value := metric.read(rank)) is not None
    ]
