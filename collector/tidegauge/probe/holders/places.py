"""Where an object was met that no weak reference can be made to: so a later slice finds it again, or what has replaced
it, and nothing keeps it alive meanwhile. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple, Optional

from tidegauge.core.evidence.owners import CodeLine
from tidegauge.probe.holders import looks
from tidegauge.probe.holders.frames import local_values, running_frames
from tidegauge.probe.holders.links import ObjectLink, ObjectLinks, global_hooks
from tidegauge.probe.holders.ref_paths import Trails

MAX_DEPTH = 2_000
"""Of containers in containers that are found again, at some 3 us each. What is deeper is kept until it is read: a chain
of so many tuples is not what a step makes."""


class Place(NamedTuple):
    """The way to an object: a reference of another one, or something that gives it."""

    anchor: Optional[Callable[[], Any]]
    """A weak reference, or a name of the program; ``None``: it is ``number`` of ``owner``'s references."""
    owner: Optional[Place] = None
    begin: int = 0
    """Where these were read from (``ObjectLinks.some``)."""
    number: int = 0
    depth: int = 0

    def child(self, begin: int, number: int) -> Place:
        """That of one of its references."""
        return Place(None, self, begin, number, self.depth + 1)


def local_variable(name: str, where: CodeLine, thread: Optional[str]) -> Any:
    """Of a running function."""
    for running in running_frames():
        if running.thread == thread and looks.code_place(running.frame.f_code) == where:
            return dict(local_values(running.frame)).get(name)
    return None


def global_variable(module: str, name: str) -> Any:
    return (looks.module_globals(sys.modules.get(module)) or {}).get(name)


def global_hook(number: int) -> Any:
    """One of those that torch calls for all modules or optimizers."""
    return next((link.child for link in islice(global_hooks(), number, None)), None)


def last_exception() -> Any:
    """The one that ended the last command of an interactive interpreter."""
    return getattr(sys, "last_exc", getattr(sys, "last_value", None))


class ObjectPlaces:
    """Finds objects again, by the ways in ``trails`` that led to them."""

    def __init__(self, links: ObjectLinks, trails: Trails) -> None:
        self._links = links
        self._trails = trails

    def found(self, place: Place, row: int) -> Any:
        """The object of its kind that is there now; ``None``: there is none. Raises nothing."""
        ways = []
        while place.owner is not None:
            ways.append((place, row))
            before = self._trails.before(row)
            if before is None:
                return None
            place, row = place.owner, before
        assert place.anchor is not None
        try:
            obj = place.anchor()
            if obj is None or looks.type_name(obj) != self._trails.leads_to(row):
                return None
            for way, row_of_way in reversed(ways):
                obj = self._child(obj, way, row_of_way)
        except Exception:
            return None
        return obj

    def _child(self, obj: Any, way: Place, row: int) -> Any:
        if obj is None:
            return None
        likely = self._links.one(obj, way.begin, way.number)
        if likely is not None and self._is_like(likely, row):
            return likely.child
        if not self._trails.text(row):  # an item, and any other one may be another
            return None
        links, _ = self._links.some(obj, way.begin)
        return next((link.child for link in links if self._is_like(link, row)), None)

    def _is_like(self, link: ObjectLink, row: int) -> bool:
        return self._trails.is_like(row, link.via, link.text, looks.type_name(link.child))
