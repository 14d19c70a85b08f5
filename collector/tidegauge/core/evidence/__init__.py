"""Evidence of one rank's growth: the line that allocates the memory, the object that holds it, and the cause.

Made in three places, each adding its part: the probe (``core.evidence.rank_evidence``: what only the process itself can
say), the agent (`Evidence`: the two snapshots compared, the cause named), the coordinator (``core.evidence.brief``:
what messages and tables say of it). Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.evidence.growth_bound import GrowthBound
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import NO_FACTS, HolderKind, HolderSearch, RankFacts
from tidegauge.core.ids import JobKey, ProcessId

MAX_GROWTHS = 20
"""Stacks of one piece of evidence, the largest first: what is further down explains nothing."""
MAX_LIVE = 60
"""Stacks of what lived at the end, for the flame graph."""
MAX_FRAMES = 40
"""Of each of these stacks, from its innermost on."""


class EvidenceReason(str, Enum):
    """The reason for collecting evidence."""

    SUSPECTED = "suspected"
    """The detector suspected a trend, and the rank's level is ``auto``."""
    ASKED = "asked"
    """Somebody asked: ``tidegauge snapshot``, the terminal view."""
    POLICY = "policy"
    """A rung ``snapshot`` of a policy."""


class StackGrowth(NamedTuple):
    """Blocks allocated from one stack: how many more at the end of the window than at its beginning."""

    grown_bytes: int
    """Negative: fewer."""
    blocks: int
    """Net."""
    stack: tuple[CodeLine, ...]
    """Innermost first; empty: it was not recorded."""
    line: Optional[CodeLine]
    """The first line of the user's own code (``owners.asking_line``)."""
    block_bytes: Optional[int] = None
    """The size of all of these blocks, where they are of one size."""


class PrivatePools(NamedTuple):
    """Contents of the private pools in one snapshot, in bytes: the pools of CUDA graphs and ``MemPool``, told by their
    segments' ``segment_pool_id``. Free memory in them is unusable outside their pool."""

    pools: int = 0
    reserved_bytes: int = 0
    live_bytes: int = 0
    """Of these, in use."""

    @property
    def unused_bytes(self) -> int:
        return self.reserved_bytes - self.live_bytes


class SnapshotRef(NamedTuple):
    """Reference to a snapshot in a store."""

    key: str
    """Its path in the store: ``<cluster>/<uid>/<job>/<attempt>/rank-<rank>/step-<step>-<unix ms>.snap.zst``."""
    store: str
    """URL of the store, or ``HOST:FOLDER`` for one on a node's own disk."""
    step: int
    at_unix_s: float
    stored_bytes: int


class CauseFound(NamedTuple):
    """A cause with the evidence for it and the advice for this code."""

    cause: EvidenceCause = EvidenceCause.UNKNOWN
    confidence: Confidence = Confidence.UNKNOWN
    because: tuple[str, ...] = ()
    """The evidence, each a sentence for people."""
    advice: Optional[str] = None
    """What to change: ``losses.append(loss)`` keeps a tensor each step: append ``loss.item()``."""
    explains_reserved: bool = False
    """What keeps the tensors is why reserved memory grows, too: they lie scattered."""


NOT_KNOWN = CauseFound()
"""Honestly."""


@dataclass(frozen=True)
class Evidence:
    """Everything known about one window on one rank. The agent makes it, reports carry it, SQL stores it."""

    evidence_id: str
    job: JobKey
    rank: int
    hostname: str
    process: ProcessId
    reason: str
    began_step: int
    at_unix_s: float
    """When it was complete."""
    early_step: Optional[int] = None
    late_step: Optional[int] = None
    grown_bytes: Optional[int] = None
    """Live bytes at the late snapshot less those at the early one; ``None`` without both."""
    growth: tuple[StackGrowth, ...] = ()
    """The largest first, shrinking ones left out; at most ``MAX_GROWTHS``."""
    through: Optional[CodeLine] = None
    """The user's line that called the first one: that nearly all growth came through (of a graph that is kept, whoever
    called the model), else the next one further out. ``None``, or the first line itself: there is none."""
    live: tuple[StackGrowth, ...] = ()
    """What lived at the late snapshot (``grown_bytes`` is all of it), the largest first; at most ``MAX_LIVE``."""
    early_pools: Optional[PrivatePools] = None
    late_pools: Optional[PrivatePools] = None
    """At the two snapshots; ``None`` without both."""
    search: Optional[HolderSearch] = None
    unfinished: bool = False
    """The holder search failed or was cut short, and the cause is not named: another try may find more."""
    searching: bool = False
    """The holder search goes on: this is known so far, and names no cause. The whole evidence follows
    (``rank_evidence.ids_so_far``)."""
    facts: RankFacts = NO_FACTS
    cause: CauseFound = NOT_KNOWN
    bound: Optional[GrowthBound] = None
    """What most of the growth goes into, if that cannot take ever more."""
    snapshots: tuple[SnapshotRef, ...] = ()
    longest_stall_s: float = 0.0
    problems: tuple[str, ...] = ()
    """What is missing and why, each a sentence for people."""

    @property
    def piece_id(self) -> str:
        return self.evidence_id

    @property
    def window_steps(self) -> Optional[int]:
        """Training steps between the two snapshots."""
        if self.early_step is None or self.late_step is None:
            return None
        return self.late_step - self.early_step


def brief_of(evidence: Evidence) -> EvidenceBrief:
    """The summary of ``evidence`` for an incident."""
    first = evidence.growth[0] if evidence.growth else None
    holders = evidence.search.holders if evidence.search is not None else ()
    return EvidenceBrief(
        evidence_id=evidence.evidence_id,
        rank=evidence.rank,
        at_unix_s=evidence.at_unix_s,
        line=None if first is None else first.line,
        grown_bytes=None
        if first is None
        else sum(one.grown_bytes for one in evidence.growth if one.line == first.line),
        window_steps=evidence.window_steps,
        through=evidence.through,
        holder=holders[0].path if holders and holders[0].kind is not HolderKind.NATIVE else None,
        cause=evidence.cause.cause,
        confidence=evidence.cause.confidence,
        advice=evidence.cause.advice,
        bound=evidence.bound,
        unfinished=evidence.unfinished,
        searching=evidence.searching,
        explains_reserved=evidence.cause.explains_reserved,
    )
