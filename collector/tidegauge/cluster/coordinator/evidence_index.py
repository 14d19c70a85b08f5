"""Evidence on its way from agents into the database (``piece_queue``), and an index of it in memory."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidegauge.cluster.coordinator.piece_queue import PieceQueue
from tidegauge.core.evidence import Evidence
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.evidence import EvidenceNews, newest_of_ranks, news_of

if TYPE_CHECKING:
    from tidegauge.cluster.store import KeptEvidence

log = logging.getLogger(__name__)

REMEMBER_JOBS_S = 7 * 86_400.0
"""After this long a job without new evidence or an open incident is forgotten; its evidence stays in the database.
Evidence is requested when growth begins, and the incident may open days later."""
MAX_JOBS, MAX_PIECES_PER_JOB = 5000, 40
"""Jobs, and pieces of one, that are remembered; those with the oldest evidence are forgotten first."""
MAX_RECALLED = 1000


class EvidenceTable(Protocol):
    """The methods of ``store.EvidenceStore`` that are called here. Each raises ``AuditError``."""

    def keep(self, pieces: Sequence[Evidence], *, at_s: float) -> Collection[Evidence]:
        """Write all or none; returns those that are new and that the database takes."""

    def recent(self, *, since_s: float, limit: int) -> Iterator[KeptEvidence]:
        """The newest ``limit``, oldest first, one at a time."""

    def of_open_incidents(self, *, limit: int) -> Iterator[KeptEvidence]:
        """The newest ``limit`` of jobs with an open incident, oldest first, one at a time."""

    def open_among(self, jobs: Collection[JobKey]) -> frozenset[JobKey]:
        """The jobs with an open incident."""


class KeptNews(NamedTuple):
    """The brief of a piece, and the time when it was written down."""

    kept_s: float
    news: EvidenceNews


class EvidenceIndex:
    """``recall`` and ``write`` are for one thread; all other methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: PieceQueue[Evidence] = PieceQueue()
        self._news: dict[JobKey, tuple[KeptNews, ...]] = {}
        self._wanted: Mapping[str, frozenset[str]] | None = None
        """By host."""

    def take(self, reported: Sequence[Evidence]) -> tuple[str, ...]:
        """The ids of reported pieces that are kept; all others are queued. Never blocks."""
        return self._pieces.take(reported)

    def wanted_on(self, hostname: str) -> frozenset[str] | None:
        """Keys of snapshots of this host's ranks that open incidents refer to; ``None``: unknown now."""
        wanted = self._wanted
        return None if wanted is None else wanted.get(hostname, frozenset())

    def news(self) -> Mapping[JobKey, Sequence[EvidenceNews]]:
        with self._lock:
            return {job: [one.news for one in kept] for job, kept in self._news.items()}

    def recall(self, table: EvidenceTable, *, now_s: float) -> Sequence[KeptNews]:
        """Load what an earlier coordinator kept; returns it, oldest first. Raises ``AuditError``."""
        recent = table.recent(since_s=now_s - REMEMBER_JOBS_S, limit=MAX_RECALLED)
        # Thousands of pieces of half a megabyte: each is forgotten before the next is read.
        found = {
            (one.evidence.job.whole, one.evidence.evidence_id): KeptNews(one.kept_s, news_of(one.evidence))
            for one in itertools.chain(table.of_open_incidents(limit=MAX_RECALLED), recent)
        }
        kept = sorted(found.values(), key=lambda one: one.kept_s)
        with self._lock:
            self._learn(kept)
        return kept

    def write(self, table: EvidenceTable, *, now_s: float) -> Sequence[EvidenceNews]:
        """Write queued pieces into the database; returns the new ones. Raises ``AuditError``: then all stay queued."""
        waiting = self._pieces.waiting()
        try:
            new = [news_of(piece) for piece in table.keep(list(waiting.values()), at_s=now_s)]
            with self._lock:
                self._learn(KeptNews(now_s, news) for news in new)
                self._pieces.keep(waiting)
                jobs = list(self._news)
            self._look_at_incidents(table.open_among(jobs), now_s)
        except Exception:
            self._wanted = None
            raise
        for news in new:
            log.info("evidence %s of job %s rank %d is kept", news.brief.evidence_id, news.job.job_id, news.brief.rank)
        return new

    def _learn(self, kept: Iterable[KeptNews]) -> None:
        for one in kept:
            job = one.news.job
            self._pieces.keep([(job.whole, one.news.brief.evidence_id)])
            self._news[job] = (*self._news.pop(job, ()), one)[-MAX_PIECES_PER_JOB:]  # the newest job last

    def _look_at_incidents(self, open_jobs: frozenset[JobKey], now_s: float) -> None:
        """Forget jobs without news or open incidents, and find the snapshots that open incidents refer to."""
        wanted: dict[str, set[str]] = defaultdict(set)
        with self._lock:
            too_many = max(len(self._news) - MAX_JOBS, 0)
            self._news = {
                job: kept
                for place, (job, kept) in enumerate(self._news.items())
                if job in open_jobs or (place >= too_many and now_s - kept[-1].kept_s < REMEMBER_JOBS_S)
            }
            for job in open_jobs:
                for piece in newest_of_ranks(one.news for one in self._news.get(job, ())):
                    wanted[piece.hostname].update(ref.key for ref in piece.snapshots)
        self._wanted = {hostname: frozenset(keys) for hostname, keys in wanted.items()}
