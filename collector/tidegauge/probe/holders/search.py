"""One search: forward from the program's names, backward among the youngest objects, forward from libraries' names, and
by size through autograd graphs.

It never looks at all objects, which cannot be cut into slices. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import atexit
import copy
import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Optional

from tidegauge.core.evidence.rank_evidence import ATEXIT, MAX_HOLDERS, Holder, HolderKind, HolderSearch
from tidegauge.core.units import format_bytes, format_count
from tidegauge.probe.holders.finds import FindGroup, Finds
from tidegauge.probe.holders.from_names import MAX_OBJECTS, Forward
from tidegauge.probe.holders.from_referrers import Backward, Origin
from tidegauge.probe.holders.graphs import Graphs
from tidegauge.probe.holders.links import ObjectLinks
from tidegauge.probe.holders.looks import YoungObjects, may_list_young
from tidegauge.probe.holders.pace import PATIENCE_S, AtBoundary, Budget, NoBoundaryError, OutOfWorkError, Slices, Work
from tidegauge.probe.holders.ref_paths import RefPath, RefStep, Via, trail_of
from tidegauge.probe.holders.tensors import TensorDescription, Tensors, WantedBlocks, YoungTensor, young_tensors
from tidegauge.probe.holders.wording import holder_of

EXPLAINED = 0.9
"""Share of the wanted bytes beyond which the search is over."""
MOSTLY_EXPLAINED = 0.5
"""Share beyond which libraries are left alone: these are a hundred times as many objects as a program's own."""
TELLING = 0.4
"""Share of them from which on a holder is told before the search is over."""
MAX_KINDS = 6
"""Kinds of unnamed tensors, by shape and class, that are followed back; the largest first."""
EXAMPLES = 3
"""Of each kind, which stand for the others."""
MAX_UNITS = 1_500_000
"""Of work: 2 to 3 s of training time in all."""
UNITS_AT_ONCE = 1_000
"""Between two looks whether enough is explained, and freed in one go."""
MIN_EXIT_CALLBACKS = 64
"""Functions that are registered with ``atexit``. A healthy job has some ten, of torch and its launcher."""
MAX_NEWER = 10
"""Of them, since the list of ``atexit`` was found."""


class _Stray(NamedTuple):
    """A tensor that names need not lead to, held weakly: it may be one of training's that soon dies."""

    reference: weakref.ref[Any]
    look: TensorDescription
    block: Optional[int]
    """A wanted block; ``None``: only its graph counts."""


def search_holders(
    torch: Any,
    blocks: Sequence[tuple[int, int]],
    *,
    most_s: float = math.inf,
    most_units: int = MAX_UNITS,
    patience_s: float = PATIENCE_S,
    step_s: float = 0.0,
    pause: Callable[[], None],
    at_boundary: AtBoundary,
    so_far: Callable[[float, Callable[[], HolderSearch]], None] = lambda _took_s, _sum_up: None,
    clock_s: Callable[[], float] = time.perf_counter,
) -> HolderSearch:
    """Find what keeps the tensors in ``blocks`` alive, given as (address, bytes): some hundred at most.

    ``at_boundary`` does the search, in slices during which training stands still (``pace``). This thread
    only waits; ``pause`` is called between slices, and its exceptions end the search and pass through. ``most_units``
    of work bound the whole, over as many steps as it takes, and ``most_s`` where somebody waits for it; ``patience_s``
    without a step end it too; ``step_s`` is how long one takes, if that is known. A search that is cut short tells what
    it has found. ``so_far`` is called between slices, with the seconds since the search began and what sums up its
    finds. Never called in a training thread.
    """

    def between() -> None:
        pause()
        so_far(slices.took_s, search.so_far)

    budget = Budget(most_units, most_s, patience_s, step_s)
    slices = Slices(torch, budget, pause=between, at_boundary=at_boundary, clock_s=clock_s)
    search = _Search(torch, blocks, slices, pause)
    return search.run()


