"""Evidence on its way from agents into the database, and what is known of it without asking the database.

Reports never wait for the database: a piece waits here for the next turn of ``write``, and its agent, who goes on
sending it, hears in a later reply that it is kept. So a coordinator that dies loses nothing.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidegauge.core.evidence import Evidence
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.evidence import EvidenceNews, newest_of_ranks, news_of

log = logging.getLogger(__name__)

MAX_WAITING = 64
"""Pieces; further ones are not answered, and come again with the next report."""
MAX_PIECES_PER_REPORT = 16
"""Of one report are looked at: agents send them in order, and what is kept is not sent again."""
MAX_REMEMBERED = 10_000
"""Pieces of which it is remembered that they are kept: an agent that missed the answer asks within seconds."""
REMEMBER_JOBS_S = 7 * 86_400.0
"""A job without new evidence, and without an open incident, is forgotten; its evidence stays in the database. Evidence
is asked for when growth begins, and the incident opens when it is dangerous, which may be days later."""
MAX_JOBS, MAX_PIECES_PER_JOB = 5000, 40
"""Jobs, and pieces of one, that are remembered; those with the oldest evidence are forgotten first."""
MAX_RECALLED = 1000


class KeptPiece(Protocol):
    """``store.KeptEvidence``."""

    @property
    def kept_s(self) -> float: ...

    @property
    def evidence(self) -> Evidence: ...


class EvidenceTable(Protocol):
    """``store.EvidenceStore`` as far as it is used here. Every method raises ``AuditError``."""

    def keep(self, pieces: Sequence[Evidence], *, at_s: float) -> Collection[Evidence]:
        """All or none; returns those that were not there yet and could be written at all."""

    def recent(self, *, since_s: float, limit: int) -> Iterator[KeptPiece]:
        """The newest ``limit``, oldest first, one at a time."""

    def of_open_incidents(self, *, limit: int) -> Iterator[KeptPiece]:
        """The newest ``limit`` of jobs with an open incident, oldest first, one at a time."""

    def open_among(self, jobs: Collection[JobKey]) -> frozenset[JobKey]:
        """Those with an incident that is not closed."""


class KeptNews(NamedTuple):
    """What is remembered of a piece, and when it was written down."""

    kept_s: float
    news: EvidenceNews


_Piece = tuple[JobKey, str]
"""A piece by its job, whole, and id: ids are the job's own words."""


class EvidenceIndex:
    """``take`` and ``wanted_on`` from the threads that answer reports, ``recall`` and ``write`` from one thread,
    ``news`` from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[_Piece, Evidence] = {}
        self._kept: dict[_Piece, None] = {}
        """In the order in which they were kept."""
        self._news: dict[JobKey, tuple[KeptNews, ...]] = {}
        self._wanted: Mapping[str, frozenset[str]] | None = None
        """By host."""

    def take(self, reported: Sequence[Evidence]) -> tuple[str, ...]:
        """The ids of those pieces in a report that are kept; the others wait to be. Never blocks."""
        pieces = reported[:MAX_PIECES_PER_REPORT]
        with self._lock:
            for piece in pieces:
                place = _place(piece)
                if place not in self._kept and len(self._waiting) < MAX_WAITING:
                    self._waiting.setdefault(place, piece)
            missing = {piece.evidence_id for piece in pieces if _place(piece) not in self._kept}
        # Two ranks may claim the same id: only when both are kept may the agent forget what it calls so.
        return tuple(dict.fromkeys(piece.evidence_id for piece in pieces if piece.evidence_id not in missing))

    def wanted_on(self, hostname: str) -> frozenset[str] | None:
        """Keys of snapshots of this host's ranks that open incidents point to; ``None``: not known now."""
        wanted = self._wanted
        return None if wanted is None else wanted.get(hostname, frozenset())

    def has(self, job: JobKey, evidence_id: str) -> bool:
        """Whether this piece is known to be kept."""
        with self._lock:
            return (job.whole, evidence_id) in self._kept

    def news(self) -> Mapping[JobKey, Sequence[EvidenceNews]]:
        """What is known of each job's evidence, oldest first."""
        with self._lock:
            return {job: [one.news for one in kept] for job, kept in self._news.items()}

    def recall(self, table: EvidenceTable, *, now_s: float) -> Sequence[KeptNews]:
        """Read what another coordinator kept; returns it, oldest first. Raises ``AuditError``."""
        recent = table.recent(since_s=now_s - REMEMBER_JOBS_S, limit=MAX_RECALLED)
        # Thousands of pieces of half a megabyte: each is forgotten before the next is read.
        found = {
            _place(one.evidence): KeptNews(one.kept_s, news_of(one.evidence))
            for one in itertools.chain(table.of_open_incidents(limit=MAX_RECALLED), recent)
        }
        kept = sorted(found.values(), key=lambda one: one.kept_s)
        with self._lock:
            self._learn(kept)
        return kept

    def write(self, table: EvidenceTable, *, now_s: float) -> Sequence[EvidenceNews]:
        """Write down what waits; returns what is new. Raises ``AuditError``: then all of it waits on."""
        with self._lock:
            waiting = dict(self._waiting)
        try:
            new = [news_of(piece) for piece in table.keep(list(waiting.values()), at_s=now_s)]
            with self._lock:
                self._learn(KeptNews(now_s, news) for news in new)
                for place in waiting:
                    del self._waiting[place]
                    self._kept[place] = None
                for place in list(self._kept)[: max(len(self._kept) - MAX_REMEMBERED, 0)]:
                    del self._kept[place]
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
            self._kept[job.whole, one.news.brief.evidence_id] = None
            self._news[job] = (*self._news.pop(job, ()), one)[-MAX_PIECES_PER_JOB:]  # the newest job last

    def _look_at_incidents(self, open_jobs: frozenset[JobKey], now_s: float) -> None:
        """Forget jobs that nobody speaks of any more, and note which snapshots the others' incidents point to."""
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


def _place(piece: Evidence) -> _Piece:
    return piece.job.whole, piece.evidence_id
