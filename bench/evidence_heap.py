"""How long a holder search and the reading of facts hold training up in a process with many Python objects.

    PYTHONPATH=collector:tests python bench/evidence_heap.py [--objects 3000000] [--shard 1000]

An index of a data set, dicts with a list each, lies beside a list that keeps one tensor a step; the tensors are the
tests' fakes, so no GPU is needed. Each slice is timed as the training thread sees it. Between two, a step makes some
thousand objects and drops them: so Python's collector runs as in a job, with its usual thresholds. The objects that it
tracks are counted before, at the end of each slice (the most) and after, and its collections are counted and timed.
Prints JSON. Target: no slice longer than 50 ms with 3,000,000 objects.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fake_tensors import Optimizer, Tensor, fake_tensor_torch
from tidegauge.probe.evidence.rank_facts import read_facts
from tidegauge.probe.holders.search import search_holders

MAX_SLICE_S = 0.050
FIRST, BLOCK = 1 << 32, 4096
OBJECTS_PER_SAMPLE = 2


STEP_LISTS, LIST_OBJECTS = 6, 800
"""Made and dropped in a step, one list after the other: a collection of the youngest for each."""
OLDEST = 2
"""Generation."""


class Boundaries:
    """A training thread that makes some objects in a step and comes to its end. Slices are timed by the thread's own
    clock, so that other processes on the machine decide nothing."""

    def __init__(self) -> None:
        self.slices_s: list[float] = []
        self.tracked = [len(gc.get_objects())]

    def call(self, call: Callable[[], bool]) -> bool:
        for _ in range(STEP_LISTS):
            made = [[number] for number in range(LIST_OBJECTS)]
            del made
        began_s = time.thread_time()
        try:
            return call()
        finally:
            self.slices_s.append(time.thread_time() - began_s)
            self.tracked.append(len(gc.get_objects()))


class Collections:
    """Those of Python's garbage collector, by generation."""

    def __init__(self) -> None:
        self.took_s: list[tuple[int, float]] = []
        self._began_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            self.took_s.append((info["generation"], time.thread_time() - self._began_s))

    def since(self, generation: int) -> dict[str, float]:
        """Of this generation or an older one."""
        took_s = [one_s for of, one_s in self.took_s if of >= generation]
        return {"count": len(took_s), "ms": round(1e3 * sum(took_s), 1)}


def beside(work: Callable[[Boundaries], Any]) -> dict[str, Any]:
    """Do ``work`` in a thread of its own, as the probe does."""
    gc.collect()
    boundaries, collections, results = Boundaries(), Collections(), []
    gc.callbacks.append(collections)
    thread = threading.Thread(target=lambda: results.append(work(boundaries)))
    thread.start()
    thread.join()
    gc.callbacks.remove(collections)
    slices_ms = sorted((1e3 * one for one in boundaries.slices_s), reverse=True)
    before, most = boundaries.tracked[0], max(boundaries.tracked)
    return {
        "worst_slices_ms": [round(one, 1) for one in slices_ms[:5]],
        "slices": len(slices_ms),
        "whole_ms": round(sum(slices_ms)),
        "tracked_objects": {"before": before, "most": most, "after": len(gc.get_objects())},
        "collections_of_all": collections.since(OLDEST),
        "collections": collections.since(0),
        "result": results[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--objects", type=int, default=3_000_000, help="Python objects in the index (default 3,000,000)"
    )
    parser.add_argument(
        "--shard",
        type=int,
        metavar="SAMPLES",
        help="index of lists of so many samples: of one list, 5,000 are followed",
    )
    args = parser.parse_args()
    samples = [{"path": str(number), "label": [number]} for number in range(args.objects // OBJECTS_PER_SAMPLE)]
    shard = args.shard or len(samples)
    index = [samples[at : at + shard] for at in range(0, len(samples), shard)]
    del samples
    optimizer, torch = Optimizer(), fake_tensor_torch()
    kept = [Tensor(FIRST + number * BLOCK, 8, 128) for number in range(30)]
    named = [(FIRST + number * BLOCK, BLOCK) for number in range(30)]
    cases: dict[str, Callable[[Boundaries], Any]] = {
        "facts": lambda at: read_facts(torch, pause=lambda: None, at_boundary=at.call).optimizers,
        "a list holds it": lambda at: _search(torch, named, at),
        "nothing holds it": lambda at: _search(torch, [(FIRST * 2, BLOCK)], at),
    }
    found = {name: beside(case) for name, case in cases.items()}
    worst_ms = max(one["worst_slices_ms"][0] for one in found.values())
    about = {"python": platform.python_version(), "objects": len(gc.get_objects()), "blocks": sys.getallocatedblocks()}
    print(json.dumps({**about, **found, "met": worst_ms <= 1e3 * MAX_SLICE_S}, indent=2))
    return 0 if worst_ms <= 1e3 * MAX_SLICE_S and index and optimizer and kept else 1


def _search(torch: Any, blocks: list[tuple[int, int]], at: Boundaries) -> dict[str, Any]:
    search = search_holders(torch, blocks, pause=lambda: None, at_boundary=at.call)
    return {"holder": search.holders[0].path, "objects": search.objects, "problem": search.problem}


if __name__ == "__main__":
    sys.exit(main())
