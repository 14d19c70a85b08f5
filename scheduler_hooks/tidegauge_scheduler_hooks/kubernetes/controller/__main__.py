"""``python -m tidegauge_scheduler_hooks.kubernetes.controller``: see docs/kubernetes_controller.md."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Sequence

from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.controller.options import Options, parse_options
from tidegauge_scheduler_hooks.kubernetes.controller.preflight import check_usable
from tidegauge_scheduler_hooks.kubernetes.controller.process import Controller
from tidegauge_scheduler_hooks.ports import SchedulerError

EXIT_ENVIRONMENT = 3
"""As the other commands: what it needs is not there, or does not let it."""


def main(arguments: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT; the exit code."""
    options = parse_options(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
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
    api = open_api(options.kubeconfig)
    check_usable(api, options)
    return Controller(options, api, ClientWatches(api, namespaces=options.namespaces))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
