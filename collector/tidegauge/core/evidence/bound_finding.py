"""Finds a bound on a window's growth: containers or workspaces that fill up, and the level at the end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.growth_bound import GrowthBound, concerns, fitted
from tidegauge.core.evidence.rank_evidence import ContainerBound, Holder
from tidegauge.core.evidence.words import named_holder
from tidegauge.core.verdicts import Band

BOUNDED_SHARE = 0.7
"""Of what was looked for, containers with a bound hold at least this part: the rest may be without one."""
MAX_TURNOVER = 2.0
"""A container that is used up as fast as it is filled holds much that is new and has not grown. With ``BOUNDED_SHARE``
this tells it from one that fills: where something else leaks beside it, it holds more than twice what has grown."""
HELD_SHARE = 0.3
"""Of all that was gained since the onset, items must make this part, each as large as what the window added to one:
else items grow as well, and their number bounds nothing."""
MIN_FOUND_ITEMS = 3
"""Fewer say nothing of how large an item is: one that grows by itself is in no container of items."""


def find_bound(case: CauseInput) -> Optional[GrowthBound]:
    """The bound of a window's growth, with its state if the detector reports this growth; ``None``: no bound found."""
    bound = _of_workspaces(case) or _of_containers(case)
    if bound is None or not concerns(bound, case.verdict):
        return bound
    return fitted(bound, case.verdict, max(bound.level_bytes, case.allocated_bytes or 0))


def _of_containers(case: CauseInput) -> Optional[GrowthBound]:
    search, grown_bytes = case.search, case.grown_bytes or 0
    if search is None or search.wanted_bytes <= 0 or case.live_bytes is None or case.late_step is None:
        return None
    if not case.window_steps:  # without steps nobody can tell memory between two of them
        return None
    holders = _by_number(search.holders)
    held_bytes = sum(bound.held_bytes for bound, _ in holders)
    if held_bytes < BOUNDED_SHARE * search.wanted_bytes or held_bytes > MAX_TURNOVER * max(grown_bytes, 0):
        return None
    if any(bound.found_items < MIN_FOUND_ITEMS for bound, _ in holders):
        return None
    if sum(bound.items * _item_bytes(bound) for bound, _ in holders) < HELD_SHARE * (case.verdict.grown_bytes or 0):
        return None
    # No more than some hundred blocks are looked for: where more have grown, an item has more than were found of it.
    unseen = max(grown_bytes / search.wanted_bytes, 1.0)
    others = search.wanted_bytes / held_bytes  # what grew beside them goes on meanwhile
    first, holder = max(holders, key=lambda one: one[0].held_bytes)
    low, likely, high = (sum(_left_bytes(bound)[end] for bound, _ in holders) for end in range(3))
    return GrowthBound(
        what=_what(first, holder, len(holders) - 1),
        kind=first.kind,
        items=first.items,
        most_items=first.most_items,
        step=case.late_step,
        level_bytes=case.live_bytes,
        left_bytes=Band(low * unseen, likely * unseen * others, high * unseen * others),
    )


def _of_workspaces(case: CauseInput) -> Optional[GrowthBound]:
    found = case.workspaces
    if found is None or case.live_bytes is None or case.late_step is None:
        return None
    if found.grown_bytes < BOUNDED_SHARE * max(case.grown_bytes or 0, 1):
        return None
    left = float((found.most_blocks - found.blocks) * found.block_bytes)
    return GrowthBound(
        what="PyTorch's stream pool (a workspace of cuBLAS each)",
        kind="cublas",
        items=found.blocks,
        most_items=found.most_blocks,
        step=case.late_step,
        level_bytes=case.live_bytes,
        left_bytes=Band(left, left, left),
    )


def _by_number(holders: Sequence[Holder]) -> list[tuple[ContainerBound, Holder]]:
    """Each bound once, with the holder that holds most by it."""
    found: dict[int, tuple[ContainerBound, Holder]] = {}
    for holder in sorted(holders, key=lambda one: one.held_bytes):
        if holder.bound is not None:
            found[holder.bound.number] = holder.bound, holder
    return list(found.values())


def _item_bytes(bound: ContainerBound) -> float:
    return bound.held_bytes / max(bound.found_items, 1)


def _left_bytes(bound: ContainerBound) -> tuple[float, float, float]:
    left = max(bound.most_items - bound.items, 0)
    likely = _item_bytes(bound)
    return left * min(bound.least_item_bytes, likely), left * likely, left * max(bound.most_item_bytes, likely)


def _what(bound: ContainerBound, holder: Holder, others: int) -> str:
    if bound.kind == "lru_cache" and holder.name is not None:  # its name counts the answers as well
        holder = holder._replace(name=holder.name.partition(", ")[0])
    return named_holder(holder) + (f" and {others:,} more" if others else "")
