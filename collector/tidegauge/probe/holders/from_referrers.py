"""Backward search from tensors to what keeps them alive: referrers of referrers, until one has a name.

It serves tensors that no name in the user's program leads to: in a library's cache, reference cycles, thread-local
storage, C++. Each level is one pass in C over the whole heap. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.core.evidence.owners import CodeLine
from tidegauge.probe.holders import looks
from tidegauge.probe.holders.bounds import bound_of
from tidegauge.probe.holders.frames import local_values, running_frames
from tidegauge.probe.holders.links import ObjectLink, ObjectLinks
from tidegauge.probe.holders.pace import Work
from tidegauge.probe.holders.ref_paths import RefPath, RefStep, Via, trail_of

MAX_LEVELS = 14
MAX_OBJECTS_AT_ONCE = 8
"""Objects whose referrers one call looks for."""
MAX_REFERRERS = 400
"""Followed for one tensor."""
MAX_SKIPPED = 4
"""Objects between two that have a name: instance, its dict, ``_modules``, the part."""

_PLAIN = (types.CellType, types.FrameType, types.TracebackType)


class Origin(NamedTuple):
    """The search's result for one tensor."""

    trail: Optional[RefPath] = None
    """``None``: no Python object refers to it."""
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
        self._own: set[int] = set()

    def referred(self, candidates: list[Any]) -> list[bool]:
        """Tell for each candidate whether a Python object refers to it, in one look at the heap; false for ``None``, to
        which everything refers."""
        targets = [candidate for candidate in candidates if candidate is not None]
        self._own = {id(targets), id(candidates)}
        found = [one for one in _referrers(targets) if id(one) not in self._own and not self._is_own(one)]
        ids = {id(child) for one in found for child in gc.get_referents(one)}
        return [candidate is not None and id(candidate) in ids for candidate in candidates]

    def origin(self, tensor: Any) -> Work[Origin]:
        """Find what keeps ``tensor`` alive."""
        known = [_Known(tensor, -1)]
        index_of = {id(tensor): 0}
        references: dict[int, list[int]] = {}
        self._own = {id(known), id(index_of), id(references), id(self.__dict__)}
        try:
            return (yield from self._climb(known, index_of, references))
        finally:
            known.clear()

    def _climb(self, known: list[_Known], index_of: dict[int, int], references: dict[int, list[int]]) -> Work[Origin]:
        level = [0]
        for _ in range(MAX_LEVELS):
            following: list[int] = []
            for begin in range(0, len(level), MAX_OBJECTS_AT_ONCE):
                part = level[begin : begin + MAX_OBJECTS_AT_ONCE]
                root = self._root_among(known, part)
                if root is not None:
                    return Origin(self._trail(known, *root))
                yield True
                following += self._add_referrers(known, index_of, references, part)
            if not following or len(known) > MAX_REFERRERS:
                break
            level = following
        circle = _circle(references)
        if circle:
            return Origin(self._trail_to_circle(known, circle), self._circle_steps(known, circle))
        return Origin(self._trail(known, len(known) - 1, None) if len(known) > 1 else None)

    def _root_among(self, known: list[_Known], part: Sequence[int]) -> Optional[tuple[int, Optional[RefStep]]]:
        """The first of these that has a name by itself: its index, and the step to it where it is no namespace."""
        ids = {id(known[index].obj): index for index in part}
        for name, module in list(sys.modules.items()):
            names = looks.module_globals(module)
            if names is not None and id(names) in ids:
                return ids[id(names)], RefStep(Via.GLOBAL, "", looks.clean(name), None, _file_place(name))
        for running in running_frames():
            for name, value in local_values(running.frame):
                if id(value) in ids:
                    index, where = ids[id(value)], looks.code_place(running.frame.f_code)
                    kind, items = looks.type_name(value), looks.length(value)
                    step = RefStep(Via.LOCAL, looks.clean(name), kind, items, where, running.thread, bound_of(value))
                    return index, step
        for index in part:
            if index and looks.has_base(known[index].obj, type):
                return index, None
        return None

    def _add_referrers(
        self, known: list[_Known], index_of: dict[int, int], references: dict[int, list[int]], part: Sequence[int]
    ) -> list[int]:
        targets = [known[index].obj for index in part]
        ids = {id(target): index for target, index in zip(targets, part)}
        self._own |= {id(targets), id(ids), id(part)}
        found = _referrers(targets)
        added: list[int] = []
        self._own |= {id(found), id(added)}
        for referrer in found:
            if id(referrer) in self._own or self._is_own(referrer):
                continue
            for target in {ids[id(child)] for child in gc.get_referents(referrer) if id(child) in ids}:
                index = index_of.get(id(referrer))
                if index is None:
                    index = index_of[id(referrer)] = len(known)
                    known.append(_Known(referrer, target))
                    added.append(index)
                references.setdefault(target, []).append(index)
        found.clear()
        targets.clear()
        return added

    def _is_own(self, referrer: object) -> bool:
        if type(referrer) is types.FrameType:
            return looks.is_own(referrer.f_code.co_filename)
        if type(referrer) is types.GeneratorType:
            return looks.is_own(referrer.gi_code.co_filename)
        return looks.is_own_class(type(referrer))

    def _trail(self, known: list[_Known], index: int, root: Optional[RefStep]) -> RefPath:
        chain = []
        while index >= 0:
            chain.append(known[index].obj)
            index = known[index].child
        if root is None:
            first = chain[0]
            if looks.has_base(first, type):
                root = RefStep(Via.OTHER, looks.class_name(first), "class", None, looks.class_place(first))
            else:
                root = RefStep(Via.OTHER, "", looks.type_name(first), looks.length(first))
        steps = self._steps(chain)
        if root.via is Via.GLOBAL:  # the namespace and the name in it are one step
            name = next((str(key) for key, value in list(chain[0].items()) if value is chain[1]), "")
            return trail_of([steps[0]._replace(via=Via.GLOBAL, text=looks.clean(name), where=root.where), *steps[1:]])
        return trail_of([root, *steps])

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
        return self._trail(known, nearest, None)

    def _circle_steps(self, known: list[_Known], circle: Sequence[int]) -> tuple[RefStep, ...]:
        chain = [known[index].obj for index in reversed(circle)]
        begin = next((at for at, obj in enumerate(chain) if not _is_plain(obj)), 0)
        chain = [*chain[begin:], *chain[:begin], chain[begin]]
        return tuple(self._steps(chain))


def _referrers(targets: Sequence[Any]) -> list[Any]:
    """``gc.get_referrers``, without the tuple of its own arguments, which Python 3.13 finds as well."""
    mark = object()
    return [one for one in gc.get_referrers(*targets, mark) if not (type(one) is tuple and one and one[-1] is mark)]


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


def _file_place(module: str) -> Optional[CodeLine]:
    filename = looks.module_file(module)
    return None if filename is None else CodeLine(filename, 0, "")
