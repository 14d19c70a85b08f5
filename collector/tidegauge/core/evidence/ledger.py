"""The ledger of a window's blocks: which holders grew, and which lines allocated the blocks that they hold. Pure.

Line and holder are found independently of each other; they speak of the same memory only where their blocks are the
same. Blocks by address come from the comparison of two snapshots, holders' addresses from the search in the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Optional

from tidegauge.core.evidence.owners import CodeLine, CodeRoots, is_library
from tidegauge.core.evidence.rank_evidence import Holder, HolderKind, HolderSearch, RankFacts

MAX_BLOCKS_PER_NODE = 4
"""A node of an autograd graph saves no more blocks, as a rule."""
MIN_STEPS = 4

LinesByBlock = Mapping[int, Optional[CodeLine]]
"""The line that allocated each block that is new in the late snapshot, by address."""


def nodes_grown(early: RankFacts, late: RankFacts) -> Optional[int]:
    """How many more autograd nodes kept tensors lead to; ``None``: not known."""
    if early.graph_nodes is None or late.graph_nodes is None:
        return None
    return late.graph_nodes - early.graph_nodes


def without_still_graphs(search: HolderSearch, grown: Optional[int], roots: Optional[CodeRoots] = None) -> HolderSearch:
    """The search without blocks that fit a graph by their size although graphs gained too few nodes to hold them: a
    graph that each step replaces holds one step, not a window. Graphs that a library's names lead to stay: where there
    are many objects, nobody counted their nodes."""
    if grown is None:
        return search
    still = [one for one in search.holders if _is_graph_by_size(one, roots) and not graphs_may_hold(one, grown)]
    if not still:
        return search
    holders = [one for one in search.holders if one not in still]
    native = next((one for one in holders if one.kind is HolderKind.NATIVE), None)
    left = sum(one.held_bytes for one in still)
    rest = Holder(HolderKind.NATIVE, "no Python object found refers to it", 0, 0) if native is None else native
    more = sum(one.tensors for one in still)
    whole = rest._replace(held_bytes=rest.held_bytes + left, tensors=rest.tensors + more)
    holders = [*(one for one in holders if one is not native), whole]
    return search._replace(
        holders=tuple(sorted(holders, key=lambda one: -one.held_bytes)), found_bytes=max(search.found_bytes - left, 0)
    )


def is_sure(holder: Holder, grown: Optional[int]) -> bool:
    """Whether more than sizes speak for a holder: references lead to most of its blocks, or its graphs grew."""
    if 2 * holder.by_size_bytes <= holder.held_bytes:
        return True
    return holder.kind is HolderKind.AUTOGRAD and grown is not None and graphs_may_hold(holder, grown)


def graphs_may_hold(holder: Holder, grown: int) -> bool:
    """Whether so many more nodes may hold the blocks that no reference leads to."""
    return MAX_BLOCKS_PER_NODE * grown >= holder.tensors - len(holder.blocks)


def one_each_step(search: HolderSearch, steps: int) -> Optional[Holder]:
    """The container that keeps as many blocks as the window had steps, or a multiple, each by a reference: whatever
    else grew, this one grows by an item a step. ``None``: there is none."""
    if steps < MIN_STEPS:
        return None
    found = [one for one in search.holders if one.kind is not HolderKind.NATIVE and _is_one_each_step(one, steps)]
    return max(found, key=lambda one: one.held_bytes, default=None)


def line_of(holder: Holder, lines: LinesByBlock) -> Optional[CodeLine]:
    """The line that allocated most of the blocks that references lead to; ``None``: no stack was recorded."""
    counted = Counter(lines[block] for block in holder.blocks if lines.get(block) is not None)
    return counted.most_common(1)[0][0] if counted else None


def without_addresses(search: HolderSearch) -> HolderSearch:
    """The search as it leaves the node: addresses are of no use elsewhere."""
    return search._replace(holders=tuple(one._replace(blocks=()) for one in search.holders))


def _is_graph_by_size(holder: Holder, roots: Optional[CodeRoots]) -> bool:
    is_librarys = holder.where is not None and is_library(holder.where.filename, roots)
    return holder.kind is HolderKind.AUTOGRAD and holder.by_size_bytes > 0 and not is_librarys


def _is_one_each_step(holder: Holder, steps: int) -> bool:
    blocks, full = len(holder.blocks), holder.bound is not None and holder.bound.items >= holder.bound.most_items
    each = round(blocks / steps)
    is_even = each >= 1 and abs(blocks - each * steps) <= max(0.1 * steps, 1)
    return is_even and not full and each * (holder.items or 0) >= blocks
