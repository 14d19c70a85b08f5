"""The controller's pages ``/healthz``, ``/readyz`` and ``/metrics``: plain HTTP, nothing secret, read only."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidegauge.http.access import Refusal
from tidegauge.http.connections import ServerLimits
from tidegauge.http.server import TEXT_TYPE, App, Handler, HttpServer, Response, Routes, text_error
from tidegauge_scheduler_hooks.kubernetes.ports import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    ObjectNotFoundError,
)
from tidegauge_scheduler_hooks.ports import SchedulerError, TemporaryError

CONNECTIONS_AT_ONCE = 16
LIMITS = ServerLimits(CONNECTIONS_AT_ONCE, ask_within_s=5.0, whole_s=30.0, patience_s=0.05, queues=True)
"""A kubelet's probe sends its request at once, and gives up after 1 s by default."""


def text_page(text: str, *, good: bool = True) -> Response:
    """A page of text; a probe looks at the status, which says ``good``."""
    return Response(text.encode(errors="replace"), TEXT_TYPE, status=200 if good else 503)


class HealthServer(HttpServer):
    """Serves ``pages`` by path; each is made for every request, in the server's threads, so it must not block."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Handler]) -> None:
        """Bind the port. Raises ``OSError`` if it is taken or the host is not ours."""
        routes: Routes = {
            **{("GET", path): page for path, page in pages.items()},
            ("GET", None): lambda _: Refusal(404, f"not found: try {', '.join(pages)}"),
        }
        super().__init__(App(routes, LIMITS, "controller", text_error), host=host, port=port)
        self.bind()


@contextmanager
def listening(server: str, host: str, port: int) -> Iterator[None]:
    """An ``OSError`` within names the address, and the options by which one chooses another for that server."""
    try:
        yield
    except OSError as error:
        advice = f"End what listens there, or choose another by --{server}-host, --{server}-port"
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}. {advice}") from error


PREFIX = "tidegauge_controller_"

Samples = Mapping[tuple[str, ...], float]
"""Numbers by label values."""


class StepCounts:
    """Counts steps by outcome. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()

    def count(self, step: str, outcome: str) -> None:
        with self._lock:
            self._counts[step, outcome] += 1

    @contextmanager
    def counting(self, step: str) -> Iterator[None]:
        """Count one step by how it ends."""
        outcome = "defect"
        try:
            yield
            outcome = "done"
        except SchedulerError as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.count(step, outcome)

    def family(self) -> Metric:
        with self._lock:
            counts = dict(self._counts)
        name = f"{PREFIX}steps_total"
        return counter(name, "Steps on workloads, by outcome.", ("step", "outcome"), counts)


_OUTCOMES: tuple[tuple[type[SchedulerError], str], ...] = (
    (ConflictError, "conflict"),
    (ForbiddenError, "forbidden"),
    (InvalidError, "refused"),
    (ObjectNotFoundError, "gone"),
    (TemporaryError, "failed"),
)


def outcome_of(error: SchedulerError) -> str:
    return next((word for kind, word in _OUTCOMES if isinstance(error, kind)), "refused")


def counter(name: str, help_text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
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
