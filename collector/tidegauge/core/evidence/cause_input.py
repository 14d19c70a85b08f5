"""The input for naming a cause: compared snapshots, a holder search, the detector's verdict, and further figures.

Whoever collects evidence fills it in; ``core.evidence.causes`` reads it. Bytes throughout; ``None`` is not known, and
then not taken for a reason. Pure.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.evidence import PrivatePools, StackGrowth
from tidegauge.core.evidence.ledger import LinesByBlock, is_sure, line_of, nodes_grown, one_each_step
from tidegauge.core.evidence.owners import CodeLine, CodeRoots
from tidegauge.core.evidence.rank_evidence import NO_FACTS, Holder, HolderKind, HolderSearch, RankFacts
from tidegauge.core.evidence.workspaces import Workspaces
from tidegauge.core.verdicts import OK, LeakState, Signal, Verdict

MAIN_SHARE = 0.4
"""A holder or a line of less than this part of what grew does not explain it."""
NAMED_SHARE = 0.5
"""Growing holders of less than this part of what grew name no cause."""
_NO_LINES: LinesByBlock = {}


class MemoryGrowth(NamedTuple):
    """Growth of readings over one period: from the verdict's onset, if known, else the window's. Negative: a fall."""

    allocated_bytes: Optional[int] = None
    reserved_bytes: Optional[int] = None
    nontorch_bytes: Optional[int] = None
    inactive_split_bytes: Optional[int] = None
    host_bytes: Optional[int] = None
    """Of the rank's process tree (``RankView.host_rss_bytes``)."""
    alloc_retries: Optional[int] = None
    other_processes_bytes: Optional[int] = None
    """Of processes on the same GPU that Tidegauge does not watch, the rank's children left out."""
    children_bytes: Optional[int] = None
    """Of the rank's own child processes on any GPU."""


class CauseInput(NamedTuple):
    """Data of one window on one rank."""

    growth: tuple[StackGrowth, ...] = ()
    """What lives longer than the window by allocation stack (``analysis.growth.diff``), the largest first."""
    grown_bytes: Optional[int] = None
    """Live bytes at the late snapshot less those at the early one."""
    reserved_grown_bytes: Optional[int] = None
    """Reserved bytes at the late snapshot less those at the early one."""
    unused_bytes: Optional[int] = None
    """Reserved outside of private pools and not in use, at the late snapshot."""
    early_pools: Optional[PrivatePools] = None
    late_pools: Optional[PrivatePools] = None
    pools_line: Optional[CodeLine] = None
    """The line that asked for most of what private pools reserved within the window."""
    through: Optional[CodeLine] = None
    """The user's line that called the main line (``Evidence.through``)."""
    roots: Optional[CodeRoots] = None
    """Of the process, where its probe said."""
    window_steps: Optional[int] = None
    search: Optional[HolderSearch] = None
    facts: RankFacts = NO_FACTS
    """At the end of the window."""
    early_facts: RankFacts = NO_FACTS
    """At its beginning."""
    verdict: Verdict = OK
    readings: MemoryGrowth = MemoryGrowth()
    gpu_children: int = 0
    """Child processes of the rank that hold memory of a GPU now (NVML)."""
    children_bytes: Optional[int] = None
    """What they hold."""
    data_workers: int = 0
    """Those of them that are DataLoader's workers by their name, or that ``multiprocessing`` started."""
    late_step: Optional[int] = None
    live_bytes: Optional[int] = None
    """Live bytes at the late snapshot."""
    allocated_bytes: Optional[int] = None
    """As last read."""
    workspaces: Optional[Workspaces] = None
    """Of cuBLAS, where they became more."""
    lines_by_block: LinesByBlock = _NO_LINES
    """Of the blocks that are new in the late snapshot."""

    @property
    def signal(self) -> Optional[Signal]:
        """The signal that grows according to the detector; ``None`` if none does."""
        return None if self.verdict.state is LeakState.OK else self.verdict.signal

    @property
    def grew(self) -> bool:
        """Whether live bytes grew within the window; false where nobody compared."""
        return (self.grown_bytes or 0) > 0

    @property
    def live_grown_since_onset(self) -> int:
        """Growth of live bytes since the verdict's onset: that of the window at its rate, at most that of readings,
        which are taken anywhere in a step."""
        steps, onset_step = self.window_steps or 0, self.verdict.onset_step
        grown = max(self.grown_bytes or 0, 0)
        if steps > 0 and onset_step is not None and self.late_step is not None:
            grown = grown * max(self.late_step - onset_step, steps) // steps
        read = self.readings.allocated_bytes
        return grown if read is None else max(min(grown, read), 0)

    @property
    def holder(self) -> Optional[Holder]:
        """The one that explains most of what was looked for, or one that grows by an item a step where nothing of
        Python's explains most; ``None`` without one."""
        if self.search is None or not self.search.holders:
            return None
        first = max(self.search.holders, key=lambda one: one.held_bytes)
        explains = first.held_bytes >= MAIN_SHARE * self.search.wanted_bytes
        if explains and first.kind is not HolderKind.NATIVE:
            return first
        return self.steady_holder or (first if explains else None)

    @property
    def steady_holder(self) -> Optional[Holder]:
        """A container that grows by an item a step, or by several."""
        return None if self.search is None else one_each_step(self.search, self.window_steps or 0)

    @property
    def holder_is_sure(self) -> bool:
        """Whether ``holder`` may be named: it has a name, was found by more than the sizes of blocks, and is part of
        enough of the growth."""
        holder, search, grown = self.holder, self.search, nodes_grown(self.early_facts, self.facts)
        if holder is None or holder.name is None or search is None or not is_sure(holder, grown):
            return False
        sure = (one for one in search.holders if one.kind is not HolderKind.NATIVE and is_sure(one, grown))
        explained = sum(one.held_bytes for one in sure)
        return explained >= NAMED_SHARE * search.wanted_bytes or holder == self.steady_holder

    @property
    def line(self) -> Optional[CodeLine]:
        """The line that allocated the blocks of ``holder``, else the one that most of the growth came from; ``None``
        where no stack was recorded."""
        own = None if self.holder is None else line_of(self.holder, self.lines_by_block)
        if own is not None:
            return own
        by_line = self.bytes_by_line()
        return max(by_line, key=lambda line: by_line[line], default=None)

    def bytes_by_line(self) -> dict[CodeLine, int]:
        """Growth of each line of the user's own code."""
        by_line: dict[CodeLine, int] = {}
        for one in self.growth:
            if one.line is not None and one.grown_bytes > 0:
                by_line[one.line] = by_line.get(one.line, 0) + one.grown_bytes
        return by_line