class _Search:
    def __init__(
        self, torch: Any, blocks: Sequence[tuple[int, int]], slices: Slices, pause: Callable[[], None]
    ) -> None:
        self._torch = torch
        self._slices = slices
        self._tensors = Tensors(torch)
        self._wanted = WantedBlocks(blocks)
        self._finds = Finds(self._tensors, self._wanted, Graphs(torch))
        self._forward = Forward(self._tensors, ObjectLinks(torch), self._finds)
        self._pause = pause
        self._problem: Optional[str] = None
        self._unfinished = False

    def run(self) -> HolderSearch:
        try:
            self._slices.run(self._look())
        except (OutOfWorkError, NoBoundaryError) as error:
            self._problem, self._unfinished = str(error), True
            self._release(self._forward.forget())
            for _ in self._finds.share_out():
                pass
        found = self._summed_up(self._finds)
        self._release(self._forward.trails.forget())
        left = self._rest_holder()
        holders = found.holders if left is None else sorted([*found.holders, left], key=lambda one: -one.held_bytes)
        return found._replace(
            holders=tuple(holders[:MAX_HOLDERS]), problem=self._problem, unfinished=self._unfinished
        )  # fmt: skip

    def so_far(self) -> HolderSearch:
        """What was found until now, without what holds little: while the rest is not known, that would seem to be the
        holder. Between slices."""
        found = self._summed_up(_copy_of(self._finds))
        told = tuple(one for one in found.holders if one.held_bytes >= TELLING * found.wanted_bytes)
        problem = f"still running after {self._slices.objects:,} references"
        return found._replace(holders=told, problem=problem)

    def _summed_up(self, finds: Finds) -> HolderSearch:
        """All finds, which are joined in this."""
        holders = tuple(holder_of(group, finds.bound_of(group)) for group in finds.groups())
        return HolderSearch(
            holders=holders,
            wanted_bytes=self._wanted.total_bytes,
            found_bytes=sum(holder.held_bytes for holder in holders),
            objects=self._slices.objects,
            took_s=self._slices.took_s,
            longest_pause_s=self._slices.longest_slice_s,
        )

    def _release(self, objects: Iterator[bool]) -> None:
        for number, _ in enumerate(objects):
            if number % UNITS_AT_ONCE == 0:
                self._pause()

    def _left(self) -> int:
        return sum(self._finds.blocks.values())

    def _is_unexplained(self, share: float = EXPLAINED) -> bool:
        return self._left() > (1 - share) * self._wanted.total_bytes

    def _look(self) -> Work[None]:
        is_whole = may_list_young()
        kinds: dict[object, list[_Stray]] = {}
        origins: dict[object, Origin] = {}
        if is_whole:  # first: what the search makes is young, too, and what a step made is not for long
            for young in young_tensors(self._tensors, self._wanted):
                stray = self._stray(young)
                if stray is not None:
                    kinds.setdefault((stray.look, stray.block is None), []).append(stray)
            if kinds:
                yield True
                origins = self._origins(kinds)
            yield False
        yield from self._forward.run()
        for kind in origins:
            if origins[kind].cycle:
                yield from self._claim(kinds[kind], origins[kind])
        yield from self._finds.share_out()
        if self._is_unexplained(MOSTLY_EXPLAINED):
            for unit, is_long in enumerate(self._forward.run_in_libraries()):
                yield is_long
                if unit % UNITS_AT_ONCE == 0 and not self._is_unexplained():
                    break
        for kind in origins:
            if not origins[kind].cycle and self._is_unexplained():
                yield from self._claim(kinds[kind], origins[kind])
        yield from self._forward.forget()
        yield from self._finds.share_out()
        if self._is_unexplained():
            yield from self._finds.pair_replaced()
        if self._forward.was_cut and self._is_unexplained():
            self._problem = f"only {MAX_OBJECTS:,} objects were followed from the program's names"
        elif not is_whole and self._is_unexplained():
            self._problem = "not searched for reference cycles: too many Python objects since the last collection"

    def _origins(self, kinds: dict[object, list[_Stray]]) -> dict[object, Origin]:
        """What keeps these kinds alive, by some examples. In one go: nothing that is young may be kept beyond it."""
        young = YoungObjects()
        try:
            return self._origins_among(young, kinds)
        finally:
            young.forget()

    def _origins_among(self, young: YoungObjects, kinds: dict[object, list[_Stray]]) -> dict[object, Origin]:
        backward = Backward(ObjectLinks(self._torch))
        by_bytes = sorted(kinds, key=lambda kind: -sum(self._block_bytes(stray) for stray in kinds[kind]))
        with_graphs = [kind for kind in by_bytes[MAX_KINDS:] if kinds[kind][0].block is None]
        found = {}
        for kind in [*by_bytes[:MAX_KINDS], *with_graphs[:MAX_KINDS]]:
            strays = kinds[kind]
            for example in strays[:: -max(1, len(strays) // EXAMPLES)][:EXAMPLES]:
                tensor = example.reference()
                if tensor is not None:
                    found[kind] = backward.origin(self._tensors.owned(tensor), young)
                if kind in found and found[kind].trail is not None:
                    break
        return found

    def _stray(self, young: YoungTensor) -> Optional[_Stray]:
        tensor = young.reference()
        return None if tensor is None else _Stray(young.reference, self._tensors.look(tensor), young.block)

    def _block_bytes(self, stray: _Stray) -> int:
        return 0 if stray.block is None else self._finds.blocks.get(stray.block, 0)

    def _claim(self, kind: list[_Stray], origin: Origin) -> Work[None]:
        """Count what names have not led to."""
        if origin.trail is None:
            return
        trail = _with_exit_callbacks(origin.trail, len(kind))
        for stray in kind:
            units = 1
            node = self._unmet_node(stray)
            if stray.block in self._finds.blocks:
                group = self._finds.held_by(trail)
                group.cycle = origin.cycle
                self._finds.claim(group, stray.look, stray.block)
            if node is not None:
                walk = self._finds.graph(node, stray.look.name, trail, origin.cycle)
                del node
                nodes, _ = yield from walk
                units += nodes
                del walk, _
            yield from repeat(False, units)

    def _unmet_node(self, stray: _Stray) -> Optional[Any]:
        tensor = stray.reference()
        return None if tensor is None or self._finds.was_met(tensor) else self._tensors.node(tensor)

    def _rest_holder(self) -> Optional[Holder]:
        blocks = self._finds.blocks
        if not blocks or self._left() < (1 - EXPLAINED) * self._wanted.total_bytes:
            return None
        count = format_count(len(blocks), "block")
        return Holder(
            kind=HolderKind.NATIVE,
            path=f"no Python object found refers to {count}, {format_bytes(self._left())}",
            held_bytes=self._left(),
            tensors=len(blocks),
        )


def _copy_of(finds: Finds) -> Finds:
    """Whose groups may be joined while those of the original grow."""
    copied = copy.copy(finds)
    copied.held = {key: _copy_of_group(group) for key, group in finds.held.items() if group.held_bytes}
    copied.rooted = {key: _copy_of_group(group) for key, group in finds.rooted.items() if group.held_bytes}
    return copied


def _copy_of_group(group: FindGroup) -> FindGroup:
    copied = copy.copy(group)
    for name, value in vars(group).items():
        if isinstance(value, (list, Counter)):
            setattr(copied, name, value.copy())
    return copied


def _with_exit_callbacks(trail: RefPath, tensors: int) -> RefPath:
    """The path, from ``atexit`` where it begins with arguments that nothing of Python's refers to and as many functions
    are registered: C has them, from Python 3.14 on a list of C's. That is known by numbers alone, and so gives the
    holder no name."""
    root, *others = trail.steps
    callbacks: int = getattr(atexit, "_ncallbacks", int)()
    if root.via is not Via.OTHER or root.text or callbacks < max(tensors, MIN_EXIT_CALLBACKS):
        return trail
    if root.leads_to == "list" and 0 <= callbacks - (root.items or 0) <= MAX_NEWER:
        return trail_of([root._replace(leads_to=ATEXIT), *others])
    if root.leads_to != "tuple":
        return trail
    return trail_of([RefStep(Via.OTHER, "", ATEXIT, callbacks), root, *others])
