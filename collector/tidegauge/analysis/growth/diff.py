"""Compares two snapshots: of one rank, or of two ranks at the same step. Pure.

Addresses say nothing here but how much is new: those of two processes mean nothing to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from tidegauge.analysis.growth.growth_by_stack import growth_by_stack
from tidegauge.analysis.snapshots.live_stacks import (
    StackKeys,
    StackWeight,
    UsedBlock,
    live_blocks,
    live_weights,
    pool_weights,
)
from tidegauge.core.allocator.trace import BlockState, Trace
from tidegauge.core.evidence import PrivatePools, StackGrowth
from tidegauge.core.evidence.held_memory import DEFAULT_POOL
from tidegauge.core.evidence.ledger import LinesByBlock
from tidegauge.core.evidence.owners import CodeLine, CodeRoots, asking_line, calling_line, is_library
from tidegauge.core.evidence.workspaces import BlockOnStream, Workspaces, grown_workspaces

THROUGH_SHARE = 0.9
"""A line that this share of the growth came through is the place to look at, whatever lines below it allocated."""


class LineGrowth(NamedTuple):
    """The growth that one line allocated, in bytes."""

    grown_bytes: int
    blocks: int
    line: Optional[CodeLine]
    """``None``: no stack was recorded; such blocks are told apart by their size."""
    caller: Optional[CodeLine]
    """The next line of the user's further out, by which most of it came."""
    stacks: int
    block_bytes: Optional[int]


class SizeGrowth(NamedTuple):
    """Blocks of one requested size."""

    block_bytes: int
    blocks: int
    """How many more there are."""
    grown_bytes: int


@dataclass(frozen=True)
class Comparison:
    """The growth between two snapshots, in bytes. Positive values grew; the largest comes first."""

    early_live_bytes: int
    late_live_bytes: int
    early_reserved_bytes: int
    late_reserved_bytes: int
    early_pools: PrivatePools
    late_pools: PrivatePools
    pools_line: Optional[CodeLine]
    """The line of the user's that asked for most of what private pools reserved within the late snapshot's history."""
    growth: tuple[StackGrowth, ...]
    """By stack. Blocks that only replace others do not count (``growth_by_stack``)."""
    shrunk: tuple[StackGrowth, ...]
    """The one that shrank most first; ``grown_bytes`` is negative."""
    lines: tuple[LineGrowth, ...]
    """By the line that asked for it, shrinking stacks set off; only lines that have grown."""
    by_size: tuple[SizeGrowth, ...]
    """Of all stacks together, as requested; sizes with fewer blocks at the end."""
    live: tuple[StackGrowth, ...]
    """What lives in the late snapshot; ``grown_bytes`` is all of it."""
    through: Optional[CodeLine]
    """The innermost line of the user's that nearly all growth came through: of a graph that is kept, whoever called the
    model. ``None``: there is none, or nothing grew."""
    late_without_stack_bytes: int
    new_blocks: int
    """Live late, and not at the same place from the same stack early: of one rank only."""
    workspaces: Optional[Workspaces] = None
    """Of cuBLAS, where they became more."""
    lines_by_block: LinesByBlock = field(default_factory=dict)
    """The line of the user's that allocated each of ``new_blocks``, by address."""

    @property
    def grown_bytes(self) -> int:
        """Live bytes late less those early."""
        return self.late_live_bytes - self.early_live_bytes

    @property
    def reserved_grown_bytes(self) -> int:
        return self.late_reserved_bytes - self.early_reserved_bytes

    @property
    def unused_bytes(self) -> int:
        """Reserved bytes of the late snapshot that are outside of private pools and not in use."""
        return self.late_reserved_bytes - self.late_live_bytes - self.late_pools.unused_bytes


