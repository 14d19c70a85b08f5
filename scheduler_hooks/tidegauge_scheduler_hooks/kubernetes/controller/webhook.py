"""The webhook as a part of this process: its server, and what looks after its certificate."""

from __future__ import annotations

import threading
from collections.abc import Callable

from prometheus_client.metrics_core import Metric

from tidegauge_scheduler_hooks.kubernetes.controller.options import Options, WebhookOptions
from tidegauge_scheduler_hooks.kubernetes.controller.own_metrics import Samples, counter
from tidegauge_scheduler_hooks.kubernetes.controller.upkeep import Upkeep
from tidegauge_scheduler_hooks.kubernetes.injection.options import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.review import Injector, ReviewCounts
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import WebhookServer
from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Watches

DRAIN_S = 5.0
"""How long questions under way may take once no more are taken."""
UPKEEP_S, FIRST_UPKEEP_S = 60.0, 2.0
"""Between two looks at the certificate and at the labels of namespaces; while something is amiss."""


class Webhook:
    """Serves from ``start`` to ``close``. ``leading``: this replica makes and renews the certificate."""

    def __init__(
        self, options: WebhookOptions, whole: Options, api: KubeApi, watches: Watches, *, leading: Callable[[], bool]
    ) -> None:
        """Raises ``OSError`` if it cannot listen."""
        self._upkeep = Upkeep(options, whole, api, watches, leading=leading)
        self._injector = Injector(
            InjectionOptions(
                probe_image=options.probe_image,
                shared_gpu_replicas=options.shared_gpu_replicas,
                probe_resources=options.probe_resources,
            ),
            self._upkeep.namespaces.labels,
        )
        self._server = WebhookServer(options.host, options.port, self._upkeep.certificate, self._injector.answer)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="tidegauge-webhook-upkeep", daemon=True)

    def start(self) -> None:
        self._server.start()
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._server.stop(drain_s=DRAIN_S)

    def why_not_ready(self) -> str | None:
        """For people; ``None``: it answers."""
        return self._upkeep.why_not_ready()

    def family(self) -> Metric:
        return reviews(self._injector.counts())

    def _keep_up(self) -> None:
        while True:
            self._upkeep.keep_up()
            if self._ending.wait(UPKEEP_S if self._upkeep.settled else FIRST_UPKEEP_S):
                return


def reviews(counts: ReviewCounts) -> Metric:
    """What became of the pods that the webhook was asked about."""
    samples: Samples = {("injected", ""): counts.injected, ("failed", ""): counts.failed}
    skipped: Samples = {("skipped", why): number for why, number in counts.skipped.items()}
    help_text = "Pods that the webhook reviewed."
    return counter("tidegauge_webhook_reviews_total", help_text, ("outcome", "reason"), {**samples, **skipped})
