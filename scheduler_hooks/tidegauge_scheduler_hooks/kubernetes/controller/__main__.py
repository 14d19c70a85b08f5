"""``python -m tidegauge_scheduler_hooks.kubernetes.controller``: see docs/kubernetes_controller.md."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from tidegauge.rate_limited_log import one_line_handler
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.leases import account_in
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.controller.options import SERVICE_ACCOUNT_TOKEN, Options, parse_options
from tidegauge_scheduler_hooks.kubernetes.controller.process import Controller
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import READ_WITHIN_S
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.kubernetes.ports import (
    LEASES,
    PODS,
    ForbiddenError,
    KubeApi,
    ObjectNotFoundError,
    Resource,
)
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError

log = logging.getLogger(__name__)


NOBODY = "metadata.name=tidegauge-preflight"
"""Selects nothing, so that the list needs the right alone."""


def check_usable(api: KubeApi, options: Options) -> None:
    """Raises ``TemporaryError`` (no answer) or ``PermanentError`` with the missing right and advice. A kind whose CRD
    is not installed is no error: it may come later."""
    with suppress(ObjectNotFoundError):  # whoever leads first makes it
        api.get(LEASES, options.namespace, options.lease)
    for namespace in options.namespaces or (None,):
        _check_list(api, namespace, PODS, "needed to see when pods have ended")
        for name in options.kinds:
            _check_list(api, namespace, KINDS[name].resource, f"grant it, or leave {name} out of --kinds")


def _check_list(api: KubeApi, namespace: str | None, resource: Resource, advice: str) -> None:
    try:
        api.list(resource, namespace, field_selector=NOBODY)
    except ObjectNotFoundError as error:
        log.info("%s is not watched until its CRD is installed: %s", resource.kind, error)
    except ForbiddenError as error:
        raise PermanentError(f"{error} ({advice})") from error


EXIT_ENVIRONMENT = 3
"""As in the other commands: a part of the environment is missing or refuses."""


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    options = parse_options(arguments)
    handler = one_line_handler("%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
    stop = threading.Event()
    # Process 1 of a container is deaf to signals that it has no handler for.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        controller = _open(options)
    except (SchedulerError, OSError) as error:
        print(f"tidegauge controller: not started: {error}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    controller.run(stop)
    return 0


def _open(options: Options) -> Controller:
    api = open_api(options.kubeconfig, qps=options.api_qps, burst=options.api_burst)
    check_usable(api, options)
    watches = ClientWatches(api, namespaces=options.namespaces)
    # With a rate of its own: a burst of pods must not wait for the controller's work, nor this for them.
    quick_api = open_api(options.kubeconfig, qps=50.0, burst=100, timeout_s=READ_WITHIN_S)
    account = account_in(SERVICE_ACCOUNT_TOKEN, options.namespace) if options.kubeconfig is None else None
    return Controller(options, api, watches, quick_api=quick_api, account=account)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
