"""Matches evidence with incidents, and updates the incidents with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from tidegauge.core.evidence import Evidence, SnapshotRef, brief_of
from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident, IncidentCause
from tidegauge.core.views import JobView

MAX_RANKS = 8
"""Of an incident have evidence in it: further ones say the same again. The database has them all."""
MAX_SNAPSHOTS = 4 * MAX_RANKS
"""An incident says the places of: of all pieces that it has, and some of those that it had."""
_KEPT_BY_PYTHON = frozenset({IncidentCause.LEAK, IncidentCause.HOST_MEMORY})
"""What keeps tensors keeps objects on the host too: 512 B on the card may be a graph of megabytes beside it."""
_RESERVED = frozenset(cause for cause in IncidentCause if cause.as_seen is IncidentCause.FRAGMENTATION)
_NOT_PYTORCHS = frozenset({IncidentCause.OUTSIDE_ALLOCATOR})
_GROWTH = frozenset(cause for cause in IncidentCause if cause.is_growth)
_CRISES = frozenset(cause for cause in IncidentCause if not cause.is_growth)
"""Out of memory, share exceeded: whatever grew in the job is part of why."""

BELONGS_TO: Mapping[EvidenceCause, frozenset[IncidentCause]] = {
    EvidenceCause.RETAINED_GRAPH: _KEPT_BY_PYTHON,
    EvidenceCause.PYTHON_CONTAINER: _KEPT_BY_PYTHON,
    EvidenceCause.CLOSURE: _KEPT_BY_PYTHON,
    EvidenceCause.HOOK: _KEPT_BY_PYTHON,
    EvidenceCause.EXCEPTION_FRAME: _KEPT_BY_PYTHON,
    EvidenceCause.CYCLE: _KEPT_BY_PYTHON,
    EvidenceCause.OPTIMIZER_REBUILT: _KEPT_BY_PYTHON,
    EvidenceCause.CUDA_GRAPHS: _RESERVED | {IncidentCause.LEAK},
    EvidenceCause.FRAGMENTATION: _RESERVED,
    EvidenceCause.COMMUNICATORS: _NOT_PYTORCHS,
    EvidenceCause.OUTSIDE_ALLOCATOR: _NOT_PYTORCHS,
    EvidenceCause.OTHER_PROCESS: _NOT_PYTORCHS,
    EvidenceCause.DATALOADER_WORKER: _NOT_PYTORCHS,
    EvidenceCause.PINNED_HOST: frozenset({IncidentCause.HOST_MEMORY}),
    EvidenceCause.CUBLAS_WORKSPACES: frozenset({IncidentCause.LEAK}),
    EvidenceCause.AUTOCAST_CACHE: frozenset({IncidentCause.LEAK}),
    EvidenceCause.DDP_BUCKETS: frozenset({IncidentCause.LEAK}),
    EvidenceCause.UNKNOWN: _GROWTH,
}
"""Incidents of growth that a cause explains; ``_CRISES`` take evidence of every cause."""


class EvidenceNews(NamedTuple):
    """The part of a piece of evidence that incidents and escalation need."""

    job: JobKey
    hostname: str
    brief: EvidenceBrief
    snapshots: tuple[SnapshotRef, ...] = ()


def news_of(evidence: Evidence) -> EvidenceNews:
    """The part of it that stays in memory."""
    return EvidenceNews(evidence.job, evidence.hostname, brief_of(evidence), evidence.snapshots)


def belongs(brief: EvidenceBrief, cause: IncidentCause) -> bool:
    """Whether the evidence is about an incident of this cause in the same attempt of the same job."""
    return cause in _CRISES or cause in BELONGS_TO[brief.cause] or (brief.explains_reserved and cause in _RESERVED)


def settles(brief: EvidenceBrief, cause: IncidentCause) -> bool:
    """Whether the cause of such growth in that attempt is known. CUDA graphs do not settle a leak, though they may
    explain it: tensors may be kept beside them."""
    explained = cause.as_seen is IncidentCause.FRAGMENTATION or brief.cause is not EvidenceCause.CUDA_GRAPHS
    return brief.confidence is Confidence.NAMED and explained and belongs(brief, cause)


def says_most_first(briefs: Iterable[EvidenceBrief]) -> tuple[EvidenceBrief, ...]:
    """Sorted by certainty of the cause, then by what is known, then by the bytes."""
    return tuple(sorted(briefs, key=_telling, reverse=True))


def newest_of_ranks(pieces: Iterable[EvidenceNews]) -> tuple[EvidenceNews, ...]:
    """The newest of each rank, the one that says most first, at most ``MAX_RANKS``.

    One that found nothing does not take the place of one that found something: its window was cut short, say. Nor does
    one whose search goes on take the place of one whose search is over.
    """
    chosen: dict[int, EvidenceNews] = {}
    for piece in sorted(pieces, key=_says_last):
        chosen[piece.brief.rank] = piece
    ordered = sorted(chosen.values(), key=lambda piece: _telling(piece.brief), reverse=True)
    return tuple(ordered[:MAX_RANKS])


def with_evidence(incident: Incident, pieces: Sequence[EvidenceNews]) -> Incident:
    """The incident with what these pieces, of its own job, say of it; the same one if they say nothing of it.

    What it says already stays unless there is newer evidence of that rank: a database is pruned, an incident is not.
    """
    fitting = [piece for piece in pieces if belongs(piece.brief, incident.key.cause)]
    if not fitting:
        return incident
    known = {piece.brief.evidence_id for piece in fitting}
    earlier = [
        EvidenceNews(incident.key.job, "", brief) for brief in incident.evidence if brief.evidence_id not in known
    ]
    chosen = newest_of_ranks([*earlier, *fitting])
    places = _places(chosen)
    if any(piece.brief.evidence_id not in known for piece in chosen):
        # Nobody can tell whose the earlier places are; only those of pieces that have just been replaced are known.
        replaced = _places(piece for piece in fitting if piece not in chosen)
        places.update({place: None for place in incident.snapshots if place not in replaced})
    briefs, kept = tuple(_about(piece.brief, incident) for piece in chosen), tuple(places)[:MAX_SNAPSHOTS]
    key = incident.key._replace(cause=_cause_by(briefs, incident.key.cause))
    return replace(incident, key=key, evidence=briefs, snapshots=kept)


def _about(brief: EvidenceBrief, incident: Incident) -> EvidenceBrief:
    """The evidence with its bound marked unrelated where it holds on a rank that the incident is not about."""
    if brief.bound is None or not brief.bound.holds or brief.rank in incident.ranks:
        return brief
    return brief._replace(bound=brief.bound._replace(state=BoundState.UNRELATED))


def _cause_by(briefs: Iterable[EvidenceBrief], cause: IncidentCause) -> IncidentCause:
    """CUDA graphs as soon as one rank's evidence says so: what does not cure one rank does not cure the job."""
    if cause.as_seen is IncidentCause.FRAGMENTATION and shows_cuda_graphs(briefs):
        return IncidentCause.CUDA_GRAPHS
    return cause.as_seen


