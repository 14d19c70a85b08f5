"""Asks a node's ``/metrics`` twice a second, on the node itself: what a cut link hides is there all the same."""

from __future__ import annotations

import re
import threading
import time

from chaos.network import enter_network
from chaos.nodes import METRICS_PORT, Node
from chaos.promises import Page
from metrics_pages import read_page

EVERY_S = 0.5
TIMEOUT_S = 5.0
"""That of a scrape every 5 s."""
WATCHED = re.compile(
    r"^((?:tidegauge_rank_(?:\w+_total|leak_state)|tidegauge_(?:detector_points|records_lost)_total)(?:\{[^}]*\})?)"
    r" ([0-9.e+]+)$",
    re.MULTILINE,
)


class NodeScrapes:
    """From ``start`` to ``close``."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pages: list[Page] = []
        """Of all answers, as they came."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"scrapes-{node.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        enter_network(self.node.host)
        url = f"http://{self.node.address}:{METRICS_PORT}/metrics"
        while not self._stop.wait(EVERY_S):
            text = read_page(url, timeout_s=TIMEOUT_S)
            if text is not None:
                self.pages.append(watched_of(text, time.monotonic()))


def watched_of(text: str, at_s: float) -> Page:
    return Page(at_s, {name: float(value) for name, value in WATCHED.findall(text)})
