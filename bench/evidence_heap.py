"""How long a holder search and the reading of facts hold training up in a process with many Python objects.

    PYTHONPATH=collector:tests python bench/evidence_heap.py [--objects 3000000]

An index of a data set, dicts with a list each, lies beside a list that keeps one tensor a step; the tensors are the
tests' fakes, so no GPU is needed. Each slice is timed as the training thread sees it. Prints JSON. Target: no slice
longer than 50 ms with 3,000,000 objects.
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


class Boundaries:
    """A training thread that does nothing but come to the end of its step. Slices are timed by the thread's own clock,
    so that other processes on the machine decide nothing."""

    def __init__(self) -> None:
        self.slices_s: list[float] = []

    def call(self, call: Callable[[], bool]) -> bool:
        began_s = time.thread_time()
        try:
            return call()
        finally:
            self.slices_s.append(time.thread_time() - began_s)


def beside(work: Callable[[Boundaries], Any]) -> dict[str, Any]:
    """Do ``work`` in a thread of its own, as the probe does."""
    boundaries, results = Boundaries(), []
    thread = threading.Thread(target=lambda: results.append(work(boundaries)))
    thread.start()
    thread.join()
    slices_ms = sorted((1e3 * one for one in boundaries.slices_s), reverse=True)
    return {
        "worst_slices_ms": [round(one, 1) for one in slices_ms[:5]],
        "slices": len(slices_ms),
        "whole_ms": round(sum(slices_ms)),
        "result": results[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--objects", type=int, default=3_000_000, help="Python objects in the index (default 3,000,000)"
    )
    args = parser.parse_args()
    index = [{"path": str(number), "label": [number]} for number in range(args.objects // OBJECTS_PER_SAMPLE)]
    optimizer, torch = Optimizer(), fake_tensor_torch()
    kept = [Tensor(FIRST + number * BLOCK, 8, 128) for number in range(30)]
    gc.collect()
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
