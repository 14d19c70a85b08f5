"""Observations: per cause, the ranks of a job that show it, that may, and that do not report. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Optional

from tidegauge.core.host_memory import grown_most
from tidegauge.core.ids import DeviceUuid, JobKey
from tidegauge.core.incidents import CAUSE_OF_SIGNAL, Incident, IncidentCause, RankFinding
from tidegauge.core.incidents.known_errors import KnownErrors
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import LeakState, Severity, Signal
from tidegauge.core.views import GpuPlace, JobView, RankSummary

ExplainOom = Callable[[RankSummary, JobView], str]
"""Says for people what an out-of-memory error was: ``core.oom.explanation_for``."""


class Observation(NamedTuple):
    """An observation of one cause at one look. Nothing in it comes from a stale rank."""

    sure: tuple[RankFinding, ...] = ()
    """Ranks that do it beyond doubt, the one to look at first first: enough to open an incident, or to join one."""
    doubtful: tuple[RankFinding, ...] = ()
    """Ranks that may be doing it: enough to stay in an incident that they are in."""
    unheard: frozenset[int] = frozenset()
    """Ranks of which nobody can say that they stopped: stale, or ended in the middle of it."""
    uneasy: frozenset[int] = frozenset()
    """Ranks that have anything at all to say: too much to believe that they recovered. A verdict names the surest
    signal only, so growth of one signal can hide that of another."""
    explanation: Optional[str] = None
    failed: int = 0
    """Ranks that are known to have run out of memory in this incident; 0: no news."""


class ShareUse(NamedTuple):
    """One job's memory on one GPU that it shares with others."""

    ranks: frozenset[int]
    share: float
    """Share of the GPU that the job asked for, above 0 and at most 1."""
    used_bytes: int
    """Reserved by the allocators and held outside them, as far as known."""
    total_bytes: Optional[int]

    @property
    def allowed_bytes(self) -> Optional[int]:
        return None if self.total_bytes is None else int(self.share * self.total_bytes)


def growing_causes(job: JobView) -> frozenset[IncidentCause]:
    """Causes of which any rank has a verdict, be it stale or ended."""
    return frozenset(CAUSE_OF_SIGNAL[signal] for signal in job.growing_signals)


def see_growth(job: JobView, cause: IncidentCause, min_severity: Severity) -> Observation:
    """Ranks that grow by this cause, but not those whose growth is known to end in time. Sure is a LEAK of at least
    ``min_severity``."""
    sure: list[RankFinding] = []
    doubtful: list[RankFinding] = []
    unheard, uneasy = set(job.stale), set()
    for index in _worst_first(job):
        rank, number = job.ranks[index], int(job.ranks[index].identity.rank)
        if number in unheard or rank.verdict.state is LeakState.OK:
            continue
        if not rank.alive:
            if _cause(rank) is cause:
                unheard.add(number)
            continue
        if rank.is_bounded and _cause(rank) is cause:
            continue
        uneasy.add(number)
        if _cause(rank) is cause:
            established = rank.verdict.state is LeakState.LEAK
            severe = rank.verdict.severity is not None and rank.verdict.severity.level >= min_severity.level
            (sure if established and severe else doubtful).append(_finding(job, index))
    return Observation(tuple(sure), tuple(doubtful), frozenset(unheard), frozenset(uneasy))


def living_culprits(incident: Incident, job: JobView) -> tuple[int, ...]:
    """The incident's ranks that live and grow now; for an incident without growth, all that live."""
    processes = {finding.process: finding.rank for finding in incident.findings}
    cause = incident.key.cause
    return tuple(
        processes[rank.process]
        for rank in job.ranks
        if rank.alive and rank.process in processes and (not cause.is_growth or _does_it(rank, cause.as_seen))
    )


def _does_it(rank: RankSummary, cause: IncidentCause) -> bool:
    return rank.verdict.state is not LeakState.OK and _cause(rank) is cause and not rank.is_bounded


def see_ooms(job: JobView, known: KnownErrors, explain: Optional[ExplainOom]) -> Observation:
    """Ranks with an out-of-memory error that is not ``known``, the first to fail first.

    A rank that ended counts: most end by it.
    """
    news = [
        (rank.last_oom.at_unix_s, index)
        for index, rank in enumerate(job.ranks)
        if rank.last_oom is not None
        and int(rank.identity.rank) not in job.stale
        and not known.has(int(rank.identity.rank), rank.last_oom)
    ]
    news.sort()
    explanation = explain(job.ranks[news[0][1]], job) if news and explain is not None else None
    sure = tuple(_finding(job, index) for _, index in news)
    shown = ((int(rank.identity.rank), rank.last_oom) for rank in job.ranks if rank.last_oom is not None)
    heard = ((number, oom) for number, oom in shown if number not in job.stale)
    failed = known.count_with(heard) if news else 0
    return Observation(sure, unheard=frozenset(job.stale), explanation=explanation, failed=failed)


def see_share(job: JobView, uses: Iterable[ShareUse], tolerance: float) -> Observation:
    """Ranks on shared GPUs of which the job holds more than its share, the most excessive GPU first."""
    sure: list[RankFinding] = []
    doubtful: list[RankFinding] = []
    unheard = set(job.stale)
    explanation = None
    index_of = {int(rank.identity.rank): index for index, rank in enumerate(job.ranks)}
    for use in sorted(uses, key=_excess_bytes, reverse=True):
        allowed_bytes = use.allowed_bytes
        if allowed_bytes is None:
            unheard |= use.ranks
        elif use.used_bytes > allowed_bytes:
            findings = [_finding(job, index_of[number]) for number in sorted(use.ranks - unheard)]
            (sure if use.used_bytes > allowed_bytes * (1 + tolerance) else doubtful).extend(findings)
            if findings and explanation is None:
                explanation = _share_text(findings[0], use, allowed_bytes)
    return Observation(tuple(sure), tuple(doubtful), frozenset(unheard), explanation=explanation)


