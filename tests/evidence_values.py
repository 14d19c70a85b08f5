"""Small pieces of evidence for tests of escalation, store, incidents and commands, with what a test wants changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sample_views import MIB, NOW_S
from scheduler_values import JOB
from tidegauge.core.evidence import CauseFound, Evidence, SnapshotRef, StackGrowth
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import Holder, HolderKind, HolderSearch
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents.evidence import EvidenceNews, news_of

LINE = CodeLine("/home/ada/train.py", 41, "step")
CALLER = CodeLine("/home/ada/train.py", 90, "main")
HOLDER = Holder(
    HolderKind.CONTAINER,
    "train.py: Trainer.history (list, 412 items) -> Tensor[8,128,4096] float32",
    held_bytes=348 * MIB,
    tensors=29,
    name="Trainer.history",
    container="list",
    items=412,
)
NAMED = CauseFound(
    EvidenceCause.PYTHON_CONTAINER,
    Confidence.NAMED,
    ("one line allocated 97 % of what grew", "a list holds it"),
    "`Trainer.history` keeps a tensor of each step: append `loss.item()`",
)


def snapshot_ref(rank: int = 1, step: int = 234) -> SnapshotRef:
    key = f"lab/4711/0/rank-{rank}/step-{step}-1800000000250.snap.zst"
    return SnapshotRef(key, "node0:/var/lib/tidegauge/snapshots", step, NOW_S, 600_000)


def evidence(rank: int = 1, **changes: Any) -> Evidence:
    """Rank 1 keeps a tensor of each step in a list, over a window of 30 steps."""
    whole = Evidence(
        evidence_id=f"auto-{rank}",
        job=JOB,
        rank=rank,
        hostname="node0",
        process=ProcessId(1000 + rank, 5_000 + rank),
        reason="suspected",
        began_step=200,
        at_unix_s=NOW_S,
        early_step=204,
        late_step=234,
        grown_bytes=360 * MIB,
        growth=(StackGrowth(348 * MIB, 29, (LINE, CALLER), LINE, 12 * MIB),),
        live=(StackGrowth(900 * MIB, 75, (LINE, CALLER), LINE, 12 * MIB),),
        search=HolderSearch((HOLDER,), 348 * MIB, 348 * MIB, 90_000, 0.4, 0.03),
        cause=NAMED,
        snapshots=(snapshot_ref(rank, 204), snapshot_ref(rank, 234)),
        longest_stall_s=0.018,
    )
    return replace(whole, **changes)


def nothing_found(rank: int = 1, **changes: Any) -> Evidence:
    """A window that was cut short."""
    return evidence(
        rank, late_step=None, grown_bytes=None, growth=(), live=(), search=None, cause=CauseFound(), snapshots=(),
        problems=("no steps came",), **changes,
    )  # fmt: skip


def news(rank: int = 1, **changes: Any) -> EvidenceNews:
    return news_of(evidence(rank, **changes))
