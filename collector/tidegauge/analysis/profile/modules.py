"""Memory at the peak by module: a tree by the paths of the modules, and the same with repeated layers as one. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Optional

from tidegauge.analysis.profile.lives import BEFORE, BlockLife
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import MAX_MODULES, ModuleMemory, OwnedMemory, SeenGradient
from tidegauge.core.snapshot_columns import MODULE_WORD

MAX_DEPTH = 64
"""Of a path; a deeper module counts to one at this depth."""
ANY_NUMBER = "*"

Held = tuple[str, Category, int]
"""The path of a module, and bytes of a block of its."""


class ModuleGroup(NamedTuple):
    """Modules whose paths differ in numbers alone, such as the same layer of all blocks."""

    path: str
    """With ``ANY_NUMBER`` where they differ."""
    modules: int
    held_bytes: int
    """Their own, without modules below them."""
    by_category: Mapping[Category, int]

    @property
    def largest_first(self) -> list[tuple[Category, int]]:
        return sorted(self.by_category.items(), key=lambda one: -one[1])


class ModulesOfBlocks:
    """The module that a block of a recording belongs to, or that ran when it was allocated."""

    def __init__(self, trace: Trace, gradients: Iterable[SeenGradient]) -> None:
        self._seen = sorted(
            (one.address, bisect_right(trace.time_us, one.unix_us) - 1, one.module)
            for one in gradients
            if trace.time_us
        )
        """Address, event, module."""
        self._metadata = trace.metadata
        self._paths: list[Optional[str]] = [
            word[len(MODULE_WORD) :] if word.startswith(MODULE_WORD) and len(word) > len(MODULE_WORD) else None
            for word in trace.words
        ]
        self._paths.append(None)  # -1: no word

    def module(self, block: BlockLife, category: Category, owner: Optional[OwnedMemory]) -> Optional[str]:
        """``owner`` is the tensor in it at the end of the recording. ``None``: no module, or it is not known."""
        if owner is not None and owner.module is not None:
            return owner.module
        if category is Category.GRADIENTS:
            return self._of_gradient(block)
        if category is Category.WORKSPACES:  # one for all, made by whichever comes first
            return None
        return self._maker(block)

    def _of_gradient(self, block: BlockLife) -> Optional[str]:
        begin = bisect_left(self._seen, (block.address,))
        for address, event, module in islice(self._seen, begin, None):
            if address >= block.address + block.size_bytes:
                return None
            if block.is_alive_at(event):
                return module
        return None

    def _maker(self, block: BlockLife) -> Optional[str]:
        return None if block.made == BEFORE or not self._metadata else self._paths[self._metadata[block.made]]


def module_tree(held: Iterable[Held]) -> tuple[ModuleMemory, ...]:
    """Each module that holds something, and those above it; each before those below it, the largest first.

    Beyond ``MAX_MODULES`` the smallest are left out; what is theirs counts to the module above.
    """
    own: dict[str, Counter[Category]] = {}
    total: dict[str, Counter[Category]] = {}
    for path, category, held_bytes in held:
        *above, module = _with_ancestors(path)
        own.setdefault(module, Counter())[category] += held_bytes
        for one in (*above, module):
            total.setdefault(one, Counter())[category] += held_bytes
    depth = {path: path.count(".") for path in total}
    bytes_of = {path: sum(by_category.values()) for path, by_category in total.items()}
    largest = sorted(total, key=lambda path: (-bytes_of[path], depth[path], path))[:MAX_MODULES]
    if len(total) > len(largest):
        own = _moved_up(own, frozenset(largest))
    return tuple(ModuleMemory(path, dict(own.get(path, {})), dict(total[path])) for path in _depth_first(largest))


def module_groups(modules: Sequence[ModuleMemory]) -> list[ModuleGroup]:
    """Modules that hold something of their own, those of the same kind as one; the largest first."""
    containers = {module.path.rpartition(".")[0] for module in modules}
    groups: dict[str, list[ModuleMemory]] = {}
    for module in modules:
        if module.own:
            groups.setdefault(_pattern(module.path, is_container=module.path in containers), []).append(module)
    found = []
    for pattern, group in groups.items():
        by_category: Counter[Category] = Counter()
        for module in group:
            by_category.update(module.own)
        path = pattern if len(group) > 1 else group[0].path
        found.append(ModuleGroup(path, len(group), sum(by_category.values()), dict(by_category)))
    return sorted(found, key=lambda one: (-one.held_bytes, one.path))


def _with_ancestors(path: str) -> Iterator[str]:
    """``Net.layers.0``: ``Net``, ``Net.layers``, ``Net.layers.0``."""
    parts = path.split(".")[:MAX_DEPTH]
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _moved_up(own: Mapping[str, Counter[Category]], kept: frozenset[str]) -> dict[str, Counter[Category]]:
    """What is each module's own, of those that are not kept given to the next one above that is, if there is one."""
    found: dict[str, Counter[Category]] = {}
    for path, held in own.items():
        while path and path not in kept:
            path = path.rpartition(".")[0]
        if path:
            found.setdefault(path, Counter()).update(held)
    return found


def _depth_first(largest: Sequence[str]) -> Iterator[str]:
    """``largest`` has the larger ones first, and each behind those above it."""
    below: dict[str, list[str]] = {}
    for path in largest:
        below.setdefault(path.rpartition(".")[0], []).append(path)
    waiting = below.get("", [])[::-1]
    while waiting:
        path = waiting.pop()
        yield path
        waiting += below.get(path, [])[::-1]


def _pattern(path: str, *, is_container: bool) -> str:
    """A number names a layer where modules are below it; else it tells those of a ``Sequential`` apart."""
    *above, module = path.split(".")
    parts = [ANY_NUMBER if part.isdigit() else part for part in above]
    return ".".join([*parts, ANY_NUMBER if is_container and module.isdigit() else module])
