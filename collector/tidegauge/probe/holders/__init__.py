"""Holder search: finds what holds the tensors in given allocator blocks, inside the process, between two steps.

This package finds and names holders; its callers decide when, and what to do with the result. It changes nothing and
leaves nothing behind. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tidegauge.core.evidence.rank_evidence import HolderSearch
from tidegauge.probe.holders.pace import AtBoundary
from tidegauge.probe.holders.search import ObjectSearch


def search_holders(
    torch: Any,
    blocks: Sequence[tuple[int, int]],
    *,
    most_s: float,
    pause: Callable[[], None],
    at_boundary: AtBoundary,
    clock_s: Callable[[], float] = time.perf_counter,
) -> HolderSearch:
    """Find what keeps the tensors in ``blocks`` alive, given as (address, bytes): some hundred at most.

    ``at_boundary`` does the search, in slices during which training stands still (``pace``). This thread
    only waits; ``pause`` is called between slices, and its exceptions end the search and pass through. ``most_s``
    bounds the whole, by ``clock_s``. Never called in a training thread.
    """
    return ObjectSearch(torch, blocks, most_s=most_s, pause=pause, at_boundary=at_boundary, clock_s=clock_s).run()
