"""The plugin: ``python -I -m tidegauge_scheduler_hooks.kubernetes.nri``, one on each node. Needs the runtime's socket
and a folder of the node; no network, no API server, nothing but the standard library."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from tidegauge import core
from tidegauge.core.text import one_line
from tidegauge.rate_limited_log import one_line_handler
from tidegauge_scheduler_hooks.kubernetes.injection.names import LEVELS
from tidegauge_scheduler_hooks.kubernetes.nri import messages
from tidegauge_scheduler_hooks.kubernetes.nri.adjustment import NriOptions, adjustment
from tidegauge_scheduler_hooks.kubernetes.nri.connection import Answer, keep_serving
from tidegauge_scheduler_hooks.kubernetes.nri.kept_probe import keep_probe
from tidegauge_scheduler_hooks.kubernetes.nri.messages import Adjustment

_logger = logging.getLogger(__name__)

SOCKET = Path("/var/run/nri/nri.sock")
"""Where containerd and CRI-O listen."""
STORE = Path("/var/lib/tidegauge/probe")


def answers(options: NriOptions, probe: Path) -> Answer:
    """What the plugin answers. Never raises: a refusal would fail the container."""

    def answer(method: str, request: bytes) -> bytes:
        if method == messages.CONFIGURE:
            return messages.configured()
        if method == messages.SYNCHRONIZE:
            _logger.info("the container runtime asks about new containers")
            return messages.synchronized(request)
        if method != messages.CREATE_CONTAINER:
            return b""
        try:
            pod, container = messages.created(request)
            found = adjustment(pod, container, options=options, probe=probe)
        except Exception:  # a defect here is no reason to keep a container from being made
            _logger.exception("a container is made without the probe")
            return b""
        if found != Adjustment():
            whose = one_line(f"{pod.namespace}/{pod.name}, container {container.name}", 300)
            _logger.info("%s: %s", whose, f"left alone: {found.left_alone}" if found.left_alone else "gets the probe")
        return messages.adjusted(found)

    return answer


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """``socket``, ``store``, ``namespace``, ``exclude``."""
    parser = argparse.ArgumentParser(description="Puts Tidegauge's probe into containers, by the container runtime.")
    parser.add_argument("--socket", type=Path, default=SOCKET, help="NRI's socket (default: %(default)s)")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of the probe, on the node as in here")
    parser.add_argument(
        "--namespace", type=_namespace, action="append", default=[], metavar="NAME=LEVEL",
        help="watch the GPUs of all its pods",
    )  # fmt: skip
    parser.add_argument("--exclude", action="append", default=[], metavar="NAME", help="never touch its pods")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    given = options(argv)
    logging.basicConfig(level=logging.INFO, handlers=[one_line_handler("%(asctime)s %(levelname)s %(message)s")])
    probe = keep_probe(Path(core.__file__).parents[1], given.store)
    keep_serving(given.socket, answers(NriOptions(dict(given.namespace), given.exclude), probe), time.sleep)


def _namespace(text: str) -> tuple[str, str]:
    name, _, level = text.partition("=")
    if not name or level not in LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=LEVEL; levels are {', '.join(LEVELS)}")
    return name, level


if __name__ == "__main__":
    main()
