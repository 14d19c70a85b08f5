"""Runs leaks of the zoo and looks for their holders in a thread beside each: python search_the_zoo.py OBJECTS NAME...

Prints one line of JSON for each. ``OBJECTS`` more lists make the heap larger.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from typing import Any, Optional

import torch

import leak_zoo
from integration.holders.boundaries import Boundaries
from tidegauge.core.wire import to_wire
from tidegauge.probe.evidence.rank_facts import read_facts
from tidegauge.probe.holders.search import search_holders

EARLY, LATE, LAST = 6, 40, 10_000


def live_blocks() -> dict[int, int]:
    """Address and bytes of what the allocator has given out."""
    found = {}
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found[address] = block["size"]
            address += block["size"]
    return found


class EnoughError(Exception):
    """The search is over."""


class Watch:
    """Looks for holders while the run goes on, and ends the run then.

    With ``stands_still`` the run waits for the search: of a tensor that each step replaces, only the first slice of a
    search can find the block, and how far that comes is a matter of how busy the machine is.
    """

    def __init__(self, *, stands_still: bool) -> None:
        self._stands_still = stands_still
        self.early: dict[int, int] = {}
        self.answer: dict[str, Any] = {}
        self._boundaries = Boundaries()
        self._searcher: Optional[threading.Thread] = None

    def on_step(self, step: int) -> None:
        if step == EARLY:
            self.early = live_blocks()
        elif step == LATE:
            wanted = [(address, size) for address, size in live_blocks().items() if address not in self.early]
            self._searcher = threading.Thread(target=self._search, args=(wanted[:300],))
            self._searcher.start()
        self._boundaries.on_step(first=step == LATE)
        if self._searcher is not None and self._stands_still:
            self._boundaries.stand_still(self._searcher)
        if self._searcher is not None and not self._searcher.is_alive():
            raise EnoughError

    def _search(self, wanted: list[tuple[int, int]]) -> None:
        means: dict[str, Any] = {"pause": lambda: time.sleep(0.001), "at_boundary": self._boundaries.call}
        before = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()
        found = search_holders(torch, wanted, most_s=60, **means)
        facts = read_facts(torch, **means)
        undisturbed = before == (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
        self.answer = {"search": to_wire(found), "facts": to_wire(facts), "undisturbed": undisturbed}


def main() -> None:
    more = [[] for _ in range(int(sys.argv[1]))]  # type: ignore[var-annotated]
    for name in sys.argv[2:]:
        watch = Watch(stands_still=name == "buffer_grows")
        try:
            leak_zoo.ZOO[name].run(leak_zoo.Run(LAST, watch.on_step))
        except EnoughError:
            print(json.dumps({**watch.answer, "name": name, "more": len(more)}), flush=True)
        gc.enable()  # the next is not to find what this one left
        gc.collect()


if __name__ == "__main__":
    main()
