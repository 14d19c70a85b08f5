"""Reference paths from a name to a tensor, step by step. Values only: they keep no object alive.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Optional

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
_OF_A_HOOK = frozenset({Via.CELL, Via.FUNCTION, Via.ITEM})
_NUMBER = re.compile(r"\d+")


class NumberedNames:
    """Names in one namespace that differ in a number only, and lead to objects of one type."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names = 0


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

    def is_like(self, other: RefStep) -> bool:
        """Whether both have the same ``key``."""
        return (
            self.via is other.via
            and self.leads_to == other.leads_to
            and (self.via is Via.ITEM or self.text == other.text)
            and self.where == other.where
        )


def numberless(text: str) -> str:
    """The text with a star for each number: ``Clusters.centroids_*``."""
    return _NUMBER.sub("*", text)


def is_numbered(text: str) -> bool:
    return _NUMBER.search(text) is not None


class RefPath:
    """A step after other steps; a linked chain, so that siblings share the steps before them.

    A path that comes to the same kind of reference again (``latest.previous.previous``) goes around: it is folded to
    where it came to it first, so that the objects of a chain have one folded path whatever their depth.
    """

    __slots__ = ("before", "bounded", "first", "hooked", "links", "step", "turns")

    def __init__(self, step: RefStep, before: Optional[RefPath] = None) -> None:
        self.step = step
        self.before = before
        self.hooked: bool = step.via is Via.HOOK or (before is not None and before.hooked and step.via in _OF_A_HOOK)
        """Whether it leads from a hook only through parts of the hook's function, not through attributes of its object,
        which others may use as well."""
        self.bounded: Optional[RefPath] = None
        """The path to the item that it leads through of the outermost bounded container; ``None``: there is none."""
        self.first: Optional[RefPath] = None
        """The first path with this reference, to which it is folded; ``None``: itself."""
        self.turns = 0
        """How often a reference came again."""
        self.links = 0
        """How many followed that came again, as far as the search has seen the chain that begins here."""
        if before is not None:
            self.bounded = before.bounded or (self if before.step.bound is not None else None)
            self.first = _first_like(step, before)
            self.turns = before.turns
            if self.first is not None:
                self.turns += 1
                self.first.links = max(self.first.links, self.turns - self.first.turns)

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
        while trail is not None and trail is not known:
            steps.append(trail.step)
            trail = trail.before
        trail = other
        for step in reversed(steps):
            trail = RefPath(step, trail)
        return trail


def _first_like(step: RefStep, before: RefPath) -> Optional[RefPath]:
    """The path that a step after ``before`` goes back to. The root is a name, and no link of a chain."""
    at: Optional[RefPath] = before.first or before
    for _ in range(MAX_CYCLE):
        if at is None or at.before is None:
            return None
        if at.step.is_like(step):
            return at
        at = at.before.first or at.before
    return None


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