def compare(early: Trace, late: Trace, *, roots: Optional[CodeRoots] = None) -> Comparison:
    """The live blocks at the end of both, by stack, line and size. Their histories play no part.

    ``roots`` tell the user's lines from those of libraries.
    """
    keys = StackKeys()
    before, after = list(live_blocks(early, keys)), list(live_blocks(late, keys))
    changed = growth_by_stack(before, after, roots)
    grown = [one for one in changed if one.grown_bytes > 0]
    lines = {block.key: asking_line(block.stack, roots) for block in {block.key: block for block in after}.values()}
    known = {(block.address, block.wanted_bytes, block.key) for block in before}
    new = [block for block in after if (block.address, block.wanted_bytes, block.key) not in known]
    return Comparison(
        early_live_bytes=sum(block.size_bytes for block in before),
        late_live_bytes=sum(block.size_bytes for block in after),
        early_reserved_bytes=sum(segment.total_bytes for segment in early.end or ()),
        late_reserved_bytes=sum(segment.total_bytes for segment in late.end or ()),
        early_pools=_private_pools(early),
        late_pools=_private_pools(late),
        pools_line=_pools_line(late, roots),
        growth=tuple(grown),
        shrunk=tuple(one for one in reversed(changed) if one.grown_bytes < 0),
        lines=tuple(_lines(changed, roots)),
        by_size=tuple(_sizes(before, after)),
        live=tuple(_live(weight, roots) for weight in live_weights(late)),
        through=_through(grown, roots),
        late_without_stack_bytes=sum(block.size_bytes for block in after if not block.stack),
        new_blocks=len(new),
        workspaces=grown_workspaces(_on_streams(early), _on_streams(late)),
        lines_by_block={block.address: lines[block.key] for block in new},
    )


def _private_pools(trace: Trace) -> PrivatePools:
    own = [segment for segment in trace.end or () if segment.pool != DEFAULT_POOL]
    used = (block for segment in own for block in segment.blocks if block.state is BlockState.ACTIVE_ALLOCATED)
    return PrivatePools(
        pools=len({segment.pool for segment in own}),
        reserved_bytes=sum(segment.total_bytes for segment in own),
        live_bytes=sum(block.size_bytes for block in used),
    )


def _pools_line(trace: Trace, roots: Optional[CodeRoots]) -> Optional[CodeLine]:
    by_line: dict[CodeLine, int] = {}
    for weight in pool_weights(trace):
        line = asking_line(weight.stack, roots)
        if line is not None:
            by_line[line] = by_line.get(line, 0) + weight.weight_bytes
    return max(by_line, key=lambda line: by_line[line], default=None)


def _on_streams(trace: Trace) -> Iterator[BlockOnStream]:
    for segment in trace.end or ():
        for block in segment.blocks:
            if block.state is BlockState.ACTIVE_ALLOCATED:
                yield block.requested_bytes or block.size_bytes, segment.stream


def _live(weight: StackWeight, roots: Optional[CodeRoots]) -> StackGrowth:
    each = weight.weight_bytes // weight.blocks if weight.blocks == 1 else None
    return StackGrowth(weight.weight_bytes, weight.blocks, weight.stack, asking_line(weight.stack, roots), each)


def _lines(changed: Iterable[StackGrowth], roots: Optional[CodeRoots]) -> list[LineGrowth]:
    groups: dict[object, list[StackGrowth]] = {}
    for one in changed:
        groups.setdefault(one.line or one.block_bytes, []).append(one)
    lines = [_line(group, roots) for group in groups.values()]
    return sorted((line for line in lines if line.grown_bytes > 0), key=lambda line: (-line.grown_bytes, -line.blocks))


def _line(group: Sequence[StackGrowth], roots: Optional[CodeRoots]) -> LineGrowth:
    """The growth of one line; ``group`` are its stacks in order of their growth."""
    sizes = {one.block_bytes for one in group}
    return LineGrowth(
        grown_bytes=sum(one.grown_bytes for one in group),
        blocks=sum(one.blocks for one in group),
        line=group[0].line,
        caller=calling_line(group[0].line, group[0].stack, roots),
        stacks=len(group),
        block_bytes=sizes.pop() if len(sizes) == 1 else None,
    )


def _sizes(before: Iterable[UsedBlock], after: Iterable[UsedBlock]) -> list[SizeGrowth]:
    changes: dict[int, list[int]] = {}
    for sign, blocks in ((-1, before), (1, after)):
        for block in blocks:
            change = changes.setdefault(block.wanted_bytes, [0, 0])
            change[0] += sign
            change[1] += sign * block.size_bytes
    sizes = [SizeGrowth(size, count, grown) for size, (count, grown) in changes.items() if count]
    return sorted(sizes, key=lambda size: -size.grown_bytes)


def _through(grown: Sequence[StackGrowth], roots: Optional[CodeRoots]) -> Optional[CodeLine]:
    """The innermost line, in the stack that grew most, of those that enough of the growth came through."""
    came: dict[CodeLine, int] = {}
    for one in grown:
        for line in {line for line in one.stack if not is_library(line.filename, roots)}:
            came[line] = came.get(line, 0) + one.grown_bytes
    enough = THROUGH_SHARE * sum(one.grown_bytes for one in grown)
    return next((line for one in grown[:1] for line in one.stack if came.get(line, -1) >= enough), None)
