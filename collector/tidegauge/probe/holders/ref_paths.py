"""Reference paths from a name to a tensor, step by step. Values only: they keep no object alive.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

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
    OTHER = "a way of which only the type is known"


_OF_A_HOOK = frozenset({Via.CELL, Via.FUNCTION, Via.ITEM})


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

    @property
    def key(self) -> tuple[object, ...]:
        """A key that the step shares with its siblings: all items of one container have the same."""
        return (self.via, "" if self.via is Via.ITEM else self.text, self.leads_to, self.where)


class RefPath:
    """A step after other steps; a linked chain, so that siblings share the steps before them."""

    __slots__ = ("before", "hooked", "step")

    def __init__(self, step: RefStep, before: Optional[RefPath] = None) -> None:
        self.step = step
        self.before = before
        self.hooked: bool = step.via is Via.HOOK or (before is not None and before.hooked and step.via in _OF_A_HOOK)
        """Whether it leads from a hook only through parts of the hook's function, not through attributes of its object,
        which others may use as well."""

    @property
    def steps(self) -> tuple[RefStep, ...]:
        """The steps from the root on."""
        found = []
        trail: Optional[RefPath] = self
        while trail is not None:
            found.append(trail.step)
            trail = trail.before
        return tuple(reversed(found))


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
