"""Forward search from a program's names to its tensors: breadth first, from variables of running functions and modules.

It finds what a person would name first: a list in ``main``, an attribute of the trainer, a hook of a layer. It does
not read the whole heap, works beside ``gc.freeze``, and can be interrupted at any time. What a training step makes dies
with it meanwhile: objects wait as weak references; containers, which have none, are followed before training goes on,
or found again in a later slice where that is too much. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import Context, copy_context
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Optional, Protocol

from tidegauge.core.evidence.owners import CodeLine, is_library
from tidegauge.probe.code_roots import known_roots
from tidegauge.probe.holders import looks
from tidegauge.probe.holders.bounds import bound_of, may_be_bounded
from tidegauge.probe.holders.frames import local_values, running_frames
from tidegauge.probe.holders.links import (
    ObjectLink,
    ObjectLinks,
    global_hooks,
    leads_on,
    tensor_attributes,
    tensor_hooks,
)
from tidegauge.probe.holders.pace import Work
from tidegauge.probe.holders.places import (
    MAX_DEPTH,
    ObjectPlaces,
    Place,
    global_hook,
    global_variable,
    last_exception,
    local_variable,
)
from tidegauge.probe.holders.ref_paths import RefPath, Trails, Via, is_numbered, numberless, rare
from tidegauge.probe.holders.tensors import Tensors

MAX_OBJECTS = 300_000
"""Followed. A million small records of a data set are no place to look for tensors first."""
MAX_CHILDREN = 5_000
"""Of one object that are followed further; all of its tensors are looked at."""
MAX_AT_ONCE = 500
"""Entries of a container that is followed before training goes on: 2 us each, and 15 us for a tensor that is wanted."""
ENTRIES_AT_FIRST = 16
"""Of a container, read at first. What they lead to is followed with them: so many more are read as fit."""
MAX_ENTRIES = 512
"""The same where they lead to little."""
MAX_UNITS_AT_ONCE = 1_500
"""Of work, in all containers that are followed before training goes on."""
MAX_SHORT = 32
"""Entries of a container that is followed before longer ones: a step's batch is one, a list of records is not."""


_Families = dict[tuple[str, str], int]
"""Numbered names (``Trails``) of one namespace, by the name without its number and the type of what it leads to."""


class _Kind(NamedTuple):
    name: str
    base: Optional[type[Any]]
    """The built-in container that it derives from."""
    is_class: bool
    """Whether its objects are classes: of a library's, the parts are not the user's."""
    is_own: bool
    may_be_bounded: bool
    is_noted: bool


class _Visit:
    """An object without weak references that is followed, as far as it was."""

    __slots__ = ("begin", "children", "entries", "families", "obj", "place", "row")

    def __init__(self, obj: Any, row: int, place: Place) -> None:
        self.obj = obj
        """``None`` where it is found again by its place."""
        self.row = row
        self.place = place
        self.begin: Optional[int] = 0
        """Where its further references begin (``ObjectLinks.some``); ``None``: there are none."""
        self.entries = ENTRIES_AT_FIRST
        """To read next."""
        self.children = 0
        """Those that are to be followed."""
        self.families: _Families = {}

    def let_go(self) -> None:
        """Training goes on."""
        if self.begin is None or self.place.depth < MAX_DEPTH:
            self.obj = None


class FindSink(Protocol):
    """Receives what the search meets."""

    def tensor(self, tensor: Any, trail: RefPath, /) -> bool:
        """Note a tensor; whether it is on a device and was not met before."""

    def graph(self, node: Any, name: str, trail: RefPath, /) -> Work[tuple[int, Sequence[Any]]]:
        """Walk the graph of a tensor called ``name``: how many nodes were walked since the last yield, and the Python
        nodes in it."""

    def second_way(self, known: RefPath, other: RefPath, /) -> None:
        """Note that ``other`` leads to the same object as ``known``: from a hook, or from further up a chain."""

    def is_noted(self, cls: type, /) -> bool:
        """Whether objects of this class are wanted by ``note``."""

    def note(self, obj: Any, /) -> None:
        """Note such an object, when it is met first."""


