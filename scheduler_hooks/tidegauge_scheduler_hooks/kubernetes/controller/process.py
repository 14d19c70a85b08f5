"""The controller process: the leader works the queue; every replica serves the webhook and its health."""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping

from prometheus_client.metrics_core import Metric

from tidegauge.http.server import Handler, Response
from tidegauge_exporter.metrics.families import ServiceRegistry, exposition
from tidegauge_scheduler_hooks.kubernetes.client.leases import Leader
from tidegauge_scheduler_hooks.kubernetes.controller.cluster_state import ClusterState
from tidegauge_scheduler_hooks.kubernetes.controller.memory_checks import MemoryChecks
from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import (
    HealthServer,
    Samples,
    StepCounts,
    gauge,
    listening,
    text_page,
)
from tidegauge_scheduler_hooks.kubernetes.controller.options import Options
from tidegauge_scheduler_hooks.kubernetes.controller.policy_status import PolicyStatuses
from tidegauge_scheduler_hooks.kubernetes.controller.reconcile import Reconciler
from tidegauge_scheduler_hooks.kubernetes.controller.webhook import Webhook
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey, WorkQueue
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import OwnerReader
from tidegauge_scheduler_hooks.kubernetes.ports import ConflictError, KubeApi, Watches
from tidegauge_scheduler_hooks.ports import SchedulerError, TemporaryError

log = logging.getLogger(__name__)

WORKERS = 4
"""A workload that waits for its pods needs none; the client's rate limits the requests anyway."""
TICK_S = 1.0
DRAIN_S = 3.0
"""From "not ready" until the webhook closes: API servers may still send requests for this time."""
END_WITHIN_S = 9.0
"""A pod has 30 s by default; the next leader should not wait for them."""


