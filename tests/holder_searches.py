"""Holder searches among tensors that are not there. Standard library only."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fake_tensors import Tensor, fake_tensor_torch
from tidegauge.core.evidence.rank_evidence import HolderSearch
from tidegauge.probe.holders.pace import AtBoundary
from tidegauge.probe.holders.search import search_holders

BLOCK = 4096
FIRST = 1 << 32


def address(number: int) -> int:
    return FIRST + number * BLOCK


def tensor(number: int, **more: Any) -> Tensor:
    return Tensor(address(number), 8, 128, **more)


def at_once(call: Callable[[], bool]) -> bool:
    """A step boundary whenever one is wanted."""
    return call()


def ticking() -> Callable[[], float]:
    """A clock that goes on by a millisecond with each look at it: how busy the machine is decides nothing."""
    looks = itertools.count()
    return lambda: next(looks) / 1000


def search_here(
    blocks: Sequence[tuple[int, int]],
    *,
    most_s: float = 1e6,
    pause: Callable[[], None] = lambda: None,
    at_boundary: AtBoundary = at_once,
) -> HolderSearch:
    """What this thread finds out about blocks."""
    return search_holders(
        fake_tensor_torch(), blocks, most_s=most_s, pause=pause, at_boundary=at_boundary, clock_s=ticking()
    )


def searched(numbers: Sequence[int], **means: Any) -> HolderSearch:
    """What a thread beside this one finds out about the blocks of these numbers."""
    blocks = [(address(number), BLOCK) for number in numbers]
    found: list[HolderSearch] = []
    searcher = threading.Thread(target=lambda: found.append(search_here(blocks, **means)))
    searcher.start()
    searcher.join()
    return found[0]
