"""A search's results so far: tensors in wanted blocks, grouped by the path to them, and graphs, by their roots.

Values only: nothing here keeps an object alive. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Optional

from tidegauge.core.evidence.rank_evidence import ContainerBound
from tidegauge.probe.holders.graphs import Graph, Graphs, fits
from tidegauge.probe.holders.pace import Work
from tidegauge.probe.holders.ref_paths import MIN_LINKS, RefPath, RefStep, Via
from tidegauge.probe.holders.tensors import MetTensors, TensorDescription, Tensors, WantedBlocks

MAX_OTHERS = 2_000
REPLACED_BYTES = 64 << 10
"""Smaller tensors cannot be told apart by size."""
GROWN_BY = 1.25
"""The replacement of a block that was seen some steps ago is at most this much larger."""
MAX_TRAILS = 2_000
"""Of one group that are remembered: one for each tensor or graph."""
LONG_CHAIN = 6
"""Links of one that is told as such, however few of them were found."""


class _Fill:
    """The wanted bytes found in one container."""

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
    """Bytes of wanted blocks in each bounded container that one search passed through, by item."""

    def __init__(self) -> None:
        self._fills: dict[object, dict[RefPath, _Fill]] = {}
        """By the place of a container, then by the way to it."""

    def add(self, trail: RefPath, block_bytes: int, *, is_own: bool) -> None:
        """Count a block; ``is_own``: the trail is that of its own tensor, not of one that is held alike."""
        found = _bounded(trail)
        if found is not None:
            container, item = found
            fill = self._fills.setdefault(_place(container), {}).setdefault(container, _Fill())
            is_item = item == trail  # then each tensor is an item, whichever of them the trail is of
            fill.add(item if is_own or not is_item else RefPath(item.step), block_bytes, is_counted=is_own or is_item)

    def bound_of(self, trail: RefPath) -> Optional[ContainerBound]:
        """The outermost bounded container on a path. ``None`` also where several of its kind may have been made
        during the search: more may follow, so they bound nothing."""
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
    """The path to the outermost bounded container on a trail, and to its item that the trail leads through."""
    item = trail.bounded
    return None if item is None or item.before is None else (item.before, item)


def _place(container: RefPath) -> object:
    return tuple(path.step.key for path in container.folded)


class FindGroup:
    """Tensors reached by paths of the same kind, or such tensors' graphs."""

    def __init__(self, trail: RefPath) -> None:
        self.trail = trail
        """Of the first of them."""
        self.trails: list[RefPath] = []
        """Of each of them, as far as it is known."""
        self.is_folded = trail.turns >= MIN_LINKS
        """Whether its steps are those of the folded path."""
        self.second: Optional[RefPath] = None
        """Another way to the same container, through a hook."""
        self.tensors = 0
        self.held_bytes = 0
        self.by_size_bytes = 0
        """Of these, found by the size of their blocks alone."""
        self.blocks: list[int] = []
        """Addresses of the others."""
        self.words: Counter[str] = Counter()
        """Names of these tensors."""
        self.cycle: Sequence[RefStep] = ()
        """The references that close a cycle."""
        self.is_replaced = False
        """It is made anew in each step: the blocks are those of its predecessors."""
        self.graphs = 0
        self.nodes = 0
        self.first_nodes: Counter[str] = Counter()
        self.sizes: Counter[tuple[int, str]] = Counter()
        self.shared: Counter[int] = Counter()
        """How many blocks went to nodes with outputs of a size."""
        self.savers: Counter[str] = Counter()
        """Names of the nodes whose outputs have the sizes of blocks that nothing else explains."""

    @property
    def key(self) -> object:
        """What its tensors' paths have in common: the same references, as often."""
        return (self.nodes > 0, _place(self.trail), self.trail.turns)

    @property
    def kin(self) -> object:
        """What it has in common with groups whose paths have other numbers in their names or more links. A container
        with a bound is counted with its own group."""
        if self.trail.bounded is not None:
            return id(self)
        return (self.nodes > 0, self.is_replaced, tuple(path.step.kin for path in self.trail.folded))

    @property
    def chain(self) -> Optional[int]:
        """Index of the step that is a chain's link; ``None``: the path has no chain."""
        if not self.is_folded:
            return None
        links = [path.links for path in self.trail.folded]
        longest = max(links)
        return None if longest < MIN_LINKS - 1 else next(at for at, one in enumerate(links) if 2 * one >= longest)

    def ways(self, trail: RefPath) -> tuple[RefPath, ...]:
        """The paths to each step of one of its trails."""
        return trail.folded if self.is_folded else trail.paths

    def around(self, chain: RefPath) -> list[RefStep]:
        """The references that lead from a chain's link to the next, the chain's first."""
        for trail in (self.trail, *self.trails):
            at: Optional[RefPath] = trail
            while at is not None and at.first != chain:
                at = at.before
            steps: list[RefStep] = []
            at = None if at is None else at.before
            while at is not None and at != chain and at.first != chain:
                steps.append(at.step)
                at = at.before
            if at is not None:
                return [chain.step, *reversed(steps)]
        return [chain.step]

    def remember(self, trail: RefPath) -> None:
        if len(self.trails) < MAX_TRAILS:
            self.trails.append(trail)

    def join(self, other: FindGroup) -> None:
        """Take in the tensors of a group of the same kin."""
        self.is_folded |= self.key != other.key
        if other.trail.turns > self.trail.turns:
            self.trail = other.trail
        self.trails += other.trails[: MAX_TRAILS - len(self.trails)]
        self.second = self.second or other.second
        self.tensors += other.tensors
        self.held_bytes += other.held_bytes
        self.by_size_bytes += other.by_size_bytes
        self.blocks += other.blocks
        self.words += other.words
        self.cycle = self.cycle or other.cycle
        self.graphs += other.graphs
        self.nodes += other.nodes
        self.first_nodes += other.first_nodes
        self.savers += other.savers

    def add_graph(self, graph: Graph) -> None:
        self.graphs += 1
        self.nodes += graph.nodes
        self.first_nodes[graph.first] += 1
        self.sizes.update(graph.sizes)


