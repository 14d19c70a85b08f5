"""What the controller counts of itself, as families of prometheus_client."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX = "tidegauge_controller_"

Samples = Mapping[tuple[str, ...], float]
"""Numbers by the values of their labels."""


class StepCounts:
    """How steps ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()

    def count(self, step: str, outcome: str) -> None:
        with self._lock:
            self._counts[step, outcome] += 1

    def family(self) -> Metric:
        with self._lock:
            counts = dict(self._counts)
        name = f"{PREFIX}steps_total"
        return counter(name, "Steps on workloads, by outcome.", ("step", "outcome"), counts)


def counter(name: str, help_text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    """A counter, its values by those of its labels."""
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, number in sorted(samples.items()):
        family.add_metric(values, number)
    return family


def gauge(
    name: str, help_text: str, value: float | None = None, *, labels: tuple[str, ...] = (),
    samples: Samples | None = None,
) -> Metric:  # fmt: skip
    """A gauge: one value, none where it is not known, or values by those of its labels."""
    family = GaugeMetricFamily(PREFIX + name, help_text, labels=labels)
    for values, number in sorted((samples or ({} if value is None else {(): value})).items()):
        family.add_metric(values, number)
    return family
