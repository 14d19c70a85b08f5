"""Report rate: selects which reports an agent sends: all, or on a large cluster those with news and a few others.

The coordinator sets the interval without news (``ReportReply.report_every_s``). Changed figures alone
(memory, steps) wait for it; whatever the coordinator acts on does not.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable

from tidegauge.core.views import NodeSummary, RankSummary


def standing(summary: NodeSummary) -> Hashable:
    """The state whose change is reported at once: which ranks are there, what the detector says of them, what
    the node has to give and to ask."""
    return (
        frozenset(map(_rank_standing, summary.ranks)),
        summary.launches,
        tuple((gpu.uuid, gpu.usable_bytes) for gpu in summary.gpus),
        tuple((piece.job, piece.evidence_id) for piece in summary.evidence),
        summary.pods_wanted,
        summary.settings_digest,
        summary.metrics_address,
        summary.slurm_node,
    )


def _rank_standing(rank: RankSummary) -> Hashable:
    verdict = rank.verdict
    return (
        rank.identity, rank.process, rank.uid, rank.uuid, rank.alive, verdict.state, verdict.severity, verdict.signal,
        verdict.cause, rank.cap_fraction, rank.last_oom, rank.launch, rank.slurm, rank.pod,
    )  # fmt: skip


class ReportPace:
    """Decides whether to send a report. ``period_s``: shortest interval; ``node_id`` staggers nodes that start at once.

    Times are on the caller's clock.
    """

    def __init__(self, period_s: float, *, node_id: str) -> None:
        self._period_s = period_s
        self._share = zlib.crc32(node_id.encode()) / (1 << 32)
        """This node's place in the time between two reports: 0 to 1."""
        self._every_s = 0.0
        self._due_s = float("-inf")
        self._told: Hashable = None

    def wants(self, summary: NodeSummary, now_s: float) -> bool:
        """Whether this one is to be sent. Call ``sent`` if it was."""
        if self._every_s <= self._period_s or summary.order_results:
            return True
        # To the nearest beat: reports are made every period, and one that is due between two of them is not put off.
        return now_s >= self._due_s - self._period_s / 2 or standing(summary) != self._told

    def sent(self, summary: NodeSummary, now_s: float) -> None:
        """The coordinator is being told this."""
        self._due_s = now_s + self._every_s
        self._told = standing(summary)

    def slow_to(self, every_s: float, now_s: float) -> None:
        """Set the interval that the coordinator wants; repeating it changes nothing."""
        if every_s == self._every_s:
            return
        slower, self._every_s = every_s > self._every_s, every_s
        self._due_s = now_s + every_s * (self._share if slower else 1.0)

    def failed(self) -> None:
        """Nobody knows what arrived: the next one is sent whatever it says."""
        self._due_s = float("-inf")
