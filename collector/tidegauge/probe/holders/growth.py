"""Finds what grows on the way to a group's tensors: a container, numbered names of one object, or a chain.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from tidegauge.core.evidence.rank_evidence import CHAIN
from tidegauge.probe.holders.finds import FindGroup
from tidegauge.probe.holders.ref_paths import MIN_LINKS, NumberedNames, RefPath, RefStep, Via, numberless

MIN_OLDER = 4
"""What grows has entries that were there before: so many at least, and half as many as were found."""


MAX_LATER = 2
"""Names that were added while the search ran, for each that was added within the window."""


class HolderGrowth(NamedTuple):
    """What a path's tensors have become more in."""

    at: int
    """Index of the step that leads to it."""
    container: str
    """``list``, ``dict``; ``buffers``, ``attributes`` for numbered names; ``chain``."""
    items: int
    names: bool = False
    """It is numbered names."""


def growth_of(group: FindGroup, steps: Sequence[RefStep]) -> Optional[HolderGrowth]:
    """What grows on the way to a group's tensors; ``None`` where nothing on it has entries of its own."""
    ways = [group.ways(trail) for trail in group.trails]
    ways = [way for way in ways if len(way) == len(steps)]
    found = _numbered(ways, steps) if group.chain is None else _chain(group, group.chain)
    return found or _container(ways, steps)


def differing(group: FindGroup, steps: Sequence[RefStep]) -> frozenset[int]:
    """Indices of the steps whose keys or names are others for other tensors of the group."""
    ways = [group.ways(trail) for trail in group.trails]
    return frozenset(
        at for at, step in enumerate(steps) if any(at < len(way) and way[at].step.text != step.text for way in ways)
    )


def _chain(group: FindGroup, at: int) -> Optional[HolderGrowth]:
    links = group.trail.folded[at].links + 1
    found = {trail.turns for trail in group.trails}
    if len(found) < 2 or not _has_older(links, len(found)):
        return None
    return HolderGrowth(at, CHAIN, links)


def _numbered(ways: Sequence[Sequence[RefPath]], steps: Sequence[RefStep]) -> Optional[HolderGrowth]:
    for at, step in enumerate(steps):
        if step.via is Via.ITEM or len({way[at].step.text for way in ways}) < MIN_LINKS:
            continue
        places: dict[NumberedNames, set[int]] = {}
        for way in ways:
            one = way[at].step
            if one.family is not None:
                places.setdefault(one.family, set()).add(one.place)
        grown = [family.names for family, found in places.items() if _were_added(family.names, found)]
        if grown and len(grown) == len(places):
            return HolderGrowth(at, _noun(step, is_tensor=at == len(steps) - 1), max(grown), names=True)
    return None


def _container(ways: Sequence[Sequence[RefPath]], steps: Sequence[RefStep]) -> Optional[HolderGrowth]:
    """The outermost container with items that hold none of the tensors, where the ways part; else where most part."""
    if not ways:
        return None
    parts: list[tuple[float, int]] = []
    for at in range(len(steps) - 1):
        containers = {way[at]: way[at].step.items for way in ways}
        items = len({way[at + 1] for way in ways})
        if steps[at].items is None or 2 * items < 3 * len(containers):
            continue
        if _has_older(sum(count or 0 for count in containers.values()), items):
            return HolderGrowth(at, steps[at].leads_to, steps[at].items or 0)
        parts.append((items / len(containers), -at))
    if parts:
        at = -max(parts)[1]
        return HolderGrowth(at, steps[at].leads_to, steps[at].items or 0)
    return None


def _has_older(entries: int, found: int) -> bool:
    return entries >= found + max(MIN_OLDER, found // 2)


def _were_added(names: int, places: set[int]) -> bool:
    """Whether a namespace had as many names before these, and has gained few since: its names are not a fixed set that
    is assigned to in turn."""
    found = len(places)
    return min(places) >= max(MIN_OLDER, found) and names - 1 - max(places) <= MAX_LATER * found


def _noun(step: RefStep, *, is_tensor: bool) -> str:
    if step.via is Via.MODULE:
        tensors = "parameters" if "Parameter" in numberless(step.leads_to) else "buffers"
        return tensors if is_tensor else "modules"
    return "attributes" if step.via in (Via.ATTRIBUTE, Via.CLASS) else "variables"
