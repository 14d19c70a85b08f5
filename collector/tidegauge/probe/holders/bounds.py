"""Reads a container's maximum number of items where the interpreter itself enforces it, without running the job's code.

Read from C: ``collections.deque.maxlen``, ``functools.lru_cache``'s ``cache_info()``. ``queue.Queue`` is Python's, and
counts only if it is exactly that class: a subclass may behave otherwise. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import collections
import functools
import gc
import queue
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple, Optional

from tidegauge.probe.holders import looks

LRU_CACHE: type[Any] = type(functools.lru_cache(lambda: None))
MIN_EMPTY_SLOTS = 2
"""At the end of a list that was made in its full length; a single ``None`` may have been appended."""
MAX_COUNTED_ITEMS = 100_000
"""Longer lists are not searched for ``None``s, nor larger caches for their arguments."""

_maxlen = collections.deque.__dict__["maxlen"].__get__
_cache_info = LRU_CACHE.__dict__["cache_info"]
_CACHE_INFO = vars(functools)["_CacheInfo"]
_QUEUES = frozenset(map(id, (queue.Queue, queue.LifoQueue, queue.PriorityQueue)))


class ItemBound(NamedTuple):
    """A container with a maximum length."""

    kind: str
    """``deque``, ``lru_cache``, ``Queue``; ``list`` for one that was made in its full length and is filled in."""
    items: int
    """Current number of items; of a list, the filled ones."""
    most_items: int


def may_be_bounded(cls: type[Any], base: Optional[type[Any]]) -> bool:
    """Whether objects of ``cls`` may have a bound by themselves; ``base``: the built-in container that it derives
    from."""
    return cls is LRU_CACHE or base is collections.deque or base is list


def bound_of(obj: Any, most_items: Optional[int] = None) -> Optional[ItemBound]:
    """The bound of ``obj``; ``most_items``: that which its owner keeps to (``queue_bound``)."""
    if type(obj) is LRU_CACHE:
        info = cache_info(obj)
        if info is None or info.maxsize is None or info.currsize > MAX_COUNTED_ITEMS:
            return None
        return ItemBound("lru_cache", info.currsize, info.maxsize)
    base = looks.container_base(obj)
    if base is None:
        return None
    if most_items is not None:
        return ItemBound("Queue", base.__len__(obj), most_items)
    if base is collections.deque:
        maxlen = _maxlen(obj)
        return None if maxlen is None else ItemBound("deque", base.__len__(obj), maxlen)
    return _slots(obj) if base is list else None


def cache_info(cache: Any) -> Any:
    """``cache_info()`` of a ``functools.lru_cache``; ``None`` where that would make an object of a foreign class."""
    is_usual = any(child is _CACHE_INFO for child in reversed(gc.get_referents(cache)))  # its items come before
    return _cache_info(cache) if is_usual else None


def queue_bound(obj: object, attributes: Sequence[tuple[Any, Any]]) -> Optional[int]:
    """The ``maxsize`` of a queue of the standard library with these ``attributes``: its only container keeps to it."""
    if id(type(obj)) not in _QUEUES:
        return None
    most = next((value for key, value in attributes if type(key) is str and key == "maxsize"), None)
    return most if type(most) is int and most > 0 else None


def _slots(obj: Any) -> Optional[ItemBound]:
    """The bound of a list that ends in ``None``s: appended items would come behind these."""
    length = list.__len__(obj)
    if not MIN_EMPTY_SLOTS <= length <= MAX_COUNTED_ITEMS or list.__getitem__(obj, -1) is not None:
        return None
    empty = sum(1 for _ in takewhile(lambda item: item is None, list.__reversed__(obj)))
    filled = list.__len__(obj) - empty
    if empty < MIN_EMPTY_SLOTS or filled <= 0 or any(item is None for item in list.__getitem__(obj, slice(filled))):
        return None
    return ItemBound("list", filled, filled + empty)
