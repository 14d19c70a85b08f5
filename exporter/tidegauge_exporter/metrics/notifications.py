"""The notifier's ``/metrics``: what became of notifications, by receiver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tidegauge.http.server import Handler
from tidegauge_exporter.metrics.families import Metric, MetricKind, Samples, ServiceRegistry, empty_families
from tidegauge_exporter.metrics.server import for_readers, metrics_handler
from tidegauge_exporter.metrics.table import COLLECT_SUCCESS
from tidegauge_exporter.notify.deliveries import DeliveryOutcome
from tidegauge_exporter.notify.notifier import SinkFigures

STORIES = "stories"
"""The source of the notifier's incidents: the coordinator's API."""


def _of_sink(
    what: str, kind: MetricKind, text: str, labels: tuple[str, ...] = (), *, unit: str | None = None
) -> Metric:
    return Metric(f"tidegauge_{what}", kind, text, ("cluster", "sink", *labels), "notifier", unit)


NOTIFICATIONS = _of_sink(
    "notifications_total",
    MetricKind.COUNTER,
    "Attempts to send a notification, by what became of it: `delivered`, the receiver accepted it; `retried`, it "
    "failed for now; `refused`, a person has to correct something; `dropped`, it is never sent.",
    ("outcome",),
)
LAST_SUCCESS = _of_sink(
    "notification_last_success_timestamp_seconds",
    MetricKind.GAUGE,
    "Unix time of the last `delivered` notification; absent before the first one since the notifier's start.",
    unit="seconds",
)
SINK_WORKS = _of_sink(
    "notification_sink_works",
    MetricKind.GAUGE,
    "1 if the receiver works, 0 if it has the problem that `tidegauge status` shows; absent until it was tried.",
)
PENDING = _of_sink(
    "notifications_pending",
    MetricKind.GAUGE,
    "Incidents whose latest state has not been sent to the receiver completely.",
)
OLDEST_PENDING = _of_sink(
    "notifications_oldest_pending_seconds",
    MetricKind.GAUGE,
    "Time for which the first of them has waited; 0 without any.",
    unit="seconds",
)
SLACK_ACTIONS = Metric(
    "tidegauge_slack_actions_total",
    MetricKind.COUNTER,
    "Clicks on buttons of messages on Slack, by what was asked for and what became of it: `done`; `refused`, the "
    "person may not, or it made no sense; `failed`. Absent without `slack_app_token_file`.",
    ("cluster", "action", "outcome"),
    "notifier",
    None,
)
SLACK_CONNECTED = Metric(
    "tidegauge_slack_connected",
    MetricKind.GAUGE,
    "1 while clicks on Slack are heard (Socket Mode), else 0. Absent without `slack_app_token_file`.",
    ("cluster",),
    "notifier",
    None,
)
NOTIFIER_METRICS = (NOTIFICATIONS, LAST_SUCCESS, SINK_WORKS, PENDING, OLDEST_PENDING, SLACK_ACTIONS, SLACK_CONNECTED)
NOTIFIER_TABLE: tuple[Metric, ...] = (*NOTIFIER_METRICS, COLLECT_SUCCESS)
"""Rows of the notifier's ``/metrics`` in the order of exposition."""


class ClickFigures(NamedTuple):
    """Clicks on Slack in numbers."""

    clicks: Mapping[tuple[str, str], int]
    """By what was asked for and its outcome, from 0."""
    connected: bool


class NotifierFigures(NamedTuple):
    """The state of the notifier in numbers."""

    sinks: tuple[SinkFigures, ...]
    hears: bool
    """Whether the coordinator answered the last time."""
    clicks: ClickFigures | None = None
    """``None``: messages on Slack have no buttons."""


class NotifierCollector(Collector):
    """The metrics of the notifier. Thread-safe if ``read`` is, which is called once a scrape."""

    def __init__(self, read: Callable[[], NotifierFigures], *, cluster: str) -> None:
        self._read = read
        self._cluster = cluster

    def describe(self) -> Sequence[Family]:
        return empty_families(NOTIFIER_TABLE)

    def collect(self) -> Sequence[Family]:
        samples, figures = Samples(NOTIFIER_TABLE), self._read()
        for sink in figures.sinks:
            place = (self._cluster, sink.name)
            for outcome in DeliveryOutcome:
                samples.add(NOTIFICATIONS, (*place, outcome.value), sink.deliveries.totals.get(outcome, 0))
            if sink.deliveries.last_success_unix_s is not None:
                samples.add(LAST_SUCCESS, place, sink.deliveries.last_success_unix_s)
            if sink.works is not None:
                samples.add(SINK_WORKS, place, sink.works)
            samples.add(PENDING, place, sink.pending)
            samples.add(OLDEST_PENDING, place, sink.oldest_pending_s)
        if figures.clicks is not None:
            samples.add(SLACK_CONNECTED, (self._cluster,), figures.clicks.connected)
            for asked, count in sorted(figures.clicks.clicks.items()):
                samples.add(SLACK_ACTIONS, (self._cluster, *asked), count)
        samples.add(COLLECT_SUCCESS, (STORIES,), figures.hears)
        return samples.families()


def notifier_metrics(read: Callable[[], NotifierFigures], *, cluster: str) -> Handler:
    """The handler of the notifier's ``GET /metrics``, for viewers who may read metrics."""
    registry = ServiceRegistry()
    registry.register(NotifierCollector(read, cluster=cluster))
    return for_readers(metrics_handler(registry))