def share_uses(
    jobs: Iterable[JobView], gpu_total_bytes: Mapping[DeviceUuid, int]
) -> Mapping[JobKey, tuple[ShareUse, ...]]:
    """The memory of each job that asked for a share, per GPU on which another job has ranks, too.

    Two attempts of one job are not each other's neighbours. The GPU's total is the one handed in, else the limit of
    a rank without a cap.
    """
    by_key = {job.key: job for job in jobs}
    asked = {place for job in by_key.values() if job.asks_for_share for place, _ in job.living_places}
    tenants: dict[GpuPlace, dict[JobKey, list[int]]] = defaultdict(lambda: defaultdict(list))
    for key, job in by_key.items() if asked else ():
        for place, index in job.living_places:
            if place in asked:
                tenants[place][key].append(index)
    uses: dict[JobKey, list[ShareUse]] = defaultdict(list)
    for (_, uuid), by_job in tenants.items():
        for key, indices in by_job.items():
            mine = by_key[key].ranks[indices[0]].tenant
            others = (
                by_key[other].ranks[index]
                for other, theirs in by_job.items()
                if (other.job_id, other.uid) != (key.job_id, key.uid)
                for index in theirs
            )
            if not any(is_neighbour(rank, mine) for rank in others):
                continue
            use = _share_use(by_key[key], indices, gpu_total_bytes.get(uuid))
            if use is not None:
                uses[key].append(use)
    return {key: tuple(found) for key, found in uses.items()}


def is_neighbour(rank: RankSummary, tenant: Tenant) -> bool:
    """Whether a job of ``tenant`` on the same node shares the GPU that ``rank`` is shown on. For another tenant's rank
    the driver must have reported its memory there: by the rank's own word alone, anybody could have a job capped by
    naming its GPU."""
    return rank.tenant == tenant or rank.nontorch_bytes is not None


def severity_of(cause: IncidentCause, finding: RankFinding) -> Severity:
    """The severity of one rank's part in the cause."""
    if cause is IncidentCause.OUT_OF_MEMORY:
        return Severity.CRITICAL
    if cause is IncidentCause.SHARE_EXCEEDED:
        return Severity.WARNING
    return Severity.NOTE if finding.verdict.severity is None else finding.verdict.severity


def _cause(rank: RankSummary) -> Optional[IncidentCause]:
    return None if rank.verdict.signal is None else CAUSE_OF_SIGNAL[rank.verdict.signal]


def _worst_first(job: JobView) -> list[int]:
    """Indices of ``ranks``, in the order of ``suspects``."""
    place = {number: place for place, number in enumerate(job.suspects)}
    return sorted(range(len(job.ranks)), key=lambda index: place.get(int(job.ranks[index].identity.rank), len(place)))


def _finding(job: JobView, index: int) -> RankFinding:
    rank = job.ranks[index]
    return RankFinding(
        rank=int(rank.identity.rank),
        hostname=_hostname(job, index),
        node_id=job.rank_nodes[index] if job.rank_nodes else "",
        process=rank.process,
        gpu=rank.gpu,
        uuid=rank.uuid,
        step=rank.step,
        verdict=rank.verdict,
        allocated_bytes=rank.allocated_bytes,
        reserved_bytes=rank.reserved_bytes,
        nontorch_bytes=rank.nontorch_bytes,
        limit_bytes=rank.limit_bytes,
        oom=rank.last_oom,
        host_process=grown_most(rank.host_processes) if rank.verdict.signal is Signal.HOST else None,
        pod=None if rank.pod is None else rank.pod.full_name,
    )


def _hostname(job: JobView, index: int) -> str:
    return job.rank_hostnames[index] if job.rank_hostnames else job.ranks[index].identity.hostname


def _share_use(job: JobView, indices: Iterable[int], total_bytes: Optional[int]) -> Optional[ShareUse]:
    """``None`` for a job that asked for no share. The keeper's word counts before the rank's own claim."""
    ranks = [job.ranks[index] for index in indices]
    share = None if job.launch is None else job.launch.gpu_share
    share = ranks[0].identity.gpu_share if share is None else share
    if share is None:
        return None
    return ShareUse(
        ranks=frozenset(int(rank.identity.rank) for rank in ranks),
        share=share,
        used_bytes=sum(rank.reserved_bytes + (rank.nontorch_bytes or 0) for rank in ranks),
        total_bytes=_card_bytes(ranks) if total_bytes is None else total_bytes,
    )


def _card_bytes(ranks: Iterable[RankSummary]) -> Optional[int]:
    return next((r.limit_bytes for r in ranks if r.cap_fraction is None and r.limit_bytes is not None), None)


def _excess_bytes(use: ShareUse) -> int:
    return 0 if use.allowed_bytes is None else use.used_bytes - use.allowed_bytes


def _share_text(finding: RankFinding, use: ShareUse, allowed_bytes: int) -> str:
    return (
        f"the job uses {format_bytes(use.used_bytes)} of {finding.uuid} on {finding.hostname}; it requested a share of "
        f"{use.share:.0%} ({format_bytes(allowed_bytes)}), and other jobs share this GPU"
    )