def shows_cuda_graphs(briefs: Iterable[EvidenceBrief]) -> bool:
    """Whether what grows lies in private pools on any rank, where no allocator setting helps."""
    return any(brief.cause is EvidenceCause.CUDA_GRAPHS for brief in briefs)


def with_bounds(pieces: Sequence[EvidenceNews], view: JobView) -> Sequence[EvidenceNews]:
    """The pieces of a job, each with its bound as the rank's node sees it now."""
    return [_with_bound(piece, view.bounds.get(piece.brief.rank)) for piece in pieces] if view.bounds else pieces


def _with_bound(piece: EvidenceNews, now: Optional[GrowthBound]) -> EvidenceNews:
    told = piece.brief.bound
    if told is None or now is None or told.step != now.step:
        return piece
    return piece._replace(brief=piece.brief._replace(bound=now))


def is_news(before: Incident, after: Incident) -> bool:
    """Whether anything that people act on became known, or better known; newer figures alone are no news."""
    told = {_essence(brief) for brief in before.evidence}
    return any(_essence(brief) not in told for brief in after.evidence)


def adds_knowledge(before: Optional[EvidenceBrief], now: EvidenceBrief) -> bool:
    """Whether a rank's newest piece says more than the one before it."""
    return _found_anything(now) and (before is None or _essence(before) != _essence(now))


def snapshot_place(ref: SnapshotRef) -> str:
    """A snapshot's location for people: the store, then the key in it."""
    return f"{ref.store.rstrip('/')}/{ref.key}"


def _places(pieces: Iterable[EvidenceNews]) -> dict[str, None]:
    return dict.fromkeys(snapshot_place(ref) for piece in pieces for ref in piece.snapshots)


def _essence(brief: EvidenceBrief) -> tuple[object, ...]:
    bound = None if brief.bound is None else brief.bound.state
    return brief.rank, brief.line, brief.holder is not None, brief.cause, brief.confidence, bound, brief.searching


def _found_anything(brief: EvidenceBrief) -> bool:
    return brief.line is not None or brief.holder is not None or brief.cause is not EvidenceCause.UNKNOWN


def _says_last(piece: EvidenceNews) -> tuple[bool, bool, float]:
    brief = piece.brief
    return _found_anything(brief), not brief.searching, brief.at_unix_s


def _telling(brief: EvidenceBrief) -> tuple[int, bool, bool, int, int]:
    founded = (Confidence.UNKNOWN, Confidence.LIKELY, Confidence.NAMED).index(brief.confidence)
    return founded, brief.holder is not None, brief.line is not None, brief.grown_bytes or 0, -brief.rank
