"""The summary of a piece of evidence that incidents, messages and tables show."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.evidence.growth_bound import GrowthBound
from tidegauge.core.evidence.owners import CodeLine


class EvidenceCause(str, Enum):
    """The cause of growth, as far as evidence shows it (docs/evidence.md lists what each rests on)."""

    RETAINED_GRAPH = "retained_graph"
    PYTHON_CONTAINER = "python_container"
    CLOSURE = "closure"
    HOOK = "hook"
    EXCEPTION_FRAME = "exception_frame"
    CYCLE = "cycle"
    OPTIMIZER_REBUILT = "optimizer_rebuilt"
    CUDA_GRAPHS = "cuda_graphs"
    """Private pools: of each CUDA graph that is recorded without ``pool=``, of each ``MemPool``."""
    FRAGMENTATION = "fragmentation"
    COMMUNICATORS = "communicators"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    OTHER_PROCESS = "other_process"
    DATALOADER_WORKER = "dataloader_worker"
    PINNED_HOST = "pinned_host"
    CUBLAS_WORKSPACES = "cublas_workspaces"
    AUTOCAST_CACHE = "autocast_cache"
    DDP_BUCKETS = "ddp_buckets"
    UNKNOWN = "unknown"


class Confidence(str, Enum):
    """The certainty of a cause."""

    NAMED = "named"
    """Two independent lines of evidence agree."""
    LIKELY = "likely"
    """One does, and none contradicts it."""
    UNKNOWN = "unknown"


class EvidenceBrief(NamedTuple):
    """Summary of the evidence, as an incident carries it."""

    evidence_id: str
    rank: int
    at_unix_s: float
    line: Optional[CodeLine] = None
    """The line whose blocks grew most."""
    grown_bytes: Optional[int] = None
    """By that line, within ``window_steps``."""
    window_steps: Optional[int] = None
    through: Optional[CodeLine] = None
    """The user's line that called it (``Evidence.through``), where it is not ``line``."""
    holder: Optional[str] = None
    """``Holder.path`` of the one that holds most."""
    cause: EvidenceCause = EvidenceCause.UNKNOWN
    confidence: Confidence = Confidence.UNKNOWN
    advice: Optional[str] = None
    bound: Optional[GrowthBound] = None
    """As the rank's node sees it now, where it says so."""
    unfinished: bool = False
    """The holder search is worth another try soon (``Evidence.unfinished``)."""
    searching: bool = False
    """It goes on, and more follows (``Evidence.searching``)."""
    explains_reserved: bool = False
    """As ``CauseFound.explains_reserved``."""
