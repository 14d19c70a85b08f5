"""Looks for holders again and again while a leak of the zoo trains: python stress.py SECONDS NAME...

Ends with exit code 0 and a line for each if the process has survived. For any GPU, real or fake.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
import threading
import time

import torch

import leak_zoo
from integration.holders.boundaries import Boundaries
from integration.holders.search_the_zoo import EnoughError, live_blocks
from tidegauge.probe.evidence.rank_facts import read_facts
from tidegauge.probe.holders.search import search_holders

MAX_STEPS = 100
"""Of one run: a graph of thousands of steps would make each search a long one."""
MAX_BLOCKS = 300
MAX_SEARCH_S = 20.0


class Stress:
    """One leak, run again and again until its time is over, and a thread that searches all the while."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._ends_s = time.monotonic() + seconds
        self._boundaries = Boundaries()
        self.searches = self.steps = 0

    def run(self) -> None:
        searcher = threading.Thread(target=self._search, daemon=True)
        searcher.start()
        while searcher.is_alive():
            try:
                leak_zoo.ZOO[self._name].run(leak_zoo.Run(MAX_STEPS, self._on_step))
            except EnoughError:
                searcher.join()
            gc.enable()
            gc.collect()

    def _on_step(self, step: int) -> None:
        self.steps += 1
        self._boundaries.on_step()
        if time.monotonic() > self._ends_s + 2 * MAX_SEARCH_S:
            raise EnoughError

    def _search(self) -> None:
        wanted: list[tuple[int, int]] = []

        def look_at_blocks() -> bool:
            wanted[:] = list(live_blocks().items())[-MAX_BLOCKS:]
            return True

        while time.monotonic() < self._ends_s:
            self._boundaries.call(look_at_blocks)
            search_holders(torch, wanted, most_s=MAX_SEARCH_S, pause=_no_pause, at_boundary=self._boundaries.call)
            read_facts(torch, pause=_no_pause, at_boundary=self._boundaries.call)
            self.searches += 1


def _no_pause() -> None:
    return


def main() -> None:
    faulthandler.enable()
    for name in sys.argv[2:]:
        stress = Stress(name, float(sys.argv[1]))
        stress.run()
        print(f"torch {torch.__version__}, {name}: {stress.searches} searches in {stress.steps} steps", flush=True)


if __name__ == "__main__":
    main()
