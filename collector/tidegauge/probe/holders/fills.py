"""Bytes of wanted blocks in each bounded container that a search passed through, by item.

Values only. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Optional

from tidegauge.core.evidence.rank_evidence import ContainerBound
from tidegauge.probe.holders.ref_paths import RefPath, Via


class _Fill:
    """One container."""

    def __init__(self) -> None:
        self.bytes_by_item: Counter[object] = Counter()
        self.items_by_way: dict[Via, set[object]] = defaultdict(set)
        """Of a cache, an answer and its arguments are two ways to one item."""
        self.is_counted = True
        """Whether it is known of each block which item holds it."""

    def add(self, item: RefPath, block_bytes: int, *, is_counted: bool) -> None:
        self.bytes_by_item[item] += block_bytes
        self.items_by_way[item.step.via].add(item)
        self.is_counted &= is_counted

    @property
    def items(self) -> int:
        return max(map(len, self.items_by_way.values()))


class Fills:
    """One search's bounded containers."""

    def __init__(self) -> None:
        self._fills: dict[object, dict[RefPath, _Fill]] = {}
        """By the place of a container, then by the way to it."""

    def add(self, trail: RefPath, block_bytes: int, *, is_own: bool) -> None:
        """Count a block; ``is_own``: the trail is that of its own tensor, not of one that is held alike."""
        found = _bounded(trail)
        if found is not None:
            container, item = found
            fill = self._fills.setdefault(_place(container), {}).setdefault(container, _Fill())
            is_item = item is trail  # then each tensor is an item, whichever of them the trail is of
            fill.add(item if is_own or not is_item else RefPath(item.step), block_bytes, is_counted=is_own or is_item)

    def bound_of(self, trail: RefPath) -> Optional[ContainerBound]:
        """The outermost bounded container on a path. ``None`` also where several of its kind may have been made
        during the search: those are no bound, more of them may come."""
        found = _bounded(trail)
        place = None if found is None else _place(found[0])
        fills = self._fills.get(place)
        if not fills or not all(fill.is_counted for fill in fills.values()):
            return None
        bounds = [way.step.bound for way in fills if way.step.bound is not None]
        found_items = [fill.items for fill in fills.values()]
        if len(fills) > 1 and any(bound.items <= count for bound, count in zip(bounds, found_items)):
            return None
        by_item = [size for fill in fills.values() for size in fill.bytes_by_item.values()]
        held_bytes, doubled = sum(by_item), len(by_item) > sum(found_items)
        return ContainerBound(
            number=list(self._fills).index(place),
            kind=bounds[0].kind,
            items=sum(bound.items for bound in bounds),
            most_items=sum(bound.most_items for bound in bounds),
            found_items=sum(found_items),
            held_bytes=held_bytes,
            least_item_bytes=min(by_item),
            # An answer and its arguments are told apart; together they are no larger than the largest of both.
            most_item_bytes=max(by_item) * (2 if doubled else 1),
        )


def _bounded(trail: RefPath) -> Optional[tuple[RefPath, RefPath]]:
    """The way to the outermost bounded container on a trail, and to the item of it that the trail leads through."""
    found: Optional[tuple[RefPath, RefPath]] = None
    below, at = trail, trail.before
    while at is not None:
        if at.step.bound is not None:
            found = at, below
        below, at = at, at.before
    return found


def _place(container: RefPath) -> object:
    return tuple(step.key for step in container.steps)
