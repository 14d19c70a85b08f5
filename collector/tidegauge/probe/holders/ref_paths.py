"""Reference paths from a name to a tensor, step by step. Values only: they keep no object alive.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple, Optional

from tidegauge.core.evidence.owners import CodeLine
from tidegauge.probe.holders.bounds import ItemBound


class Via(Enum):
    """The kind of a reference from one object to the next."""

    GLOBAL = "a module's variable"
    LOCAL = "a running function's variable"
    ATTRIBUTE = "an attribute"
    CLASS = "a class's attribute"
    ITEM = "an item of a container"
    FIELD = "a field of a named tuple"
    CELL = "a variable of a closure"
    CACHE = "an answer of functools.lru_cache"
    CACHE_KEY = "the arguments of an answer of functools.lru_cache"
    HOOK = "a hook"
    MODULE = "a part of a torch module"
    STATE = "an optimizer's state"
    EXCEPTION = "an exception's traceback, cause or context"
    KEPT_LOCAL = "a variable of a function that is suspended, or that an exception keeps"
    FUNCTION = "a part of a function or a method"
    GRAPH = "an autograd graph"
    CONTEXT = "an attribute of ctx of a torch.autograd.Function"
    OTHER = "a way of which only the type is known"


MAX_CYCLE = 6
"""References after which a chain may come to the same kind of reference again: iterator, tuple, iterator."""
MIN_LINKS = 4
"""Of a chain."""
ROWS_AT_ONCE = 8
"""Freed in one unit of work."""
_OF_A_HOOK = frozenset({Via.CELL, Via.FUNCTION, Via.ITEM})
_NUMBER = re.compile(r"\d+")


class NumberedNames(NamedTuple):
    """Names in one namespace that differ in a number only, and lead to objects of one type."""

    number: int
    """Of these names, among all such of one search."""
    names: int
    """How many there are, as far as the search has come."""


class RefStep(NamedTuple):
    """One reference on a path, and the object it leads to."""

    via: Via
    text: str
    """``losses``, ``Trainer.history``, ``['loss']``; empty for an item."""
    leads_to: str
    """Type of what it leads to."""
    items: Optional[int] = None
    """Its length, if it is a container."""
    where: Optional[CodeLine] = None
    """Code location of the name."""
    thread: Optional[str] = None
    """Of a local variable in another thread than the main one."""
    bound: Optional[ItemBound] = None
    """Of what it leads to."""
    family: Optional[NumberedNames] = None
    """Of its name, where that has a number."""
    place: int = 0
    """Of its name in the family, in the order of the namespace: the order in which names were added."""

    @property
    def key(self) -> tuple[object, ...]:
        """A key that the step shares with its siblings: all items of one container have the same."""
        return (self.via, "" if self.via is Via.ITEM else self.text, self.leads_to, self.where)

    @property
    def kin(self) -> tuple[object, ...]:
        """A key that the step shares with those whose names differ from its own in a number only."""
        return (self.via, "" if self.via is Via.ITEM else numberless(self.text), numberless(self.leads_to), self.where)


def numberless(text: str) -> str:
    """The text with a star for each number: ``Clusters.centroids_*``."""
    return _NUMBER.sub("*", text)


def is_numbered(text: str) -> bool:
    return _NUMBER.search(text) is not None


# Cells of a row. A row is referred to by the place of its first cell.
_VIA, _TEXT, _LEADS_TO, _ITEMS, _WHERE, _RARE, _BEFORE, _FIRST, _TURNS, _BOUNDED, _HOOKED, _LINKS = range(12)
_WIDTH = 12
_ITEM, _HOOK = Via.ITEM, Via.HOOK

Rare = tuple[Optional[str], Optional[str], int, int, Optional[int], int]
"""What few references have: a thread, a bound (kind, items, most items), and a number and place of numbered names."""


def rare(thread: Optional[str], bound: Optional[ItemBound], names: Optional[int] = None, place: int = 0) -> Rare:
    """A plain tuple of numbers and texts, which the collector soon stops to track."""
    return (thread, *(bound or (None, 0, 0)), names, place)


class Trails:
    """References that a search followed, one row each, after the reference that it follows.

    All in one list: two objects for each of 300,000 references, which the garbage collector has to track, bring
    forward its collections of all objects.
    """

    def __init__(self) -> None:
        self._cells: list[Any] = []
        self._names: list[int] = []
        """How many there are of each of the numbered names."""

    def add(
        self,
        via: Via,
        text: str,
        leads_to: str,
        items: Optional[int],
        where: Optional[CodeLine],
        rare: Optional[Rare],
        before: Optional[int],
    ) -> int:
        """The row of a reference that follows the one in the row ``before``."""
        cells = self._cells
        row = len(cells)
        hooked = via is _HOOK
        first: Optional[int] = None
        bounded: Optional[int] = None
        turns = 0
        if before is not None:
            hooked = hooked or (cells[before + _HOOKED] and via in _OF_A_HOOK)
            bounded = cells[before + _BOUNDED]
            if bounded is None and cells[before + _RARE] is not None and cells[before + _RARE][1] is not None:
                bounded = row
            turns = cells[before + _TURNS]
            first = self._first_like(via, text, leads_to, where, before)
            if first is not None:
                turns += 1
                links = turns - cells[first + _TURNS]
                if links > cells[first + _LINKS]:
                    cells[first + _LINKS] = links
        cells += (via, text, leads_to, items, where, rare, before, first, turns, bounded, hooked, 0)
        return row

    def _first_like(self, via: Via, text: str, leads_to: str, where: Optional[CodeLine], before: int) -> Optional[int]:
        """The row that a reference after ``before`` goes back to. The root is a name, and no link of a chain."""
        cells = self._cells
        at: int = before
        for _ in range(MAX_CYCLE):
            first = cells[at + _FIRST]
            if first is not None:
                at = first
            above: Optional[int] = cells[at + _BEFORE]
            if above is None:
                return None
            if (
                cells[at + _LEADS_TO] == leads_to
                and cells[at + _VIA] is via
                and (via is _ITEM or cells[at + _TEXT] == text)
                and cells[at + _WHERE] == where
            ):
                return at
            at = above
        return None

    def drop(self, row: int) -> None:
        """Take back the row that was added last."""
        del self._cells[row:]

    def new_names(self) -> int:
        """The number of further numbered names."""
        self._names.append(0)
        return len(self._names) - 1

    def add_name(self, names: int) -> int:
        """Count one more of them; its place among them."""
        self._names[names] += 1
        return self._names[names] - 1

    def path(self, row: int) -> RefPath:
        """The path that ends with the reference in this row."""
        path = RefPath.__new__(RefPath)
        path.trails, path.row = self, row
        return path

    def step(self, row: int) -> RefStep:
        via, text, leads_to, items, where, rare = self._cells[row : row + _BEFORE]
        if rare is None:
            return RefStep(via, text, leads_to, items, where)
        thread, kind, filled, most, names, place = rare
        bound = None if kind is None else ItemBound(kind, filled, most)
        family = None if names is None else NumberedNames(names, self._names[names])
        return RefStep(via, text, leads_to, items, where, thread, bound, family, place)

    def is_like(self, row: int, via: Via, text: str, leads_to: str) -> bool:
        """Whether the reference in this row is of this kind."""
        cells = self._cells
        return bool(cells[row] is via and cells[row + _TEXT] == text and cells[row + _LEADS_TO] == leads_to)

    def text(self, row: int) -> str:
        found: str = self._cells[row + _TEXT]
        return found

    def leads_to(self, row: int) -> str:
        found: str = self._cells[row + _LEADS_TO]
        return found

    def before(self, row: int) -> Optional[int]:
        found: Optional[int] = self._cells[row + _BEFORE]
        return found

    def first(self, row: int) -> Optional[int]:
        """The first row with this reference, to which it is folded; ``None``: itself."""
        found: Optional[int] = self._cells[row + _FIRST]
        return found

    def bounded(self, row: int) -> Optional[int]:
        found: Optional[int] = self._cells[row + _BOUNDED]
        return found

    def turns(self, row: int) -> int:
        found: int = self._cells[row + _TURNS]
        return found

    def links(self, row: int) -> int:
        found: int = self._cells[row + _LINKS]
        return found

    def hooked(self, row: int) -> bool:
        found: bool = self._cells[row + _HOOKED]
        return found

    def forget(self) -> Iterator[bool]:
        """Let go of all rows, some at a time: a million at once hold training up. Ends all paths."""
        while self._cells:
            del self._cells[-ROWS_AT_ONCE * _WIDTH :]
            yield False


class RefPath:
    """A step after other steps; a row of a table, so that siblings share the steps before them.

    A path that comes to the same kind of reference again (``latest.previous.previous``) goes around: it is folded to
    where it came to it first, so that the objects of a chain have one folded path whatever their depth.
    """

    __slots__ = ("row", "trails")

    def __init__(self, step: RefStep, before: Optional[RefPath] = None) -> None:
        self.trails: Trails = Trails() if before is None else before.trails
        names = None if step.family is None else step.family.number
        self.row: int = self.trails.add(
            *step[:5],
            rare(step.thread, step.bound, names, step.place),
            None if before is None else before.row,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefPath) and self.trails is other.trails and self.row == other.row

    def __hash__(self) -> int:
        return hash((id(self.trails), self.row))

    @property
    def step(self) -> RefStep:
        return self.trails.step(self.row)

    @property
    def before(self) -> Optional[RefPath]:
        return self._at(self.trails.before(self.row))

    @property
    def first(self) -> Optional[RefPath]:
        """The first path with this reference, to which it is folded; ``None``: itself."""
        return self._at(self.trails.first(self.row))

    @property
    def bounded(self) -> Optional[RefPath]:
        """The path to the item that it leads through of the outermost bounded container; ``None``: there is none."""
        return self._at(self.trails.bounded(self.row))

    @property
    def hooked(self) -> bool:
        """Whether it leads from a hook only through parts of the hook's function, not through attributes of its object,
        which others may use as well."""
        return self.trails.hooked(self.row)

    @property
    def turns(self) -> int:
        """How often a reference came again."""
        return self.trails.turns(self.row)

    @property
    def links(self) -> int:
        """How many followed that came again, as far as the search has seen the chain that begins here."""
        return self.trails.links(self.row)

    def _at(self, row: Optional[int]) -> Optional[RefPath]:
        return None if row is None else self.trails.path(row)

    @property
    def steps(self) -> tuple[RefStep, ...]:
        """The steps from the root on."""
        return tuple(path.step for path in self.paths)

    @property
    def paths(self) -> tuple[RefPath, ...]:
        """The paths to these steps."""
        found = []
        trail: Optional[RefPath] = self
        while trail is not None:
            found.append(trail)
            trail = trail.before
        return tuple(reversed(found))

    @property
    def folded(self) -> tuple[RefPath, ...]:
        """The paths to its steps, without those that only went around."""
        found = []
        trail: Optional[RefPath] = self
        while trail is not None:
            trail = trail.first or trail
            found.append(trail)
            trail = trail.before
        return tuple(reversed(found))

    def after(self, known: RefPath, other: RefPath) -> RefPath:
        """The same way with ``other`` in the place of ``known``, which it leads through."""
        steps = []
        trail: Optional[RefPath] = self
        while trail is not None and trail != known:
            steps.append(trail.step)
            trail = trail.before
        trail = other
        for step in reversed(steps):
            trail = RefPath(step, trail)
        return trail


def trail_of(steps: Iterable[RefStep]) -> RefPath:
    """The trail of these steps, of which there is one at least."""
    trail: Optional[RefPath] = None
    for step in steps:
        trail = RefPath(step, trail)
    assert trail is not None
    return trail


def passes(steps: Iterable[RefStep], *via: Via) -> bool:
    """Whether a path has a step of one of these kinds."""
    return any(step.via in via for step in steps)
