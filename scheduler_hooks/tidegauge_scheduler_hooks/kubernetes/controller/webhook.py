"""The webhook in the controller: its server, its certificate, what namespaces say, and the history of jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client.metrics_core import Metric

from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import Samples, counter, listening
from tidegauge_scheduler_hooks.kubernetes.controller.options import Options, WebhookOptions
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import (
    DirCertificate,
    SecretCertificate,
    service_names,
    trust,
)
from tidegauge_scheduler_hooks.kubernetes.injection.history import SubmissionHistory
from tidegauge_scheduler_hooks.kubernetes.injection.left_alone import OwnersToTell
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import OwnerReader
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import Injector, ServerCertificate, WebhookServer
from tidegauge_scheduler_hooks.kubernetes.ports import NAMESPACES, KubeApi, ObjectNotFoundError, Watches
from tidegauge_scheduler_hooks.ports import SchedulerError

log = logging.getLogger(__name__)


class WatchedNamespaces:
    """Labels and annotations of all namespaces, by a watch."""

    def __init__(self, watches: Watches) -> None:
        self._store = watches.store(NAMESPACES)

    def metadata(self, name: str) -> Mapping[str, Any] | None:
        found = self._store.get(None, name)
        return None if found is None else found["metadata"]

    def refresh(self) -> None:
        """Nothing to do: the watch refreshes them."""


class NamedNamespaces:
    """Labels and annotations of some namespaces, asked for by name: a role that is limited to them allows no watch."""

    def __init__(self, api: KubeApi, names: Sequence[str]) -> None:
        self._api = api
        self._names = tuple(names)
        self._found: Mapping[str, Mapping[str, Any]] = {}

    def metadata(self, name: str) -> Mapping[str, Any] | None:
        return self._found.get(name)

    def refresh(self) -> None:
        """Read them. Raises the errors of ``KubeApi.get``; what was read before then stays."""
        found = {}
        for name in self._names:
            with suppress(ObjectNotFoundError):  # nobody makes pods there either
                found[name] = self._api.get(NAMESPACES, None, name)["metadata"]
        self._found = found


class Upkeep:
    """Keeps certificate, namespaces and history current, and leaves the Events that are due. ``leading``: this replica
    makes and renews a certificate in a Secret."""

    def __init__(
        self, options: WebhookOptions, whole: Options, api: KubeApi, watches: Watches, *, leading: Callable[[], bool]
    ) -> None:
        self.namespaces: WatchedNamespaces | NamedNamespaces = (
            WatchedNamespaces(watches) if whole.namespaces is None else NamedNamespaces(api, whole.namespaces)
        )
        self.history = SubmissionHistory(options.history_file)
        self.left_alone = OwnersToTell()
        self._api = api
        self._leading = leading
        self._configuration = options.configuration
        self._secret: SecretCertificate | None = None
        if options.certificate_secret is not None:
            names = service_names(options.service_name, whole.namespace)
            self._secret = SecretCertificate(api, whole.namespace, options.certificate_secret, names)
        folder = options.certificate_dir
        certificate = self._secret if folder is None else DirCertificate(folder)
        assert certificate is not None, "options have exactly one source of the certificate"
        self.certificate: ServerCertificate = certificate
        self._problem: str | None = None

    def why_not_ready(self) -> str | None:
        """Why there is no certificate, for people; ``None``: there is one."""
        if self.certificate.current() is not None:
            return None
        return f"the webhook has no certificate: {self._problem or 'not loaded yet'}"

    @property
    def settled(self) -> bool:
        """Whether the next round can wait."""
        return self._problem is None and self.why_not_ready() is None

    def keep_up(self) -> None:
        """Maintain everything once; failures are logged, and tried again in the next round."""
        chores = (self._keep_certificate, self.namespaces.refresh, self.history.refresh, self._tell)
        tried = [_tried(chore) for chore in chores]
        found = "; ".join(problem for problem in tried if problem is not None) or None
        if found is not None and found != self._problem:
            log.warning("the webhook cannot be maintained: %s", found)
        self._problem = found

    def _keep_certificate(self) -> None:
        if self._secret is None:
            return
        if not self._leading():
            self._secret.refresh()
            return
        self._secret.maintain()
        trusted = self._secret.trusted
        if self._configuration is not None and trusted is not None and trust(self._api, self._configuration, trusted):
            log.info("%s now trusts the webhook's certificate", self._configuration)

    def _tell(self) -> None:
        self.left_alone.tell(self._api)


def _tried(chore: Callable[[], None]) -> str | None:
    """Why it failed, for people."""
    try:
        chore()
    except SchedulerError as error:
        return str(error)
    except Exception as error:  # the thread is the only one that renews the certificate
        log.exception("internal error in maintaining the webhook; retrying")
        return f"internal error: {error!r}"
    return None


DRAIN_S = 5.0
"""The time for requests in progress once no more are accepted."""
UPKEEP_S, FIRST_UPKEEP_S = 60.0, 2.0
"""Intervals of the upkeep: usually, and while there is a problem."""


class Webhook:
    """Serves from ``start`` to ``close``. ``owners`` reads the workloads of new pods. ``leading``: this replica makes
    and renews the certificate."""

    def __init__(
        self,
        options: WebhookOptions,
        whole: Options,
        api: KubeApi,
        watches: Watches,
        owners: OwnerReader,
        *,
        leading: Callable[[], bool],
    ) -> None:
        """Listen. Raises ``OSError`` if it cannot."""
        self.upkeep = Upkeep(options, whole, api, watches, leading=leading)
        self._injector = Injector(
            options.injection,
            self.upkeep.namespaces.metadata,
            self.upkeep.history.sentence,
            owners.settings_of,
            self.upkeep.left_alone.note,
        )
        with listening("webhook", options.host, options.port):
            self._server = WebhookServer(options.host, options.port, self.upkeep.certificate, self._injector.answer)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="tidegauge-webhook-upkeep", daemon=True)

    def start(self) -> None:
        self._server.start()
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._server.stop(drain_s=DRAIN_S)

    def family(self) -> Metric:
        return reviews(self._injector.counts())

    def _keep_up(self) -> None:
        while True:
            self.upkeep.keep_up()
            if self._ending.wait(UPKEEP_S if self.upkeep.settled else FIRST_UPKEEP_S):
                return


def reviews(counts: Samples) -> Metric:
    name, help_text = "tidegauge_webhook_reviews_total", "Pods that the webhook reviewed."
    return counter(name, help_text, ("outcome", "reason"), counts)