class Forward:
    """One pass of the forward search."""

    def __init__(
        self, tensors: Tensors, links: ObjectLinks, finds: FindSink, *, most_objects: int = MAX_OBJECTS
    ) -> None:
        self._tensors = tensors
        self._links = links
        self._finds = finds
        self._most_objects = most_objects
        self.trails = Trails()
        """The ways to all objects that were met; those that ``finds`` was told are in it."""
        self._graphs: deque[tuple[weakref.ref[Any], int]] = deque()
        """Tensors whose graphs are to be walked, with their rows of ``trails``."""
        self._attributes: deque[tuple[weakref.ref[Any], str, int]] = deque()
        """Tensors that are attributes of tensors, with the attribute's name and the row of its owner."""
        # In columns: so many new objects would set off a collection of all of the job's.
        self._queue: deque[Any] = deque()
        """Objects to follow: weak references, and visits of containers that are too much to follow at once."""
        self._rows: deque[int] = deque()
        """Of the queue's objects."""
        self._fleeting: tuple[deque[_Visit], deque[_Visit]] = deque(), deque()
        """Objects without weak references, to follow before training goes on: short ones, and others."""
        self._places = ObjectPlaces(links, self.trails)
        self._followed = 0
        self._first_ways: dict[int, int] = {}
        """Rows, by the objects' ids."""
        self._followed_again: set[int] = set()
        self._kinds: dict[int, _Kind] = {}
        self._in_libraries = False
        self.was_cut = False
        """Whether there was more than ``MAX_OBJECTS``."""

    def run(self) -> Work[None]:
        """Search from the names of running functions and of the user's modules."""
        self._begin_in_frames(of_libraries=False)
        yield from self._settle(1)
        self._root(Via.OTHER, "", copy_context(), {}, Place(copy_context))
        yield from self._settle(1)
        yield from self._begin_in_modules()
        self._begin_in_global_hooks()
        yield from self._settle(1)
        self._begin_in_frames(of_libraries=True)
        yield from self._settle(1)
        yield from self._follow_all()

    def run_in_libraries(self) -> Work[None]:
        """Go on from the names of all other modules."""
        self._in_libraries = True
        yield from self._begin_in_modules()
        yield from self._follow_all()

    def forget(self) -> Iterator[bool]:
        """Let go of everything but ``trails``, object by object: a million at once hold training up."""
        while self._queue:
            self._queue.pop()
            self._rows.pop()
            yield False
        while self._first_ways:
            self._first_ways.popitem()
            yield False
        self._graphs.clear()
        self._attributes.clear()

    def _follow_all(self) -> Work[None]:
        self._followed = 0
        while self._queue and self._followed < self._most_objects:
            yield from self._follow_next()
        self.was_cut = bool(self._queue)

    def _begin_in_frames(self, *, of_libraries: bool) -> None:
        """In one go: a function's frame that is kept while it returns would keep its variables."""
        for running in running_frames():
            if is_library(running.frame.f_code.co_filename, known_roots()) is of_libraries:
                where = looks.code_place(running.frame.f_code)
                families: _Families = {}
                for name, value in local_values(running.frame):
                    place = Place(partial(local_variable, name, where, running.thread))
                    self._root(Via.LOCAL, looks.clean(name), value, families, place, where, running.thread)

    def _begin_in_modules(self) -> Work[None]:
        for name in list(sys.modules):
            filename = looks.module_file(name)
            is_users = name == "__main__" or looks.is_users(filename)
            yield False
            if is_users is not self._in_libraries and not looks.is_own(filename or ""):
                where = None if filename is None else CodeLine(filename, 0, "")
                prefix = f"{looks.clean(name)}." if filename is None and not is_users else ""
                families: _Families = {}
                variables = looks.module_globals(sys.modules.get(name)) or {}
                for variable in [one for one in list(variables) if type(one) is str]:
                    place = Place(partial(global_variable, name, variable))
                    text = prefix + looks.clean(variable)
                    self._root(Via.GLOBAL, text, variables.get(variable), families, place, where)
                    yield from self._settle(1)
        self._root(Via.GLOBAL, "sys.last_exc", last_exception(), {}, Place(last_exception))
        yield from self._settle(1)

    def _begin_in_global_hooks(self) -> None:
        for number, hook in enumerate(global_hooks()):
            self._meet(hook, None, {}, Place(partial(global_hook, number)))

    def _root(
        self,
        via: Via,
        text: str,
        value: Any,
        families: _Families,
        place: Place,
        where: Optional[CodeLine] = None,
        thread: Optional[str] = None,
    ) -> None:
        if leads_on(value):
            self._meet(ObjectLink(via, text, value, where), None, families, place, thread=thread)

    def _follow_next(self) -> Work[None]:
        """Follow the first object of the queue, as long as it is alive, or one of its kind is in its place."""
        waiting, row = self._queue.popleft(), self._rows.popleft()
        visit = waiting if type(waiting) is _Visit else _Visit(None, row, Place(waiting))
        self._followed += 1
        while visit.begin is not None:
            if visit.obj is None:
                visit.obj = self._places.found(visit.place, row)
            units = self._follow(visit)
            visit.let_go()
            units = yield from self._settle(1 + units)
            if units > MAX_UNITS_AT_ONCE // 2:
                visit.entries = max(1, visit.entries // 2)
            elif units < MAX_UNITS_AT_ONCE // 8:
                visit.entries = min(2 * visit.entries, MAX_ENTRIES)

    def _follow(self, visit: _Visit) -> int:
        """Some of an object's references; how many there were."""
        links: list[ObjectLink] = []
        begin, visit.begin = visit.begin, None
        if visit.obj is not None and begin is not None:
            links, visit.begin = self._links.some(visit.obj, begin, visit.entries)
            for number, link in enumerate(links):
                if visit.children < MAX_CHILDREN or self._tensors.is_tensor(link.child):
                    visit.children += self._meet(link, visit.row, visit.families, visit.place, (begin, number))
        return len(links)

    def _settle(self, units: int) -> Work[int]:
        """Follow what must not be kept, then yield for ``units`` of work and those of this: how many these were."""
        units += self._follow_fleeting()
        while self._attributes or self._graphs:  # first: a step may replace a sum's tensor, but not its graph
            if not self._attributes:
                yield from self._walk_graph(*self._graphs.popleft())
                continue
            reference, text, row = self._attributes.popleft()
            tensor = reference()
            if tensor is not None:
                self._meet(ObjectLink(Via.ATTRIBUTE, text, tensor), row, {}, Place(reference))
            del tensor  # training may let go of it meanwhile
            yield from repeat(False, 1 + self._follow_fleeting())
        yield from repeat(False, units)
        return units

    def _walk_graph(self, reference: weakref.ref[Any], row: int) -> Work[None]:
        tensor = reference()
        node = None if tensor is None else self._tensors.node(tensor)
        if node is None:
            return
        name = self._tensors.look(tensor).name
        del tensor
        walked = self._finds.graph(node, name, self.trails.path(row))
        del node
        nodes, contexts = yield from walked
        for context in contexts:
            self._meet(ObjectLink(Via.GRAPH, "grad_fn", context), row, {}, Place(_gone))
        contexts = context = ()
        yield from repeat(False, nodes + self._follow_fleeting())

    def _follow_fleeting(self) -> int:
        """References that were followed. What is too much at once waits as the others do, by its place."""
        units, values_before = 0, self._links.values_read
        short, others = self._fleeting
        while (short or others) and self._followed < self._most_objects:
            if max(units, self._links.values_read - values_before) >= MAX_UNITS_AT_ONCE:
                break
            waiting = short or others
            visit = waiting.popleft()
            self._followed += not visit.begin
            units += 1 + self._follow(visit)
            if visit.begin is not None:
                waiting.appendleft(visit)
        for waiting in self._fleeting:
            for visit in waiting:
                visit.let_go()
                self._put(visit, visit.row)
            waiting.clear()
        return units

    def _put(self, waiting: Any, row: int) -> None:
        self._queue.append(waiting)
        self._rows.append(row)

    def _meet(
        self,
        link: ObjectLink,
        before: Optional[int],
        families: _Families,
        place: Place,
        number: Optional[tuple[int, int]] = None,
        thread: Optional[str] = None,
    ) -> bool:
        """Note a tensor, or put another object into the queue; whether it did the latter. ``families``: those of the
        names that were met in the same namespace. ``number``: the link's, where ``place`` is that of its owner."""
        child = link.child
        try:
            kind = self._kind(type(child))
            items = None if kind.base is None else kind.base.__len__(child)
            may_be_bounded = kind.may_be_bounded or link.most_items is not None
            bound = bound_of(child, link.most_items) if may_be_bounded else None
        except Exception:  # a class like no other
            return False
        names, at = None, 0
        if link.via is not Via.ITEM and is_numbered(link.text):
            key = (numberless(link.text), numberless(kind.name))
            names = families.get(key)
            if names is None:
                names = families[key] = self.trails.new_names()
            at = self.trails.add_name(names)
        is_usual = thread is None and bound is None and names is None
        seldom = None if is_usual else rare(thread, bound, names, at)
        row = self.trails.add(link.via, link.text, kind.name, items, link.where, seldom, before)
        is_told, is_new = self._tell(child, kind, row)
        if is_new:
            self._wait(child, row, items, place, number)
        elif not is_told:
            self.trails.drop(row)
        return is_new

    def _wait(
        self, child: Any, row: int, items: Optional[int], place: Place, number: Optional[tuple[int, int]]
    ) -> None:
        """Put an object into the queue, or among those that cannot wait there."""
        if type(child) is not Context:  # a copy that nobody else has
            try:
                self._put(weakref.ref(child), row)
                return
            except TypeError:
                pass
        visit = _Visit(child, row, place if number is None else place.child(*number))
        if (items or 0) <= MAX_AT_ONCE:
            self._fleeting[(items or 0) > MAX_SHORT].append(visit)
        else:
            visit.let_go()
            self._put(visit, row)

    def _tell(self, child: Any, kind: _Kind, row: int) -> tuple[bool, bool]:
        """Whether ``finds`` was told of this way to an object, and whether the object is to be followed on it."""
        is_told = False
        if self._tensors.is_tensor(child):
            is_told = self._meet_tensor(child, row)
            if self._tensors.is_plain(child):
                return is_told, False
        elif kind.is_own or (kind.is_class and not self._is_searched(child)):
            return False, False
        known = self._first_ways.get(id(child))
        if known is None:
            self._first_ways[id(child)] = row
            if kind.is_noted:
                self._finds.note(child)
            return is_told, True
        hooked = self.trails.hooked
        is_from_hook = hooked(row) and not hooked(known) and id(child) not in self._followed_again
        if is_from_hook or (kind.base is None and _is_upstream(self.trails, row, known)):
            self._finds.second_way(self.trails.path(known), self.trails.path(row))
            is_told = True
        if is_from_hook:
            self._followed_again.add(id(child))
        return is_told, is_from_hook

    def _is_searched(self, cls: type) -> bool:
        """Whether a class is the user's own, or libraries are searched."""
        return self._in_libraries or looks.is_users(looks.module_file(looks.type_module(cls)))

    def _meet_tensor(self, tensor: Any, row: int) -> bool:
        """Whether it is on a device and was not met before."""
        if not self._finds.tensor(tensor, self.trails.path(row)):
            return False
        if self._tensors.node(tensor) is not None:
            self._graphs.append((weakref.ref(tensor), row))
        of_tensor = Place(weakref.ref(tensor))
        for hooks in self._tensors.hooks(tensor):
            for link in tensor_hooks(hooks):
                self._meet(link, row, {}, Place(_gone))
        if self._tensors.is_plain(tensor):
            for number, link in enumerate(tensor_attributes(tensor)):
                if self._tensors.is_tensor(link.child):  # perhaps of a long chain, which is followed in slices
                    self._attributes.append((weakref.ref(link.child), link.text, row))
                else:
                    self._meet(link, row, {}, of_tensor, (0, number))
        return True

    def _kind(self, cls: type) -> _Kind:
        known = self._kinds.get(id(cls))
        if known is None:
            base = next((base for base in looks.mro(cls) if looks.is_container(base)), None)
            known = self._kinds[id(cls)] = _Kind(
                name=looks.name_of(cls),
                base=base,
                is_class=looks.derives(cls, type),
                is_own=looks.is_own_class(cls),
                may_be_bounded=may_be_bounded(cls, base),
                is_noted=self._finds.is_noted(cls),
            )
        return known


def _gone() -> None:
    """Of what is not found again."""


def _is_upstream(trails: Trails, row: int, known: int) -> bool:
    """Whether a way leads along a chain to the object at which the ``known`` one comes into the chain from
    elsewhere."""
    if trails.first(row) is None:
        return False
    kind, above, before_known = trails.leads_to(row), trails.before(row), trails.before(known)
    comes_from_chain = before_known is not None and trails.leads_to(before_known) == kind
    if above is None or trails.leads_to(above) != kind or comes_from_chain:
        return False
    while above is not None and above != known:
        above = trails.before(above)
    return above is None
