"""Backward search from tensors to what keeps them alive: referrers of referrers, among the youngest objects.

It serves tensors that no name leads to: in reference cycles, and in what C++ holds. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.probe.holders import looks
from tidegauge.probe.holders.bounds import bound_of
from tidegauge.probe.holders.links import ObjectLink, ObjectLinks
from tidegauge.probe.holders.ref_paths import RefPath, RefStep, Via, trail_of

MAX_LEVELS = 14
MAX_REFERRERS = 400
"""Followed for one tensor."""
MAX_SKIPPED = 4
"""Objects between two that have a name: instance, its dict, ``_modules``, the part."""

_PLAIN = (types.CellType, types.FrameType, types.TracebackType)


class Origin(NamedTuple):
    """The search's result for one tensor."""

    trail: Optional[RefPath] = None
    """``None``: no young Python object refers to it."""
    cycle: tuple[RefStep, ...] = ()
    """The references of an otherwise unreachable cycle that holds it."""


class _Known(NamedTuple):
    obj: Any
    child: int
    """Index of what it refers to, on the way to the tensor; -1: it is the tensor."""


class Backward:
    """Searches for the origins of tensors, one after the other."""

    def __init__(self, links: ObjectLinks) -> None:
        self._links = links

    def origin(self, tensor: Any, young: looks.YoungObjects) -> Origin:
        """Find what keeps ``tensor`` alive."""
        known = [_Known(tensor, -1)]
        index_of = {id(tensor): 0}
        references: dict[int, list[int]] = {}
        level = [0]
        for _ in range(MAX_LEVELS):
            for index in level:
                if index and looks.has_base(known[index].obj, type):
                    return Origin(self._trail(known, index))
            level = self._add_referrers(young, known, index_of, references, level)
            if not level or len(known) > MAX_REFERRERS:
                break
        circle = _circle(references)
        if circle:
            return Origin(self._trail_to_circle(known, circle), self._circle_steps(known, circle))
        return Origin(self._trail(known, len(known) - 1) if len(known) > 1 else None)

    def _add_referrers(
        self,
        young: looks.YoungObjects,
        known: list[_Known],
        index_of: dict[int, int],
        references: dict[int, list[int]],
        level: Sequence[int],
    ) -> list[int]:
        added: list[int] = []
        for target in level:
            for referrer in young.referrers(known[target].obj):
                if self._is_own(referrer):
                    continue
                index = index_of.get(id(referrer))
                if index is None:
                    if len(known) > MAX_REFERRERS:
                        return added
                    index = index_of[id(referrer)] = len(known)
                    known.append(_Known(referrer, target))
                    added.append(index)
                references.setdefault(target, []).append(index)
        return added

    def _is_own(self, referrer: object) -> bool:
        if type(referrer) is types.FrameType:
            return looks.is_own(referrer.f_code.co_filename)
        if type(referrer) is types.GeneratorType:
            return looks.is_own(referrer.gi_code.co_filename)
        return looks.is_own_class(type(referrer))

    def _trail(self, known: list[_Known], index: int) -> RefPath:
        chain = []
        while index >= 0:
            chain.append(known[index].obj)
            index = known[index].child
        first = chain[0]
        if looks.has_base(first, type):
            root = RefStep(Via.OTHER, looks.class_name(first), "class", None, looks.class_place(first))
        else:
            root = RefStep(Via.OTHER, "", looks.type_name(first), looks.length(first))
        return trail_of([root, *self._steps(chain)])

    def _steps(self, chain: Sequence[Any]) -> list[RefStep]:
        """Names for the references along a chain of objects; those that have none by themselves are passed over."""
        steps, at = [], 0
        while at < len(chain) - 1:
            link, to = self._named_link(chain, at)
            child = chain[to]
            bound = bound_of(child, link.most_items)
            steps.append(
                RefStep(link.via, link.text, looks.type_name(child), looks.length(child), link.where, None, bound)
            )
            at = to
        return steps

    def _named_link(self, chain: Sequence[Any], at: int) -> tuple[ObjectLink, int]:
        reach = {id(chain[to]): to for to in range(at + 1, min(at + 1 + MAX_SKIPPED, len(chain)))}
        best: Optional[tuple[ObjectLink, int]] = None
        for link in self._links.of(chain[at]):
            to = reach.get(id(link.child))
            if to is not None and (best is None or to < best[1]):
                best = (link, to)
        return best or (ObjectLink(Via.OTHER, "", chain[at + 1]), at + 1)

    def _trail_to_circle(self, known: list[_Known], circle: Sequence[int]) -> RefPath:
        """From the nearest object of the circle that has a name for what it refers to."""
        nearest = next((index for index in circle if not _is_plain(known[index].obj)), circle[0])
        return self._trail(known, nearest)

    def _circle_steps(self, known: list[_Known], circle: Sequence[int]) -> tuple[RefStep, ...]:
        chain = [known[index].obj for index in reversed(circle)]
        begin = next((at for at, obj in enumerate(chain) if not _is_plain(obj)), 0)
        chain = [*chain[begin:], *chain[:begin], chain[begin]]
        return tuple(self._steps(chain))


def _circle(references: dict[int, list[int]]) -> list[int]:
    """Indices of objects of which each is referred to by the next and the last by the first; the shortest that is
    found from the first objects that have one."""
    for start in references:
        came_from: dict[int, int] = {}
        level = [start]
        while level:
            following = []
            for index in level:
                for referrer in references.get(index, ()):
                    if referrer == start:
                        return _way(came_from, start, index)
                    if referrer not in came_from:
                        came_from[referrer] = index
                        following.append(referrer)
            level = following
    return []


def _way(came_from: dict[int, int], start: int, end: int) -> list[int]:
    way = [end]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return list(reversed(way))


def _is_plain(obj: object) -> bool:
    """Whether an object is a built-in container, cell, frame or traceback."""
    return looks.container_base(obj) is not None or any(type(obj) is cls for cls in _PLAIN)