class Finds:
    """One search's results."""

    def __init__(self, tensors: Tensors, wanted: WantedBlocks, graphs: Graphs) -> None:
        self._tensors = tensors
        self._wanted = wanted
        self._graphs = graphs
        self._met = MetTensors()
        self._sizes = frozenset(wanted.sizes.values())
        self._others: list[tuple[weakref.ref[Any], TensorDescription, RefPath]] = []
        """Tensors in other blocks, large and of sizes that were wanted."""
        self._second_ways: dict[RefPath, RefPath] = {}
        self._upstream: dict[RefPath, RefPath] = {}
        self.blocks: dict[int, int] = {}
        """Wanted blocks that are not explained yet, with their sizes."""
        self.blocks.update(wanted.sizes)
        self.held: dict[object, FindGroup] = {}
        self.rooted: dict[object, FindGroup] = {}
        self._fills = Fills()

    def tensor(self, tensor: Any, trail: RefPath) -> bool:
        """Note a tensor; whether it is on a device and was not met before."""
        addresses = self._tensors.addresses(tensor)
        if not addresses or not self._met.add(tensor, addresses[0]):
            return False
        for address in addresses:
            block = self._wanted.at(address)
            if block is not None and block in self.blocks:
                self.claim(self._group(self.held, trail), self._tensors.look(tensor), block, trail)
            elif block is None and len(self._others) < MAX_OTHERS:
                look = self._tensors.look(tensor)
                if any(_may_follow(look.own_bytes, size_bytes) for size_bytes in self._sizes):
                    self._others.append((weakref.ref(tensor), look, trail))
        return True

    def graph(
        self, node: Any, name: str, trail: RefPath, cycle: Sequence[RefStep] = ()
    ) -> Work[tuple[int, Sequence[Any]]]:
        """Walk the graph of a tensor called ``name``, as far as it was not walked before: how many nodes were walked
        since the last yield, and the Python nodes in it."""
        walk = self._graphs.walk(node)
        del node
        graph = yield from walk
        if graph is None:
            return 0, ()
        group = self._group(self.rooted, trail)
        group.add_graph(graph)
        group.remember(trail)
        group.cycle = cycle
        group.words[name] += 1
        return graph.walked_last, graph.contexts

    def is_noted(self, _cls: type) -> bool:
        """Tensors and graphs alone hold blocks."""
        return False

    def note(self, _obj: Any) -> None:
        """Nothing is wanted."""

    def was_met(self, tensor: Any) -> bool:
        return self._met.has(tensor, next(iter(self._tensors.addresses(tensor)), None))

    def claim(
        self,
        group: FindGroup,
        look: TensorDescription,
        block: int,
        trail: Optional[RefPath] = None,
        *,
        by_size: bool = False,
    ) -> None:
        """Count a block that was not explained to a group; ``trail``: its own, where it is known."""
        block_bytes = self.blocks.pop(block)
        if by_size:
            group.by_size_bytes += block_bytes
        else:
            group.blocks.append(block)
        if trail is not None:
            group.remember(trail)
        self._fills.add(group.trail if trail is None else trail, block_bytes, is_own=trail is not None)
        group.tensors += 1
        group.held_bytes += block_bytes
        group.words[look.words(block_bytes)] += 1

    def held_by(self, trail: RefPath) -> FindGroup:
        """The group of tensors that such a path leads to."""
        return self._group(self.held, trail)

    def second_way(self, known: RefPath, other: RefPath) -> None:
        """Note that ``other`` leads to the same object as ``known``: from a hook, or from further up a chain."""
        ways = self._second_ways if other.hooked else self._upstream
        ways.setdefault(known, other)

    def share_out(self) -> Work[None]:
        """Count blocks that no Python reference explains to the graphs whose nodes output tensors of their size."""
        for group in sorted(self.rooted.values(), key=lambda group: -group.nodes):
            nodes_of_size: Counter[int] = Counter()
            for (size_bytes, _), nodes in group.sizes.items():
                nodes_of_size[size_bytes] += nodes
            for size_bytes, nodes in nodes_of_size.most_common():
                fitting = [block for block, block_bytes in self.blocks.items() if fits(block_bytes, size_bytes)][
                    : nodes - group.shared[size_bytes]
                ]
                fitting_bytes = sum(self.blocks.pop(block) for block in fitting)
                group.held_bytes += fitting_bytes
                group.by_size_bytes += fitting_bytes
                group.tensors += len(fitting)
                group.shared[size_bytes] += len(fitting)
                if fitting:
                    group.savers.update(
                        {name: count for (size, name), count in group.sizes.items() if size == size_bytes}
                    )
                yield False

    def pair_replaced(self) -> Work[None]:
        """Count the remaining blocks to tensors of their size, or a little more, that were replaced since they were
        met: where a buffer is made anew in each step, a wanted block may be gone already. Several of one place that are
        just as large as the block are what passes through a queue of constant length."""
        places = []
        for _, look, trail in self._others:
            places.append((_place(trail), look.own_bytes))
            yield False
        alike = Counter(places)
        others = [(*other, alike[place] > 1) for other, place in zip(self._others, places)]
        for block, block_bytes in sorted(self.blocks.items(), key=lambda item: -item[1]):
            fitting = [
                number
                for number, (reference, look, _, is_one_of_several) in enumerate(others)
                if reference() is None
                and _may_follow(look.own_bytes, block_bytes)
                and not (is_one_of_several and look.own_bytes == block_bytes)
            ]
            if fitting:
                nearest = min(fitting, key=lambda number: others[number][1].own_bytes)
                _, look, trail, _ = others.pop(nearest)
                group = self._group(self.held, trail)
                group.is_replaced = True
                self.claim(group, look, block, by_size=True)
            yield False

    def groups(self) -> list[FindGroup]:
        """All with wanted bytes, the largest first, their second ways filled in; those of one chain or of numbered
        names as one."""
        found = [group for group in (*self.held.values(), *self.rooted.values()) if group.held_bytes]
        for group in found:
            trail: Optional[RefPath] = group.trail
            while trail is not None and group.second is None:
                group.second = self._second_ways.get(trail)
                trail = trail.before
            if self._upstream:
                self._go_up(group)
        return sorted(_joined(found), key=lambda group: -group.held_bytes)

    def _go_up(self, group: FindGroup) -> None:
        """Let a group's paths begin where their chain does."""
        at: Optional[RefPath] = group.trail
        while at is not None:
            other = self._upstream.get(at)
            if other is not None:
                group.trails = [trail.after(at, other) for trail in group.trails]
                group.trail = group.trails[0] if group.trails else group.trail.after(at, other)
                group.is_folded = group.trail.turns >= MIN_LINKS
                return
            at = at.before

    def bound_of(self, group: FindGroup) -> Optional[ContainerBound]:
        """The bound of a container on the path to a group's tensors; ``None`` for graphs, whose items are unknown."""
        return None if group.nodes or group.is_replaced else self._fills.bound_of(group.trail)

    def _group(self, groups: dict[object, FindGroup], trail: RefPath) -> FindGroup:
        key = (_place(trail), trail.turns)
        group = groups.get(key)
        if group is None:
            group = groups[key] = FindGroup(trail)
        return group


def _joined(groups: Sequence[FindGroup]) -> list[FindGroup]:
    """The groups, those of one kin as one where they are many or links of a long chain."""
    families: dict[object, list[FindGroup]] = defaultdict(list)
    for group in groups:
        families[group.kin].append(group)
    found: list[FindGroup] = []
    for family in families.values():
        if len(family) >= MIN_LINKS or any(path.links >= LONG_CHAIN for path in family[0].trail.folded):
            found.append(_one_of(family))
        else:
            by_key: dict[object, list[FindGroup]] = defaultdict(list)
            for group in family:
                by_key[group.key].append(group)
            found += map(_one_of, by_key.values())
    return found


def _one_of(groups: Sequence[FindGroup]) -> FindGroup:
    first, *others = groups
    for other in others:
        first.join(other)
    return first


def _may_follow(own_bytes: int, block_bytes: int) -> bool:
    """Whether a tensor may have taken the place of one in a block of this size; blocks are rounded up."""
    return own_bytes >= REPLACED_BYTES and block_bytes * 0.99 <= own_bytes <= block_bytes * GROWN_BY