class Controller:
    """One replica."""

    def __init__(
        self,
        options: Options,
        api: KubeApi,
        watches: Watches,
        *,
        quick_api: KubeApi,
        account: Mapping[str, str] | None = None,
    ) -> None:
        """Listen. ``quick_api``: for requests that a pod waits for, each ended within ``READ_WITHIN_S``. ``account``:
        this pod's own, which owns the Lease. Raises ``OSError`` if a port cannot be listened on."""
        self._watches = watches
        self._queue = WorkQueue(at_once=WORKERS - 1)
        self._counts = StepCounts()
        self._service = ServiceRegistry()
        self._failures: dict[WorkKey, str] = {}
        """The last logged error of each workload, so that it is logged once, not every minute."""
        self._ending = threading.Event()
        self._look_at_all = threading.Event()
        self._synced_unix_s: float | None = None
        pages: dict[str, Handler] = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        with listening("health", options.health_host, options.health_port):
            self._health = HealthServer(options.health_host, options.health_port, pages)
        identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"
        self._leader = Leader(
            api, options.namespace, options.lease, identity, self._look_at_all.set, self._queue.clear, owner=account
        )
        self._look = ClusterState(api, watches, options.kinds, on_key=self._add)
        self._stores = dict(self._look.stores)
        self._others: list[MemoryChecks | PolicyStatuses] = []
        """Those who work on other keys than workloads."""
        if options.memory_check is not None:
            checks = MemoryChecks(
                api, watches, options.memory_check, owner=self._look.by_uid, on_key=self._add, counts=self._counts
            )
            self._others.append(checks)
        if options.memory_policies:
            self._others.append(PolicyStatuses(api, watches, on_key=self._add, counts=self._counts))
        for other in self._others:
            self._stores |= other.stores
        self._webhook = None
        if options.webhook is not None:
            owners = OwnerReader(quick_api, self._look.kinds, self._look.stores)
            self._webhook = Webhook(options.webhook, options, api, watches, owners, leading=self._leading)
        self._reconciler = Reconciler(
            api, self._look, may_act=self._leading, counts=self._counts, marks=options.pod_conditions
        )
        self._workers = [
            threading.Thread(target=self._work, name=f"tidegauge-worker-{number}", daemon=True)
            for number in range(WORKERS)
        ]

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; returns within ``END_WITHIN_S`` after that."""
        self._health.start()
        if self._webhook is not None:
            self._webhook.start()
        for worker in self._workers:
            worker.start()
        self._leader.start()
        while not stop.wait(TICK_S):
            self._tick()
        self._end()

    def _tick(self) -> None:
        if self._look_at_all.is_set():
            self._look_at_all.clear()
            self._look.tell_all()
            for other in self._others:
                other.tell_all()
        if self._why_out_of_touch() is None:
            self._synced_unix_s = time.time()

    def _end(self) -> None:
        """End in order: not ready, no new step, release the Lease, and close the webhook when no more requests come."""
        log.info("shutting down: the Lease is released when the current steps are done")
        began_s = time.monotonic()
        self._ending.set()
        for worker in self._workers:
            worker.join(max(0.0, began_s + END_WITHIN_S / 2 - time.monotonic()))
        closing: list[Callable[[], None]] = [self._leader.stop, self._watches.close]
        if self._webhook is not None:
            closing.append(self._close_webhook)
        closers = [threading.Thread(target=close, daemon=True) for close in closing]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(max(0.0, began_s + END_WITHIN_S - time.monotonic()))
        self._health.stop()

    def _close_webhook(self) -> None:
        assert self._webhook is not None
        time.sleep(DRAIN_S)
        self._webhook.close()

    # Working

    def _leading(self) -> bool:
        return self._leader.leading and not self._ending.is_set()

    def _add(self, key: WorkKey) -> None:
        if self._leading():
            self._queue.add(key)

    def _work(self) -> None:
        while not self._ending.is_set():
            key = self._queue.take(TICK_S)
            if key is not None:
                self._work_on(key)

    def _work_on(self, key: WorkKey) -> None:
        if not self._leading():
            self._queue.done(key)
            return
        try:
            other = next((one for one in self._others if one.covers(key)), None)
            again_s = (other or self._reconciler).reconcile(key)
        except ConflictError as error:
            log.debug("%s changed in the meantime: %s", key, error)
            self._queue.failed(key)
        except SchedulerError as error:
            if self._failures.get(key) != str(error):
                self._failures[key] = str(error)
                log.warning("%s: %s; retrying", key, error)
            wait_s = error.retry_after_s if isinstance(error, TemporaryError) else 0.0
            self._queue.failed(key, retry_after_s=wait_s)
        except Exception:
            log.exception("%s: internal error; retrying", key)
            self._queue.failed(key)
        else:
            self._failures.pop(key, None)
            self._queue.done(key, again_s=again_s)

    # Telling

    def _why_out_of_touch(self) -> str | None:
        """Why the API server is out of reach at this moment."""
        if self._leader.problem is not None:
            return self._leader.problem
        return None if self._leader.holder is not None else "the Lease has not been read yet"

    def _healthz(self, _: object) -> Response:
        """Whether the process is alive. It is while the API server is away: a restart would not help."""
        dead = [worker.name for worker in self._workers if not worker.is_alive()]
        if not dead or self._ending.is_set():
            return text_page("ok\n")
        return text_page(f"ended: {', '.join(dead)}\n", good=False)

    def _readyz(self, _: object) -> Response:
        """Whether it can take requests. A kind that cannot be watched is a note, and keeps no pod from its probe."""
        against = [
            "ending" if self._ending.is_set() else None,
            self._why_out_of_touch(),
            self._webhook.upkeep.why_not_ready() if self._webhook is not None else None,
        ]
        reasons = [reason for reason in against if reason is not None]
        notes = [f"note: {store.problem}" for store in self._stores.values() if not store.synced and store.problem]
        return text_page("".join(f"{line}\n" for line in [*(reasons or ["ok"]), *notes]), good=not reasons)

    def _metrics(self, _: object) -> Response:
        page = exposition([*self._families(), *self._service.collect()], None)
        return Response(page.body, page.content_type)

    def _families(self) -> list[Metric]:
        synced: Samples = {(kind.kind,): float(store.synced) for kind, store in self._stores.items()}
        families = [
            gauge("leader", "1 while this replica acts.", float(self._leader.leading)),
            gauge("queue_length", "Workloads that are queued or being worked on.", float(len(self._queue))),
            gauge("last_sync_timestamp_seconds", "When the API server last answered.", self._synced_unix_s),
            gauge("watch_synced", "1 while the watch of a kind is up to date.", labels=("kind",), samples=synced),
            self._counts.family(),
        ]
        return families if self._webhook is None else [*families, self._webhook.family()]
