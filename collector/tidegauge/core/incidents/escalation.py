"""Decides which ranks to ask for evidence, given suspected trends. Pure: no clock, no I/O.

=====================  ============================================================================================
what                   rule
=====================  ============================================================================================
level                  ``auto`` and ``trace`` only; who chose ``stats`` is left alone
verdict                ``suspected`` or ``leak``, of any signal
rank                   alive and heard of; of a job the worst first, one at a time; where all ranks grow alike, one
                       is enough; not for a rank to which the bound that holds on another does not apply
job                    runs. ``--no-actions`` does not matter: evidence changes nothing about a job
at once                ``most_of_tenant`` of one user, ``most_in_all``; the surest, most severe, soonest out of memory
                       first
again                  after ``period_s``, and after twice as long each time that nothing new was learnt, up to
                       ``longest_period_s``; ``ranks_per_period`` of a job within a period
enough                 a cause that was ``named`` is not looked for again for ``named_quiet_s``, but where it does
                       not explain what grows: its bound is refuted, unrelated, or another rank's alone
unfinished             a rank whose holder search failed or was cut short, the cause not named: after
                       ``unfinished_again_s``, twice as long each time
refused                a rank that is busy: after ``refused_again_s``, twice as long each time; one that cannot:
                       after ``longest_period_s``
=====================  ============================================================================================
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Optional

from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.request import evidence_request, window_for
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import CAUSE_OF_SIGNAL, IncidentCause
from tidegauge.core.incidents.actions import RankTarget
from tidegauge.core.incidents.evidence import EvidenceNews, adds_knowledge, settles
from tidegauge.core.jobs.tenants import tenant_of
from tidegauge.core.verdicts import LeakState, Signal, alarm_level
from tidegauge.core.views import JobView, RankSummary

SEARCH_AND_TRIP_S = 90.0
"""After its window a rank searches for holders and writes; its node reads, compares and sends."""


@dataclass(frozen=True)
class EscalationRules:
    """Limits on how often and how many ranks are asked; explained by the module's table."""

    levels: frozenset[str] = frozenset({"auto", "trace"})
    """``TIDEGAUGE_PROFILE``. ``trace`` has its history anyway: a window costs it two snapshots."""
    most_of_tenant: int = 4
    most_in_all: int = 8
    ranks_per_period: int = 4
    period_s: float = 1800.0
    longest_period_s: float = 21600.0
    named_quiet_s: float = 7200.0
    refused_again_s: float = 300.0
    unfinished_again_s: float = 300.0


DEFAULT_RULES = EscalationRules()


class EvidenceAsk(NamedTuple):
    """A request to one rank for evidence."""

    job: JobKey
    target: RankTarget
    evidence_id: str
    request: Mapping[str, Any]


class AskedRank(NamedTuple):
    """The record of a rank that was asked."""

    evidence_id: str
    began_s: float
    ends_s: float
    """Not under way any more from then on, whether or not anything came."""
    again_s: float
    """Not asked again before."""
    barren: int
    """How often it was asked since something new was learnt."""
    unfinished: int = 0
    """How many searches in a row, up to now, were cut short."""
    last: Optional[EvidenceBrief] = None
    """The newest piece of evidence."""


@dataclass(frozen=True)
class EscalationState:
    """State that ``escalate`` keeps from one call to the next."""

    looks: Mapping[tuple[JobKey, int], AskedRank] = field(default_factory=dict)
    """By job and rank."""
    quiet: Mapping[tuple[JobKey, IncidentCause], float] = field(default_factory=dict)
    """Until when a cause is not looked for in a job: it is named."""


class _Candidate(NamedTuple):
    view: JobView
    job: JobKey
    rank: RankSummary
    node_id: str

    @property
    def urgency(self) -> tuple[int, int, float]:
        verdict = self.rank.verdict
        state, severity = alarm_level(verdict.state, verdict.severity)
        oom_s = math.inf if verdict.seconds_to_oom is None else verdict.seconds_to_oom.low
        return -state, -severity, oom_s


def escalate(
    state: EscalationState, jobs: Iterable[JobView], *, now_s: float, rules: EscalationRules = DEFAULT_RULES
) -> tuple[tuple[EvidenceAsk, ...], EscalationState]:
    """The requests to send to ranks now, and the next state."""
    views = [view for view in jobs if view.ranks]
    state = _forget(state, {view.key for view in views}, now_s)
    asks: list[EvidenceAsk] = []
    for one in sorted(_candidates(views, rules), key=lambda one: one.urgency):
        if _may_be_asked(one, state, now_s, rules):
            ask = _ask(one, now_s)
            asks.append(ask)
            state = _with_ask(state, ask, now_s, rules)
    return tuple(asks), state


def refused(
    state: EscalationState, ask: EvidenceAsk, *, for_good: bool, now_s: float, rules: EscalationRules = DEFAULT_RULES
) -> EscalationState:
    """The rank does not give evidence now, or not at all."""
    place = ask.job, ask.target.rank
    look = state.looks.get(place)
    if look is None or look.evidence_id != ask.evidence_id:
        return state
    wait_s = rules.refused_again_s * _doublings(look.barren - 1)
    again_s = now_s + (rules.longest_period_s if for_good else min(wait_s, rules.longest_period_s))
    return _with_look(state, place, look._replace(ends_s=now_s, again_s=again_s))


def learnt(
    state: EscalationState, news: EvidenceNews, *, now_s: float, rules: EscalationRules = DEFAULT_RULES
) -> EscalationState:
    """Take in evidence that has come, whoever asked for it. Also rebuilds the state after a restart: all evidence,
    oldest first, with the times at which it came. What is known before a search is over changes nothing."""
    if news.brief.searching:
        return state
    place, brief = (news.job, news.brief.rank), news.brief
    look = state.looks.get(place)
    if look is None or (look.evidence_id != brief.evidence_id and now_s >= look.ends_s):
        look = _new_look(look, brief.evidence_id, now_s, now_s, rules)
    if adds_knowledge(look.last, brief):
        # Counted from when it was asked: the next period is not the longer for the answer having taken its time.
        look = look._replace(barren=0, again_s=look.began_s + rules.period_s, last=brief)
    look = look._replace(unfinished=look.unfinished + 1 if brief.unfinished else 0)
    if brief.unfinished:
        soon_s = now_s + rules.unfinished_again_s * _doublings(look.unfinished - 1)
        look = look._replace(again_s=min(look.again_s, soon_s))
    if look.evidence_id == brief.evidence_id:
        look = look._replace(ends_s=min(look.ends_s, now_s))
    until_s = now_s + rules.named_quiet_s
    settled = {(news.job, cause): until_s for cause in IncidentCause if settles(brief, cause)}
    state = replace(state, quiet={**state.quiet, **settled})
    return _with_look(state, place, look)


def under_way(state: EscalationState, now_s: float) -> tuple[tuple[JobKey, int], ...]:
    """Jobs and ranks that give evidence now."""
    return tuple(place for place, look in state.looks.items() if now_s < look.ends_s)


def _candidates(views: Iterable[JobView], rules: EscalationRules) -> Iterator[_Candidate]:
    """Ranks that are suspected and may be asked at all; of each job the one to look at first first."""
    for view in views:
        if not (view.running and view.suspects):
            continue
        places = {int(rank.identity.rank): (rank, node) for rank, node in zip(view.ranks, view.rank_nodes)}
        for number in view.suspects:
            rank, node_id = places.get(number, (None, ""))
            if rank is None or not rank.alive or number in view.stale:
                continue
            suspected = rank.verdict.state is not LeakState.OK and rank.verdict.signal is not None
            if suspected and rank.identity.profile in rules.levels:
                yield _Candidate(view, view.key, rank, node_id)


def _may_be_asked(one: _Candidate, state: EscalationState, now_s: float, rules: EscalationRules) -> bool:
    signal = one.rank.verdict.signal
    assert signal is not None, "a candidate grows in some signal"
    is_explained = _is_explained(one)
    if is_explained and now_s < state.quiet.get((one.job, CAUSE_OF_SIGNAL[signal]), -math.inf):
        return False
    of_job = {rank: look for (job, rank), look in state.looks.items() if job == one.job}
    if any(now_s < look.ends_s for look in of_job.values()):
        return False
    me = int(one.rank.identity.rank)
    if any(now_s < look.again_s for rank, look in of_job.items() if rank == me or (one.view.common and is_explained)):
        return False
    if sum(now_s - look.began_s < rules.period_s for look in of_job.values()) >= rules.ranks_per_period:
        return False
    busy = [job for job, _ in under_way(state, now_s)]
    mine = sum(tenant_of(job) == tenant_of(one.job) for job in busy)
    return len(busy) < rules.most_in_all and mine < rules.most_of_tenant


def _is_explained(one: _Candidate) -> bool:
    """Whether what was found in the job, if anything was, may be what grows here, too."""
    bound = one.rank.bound
    if bound is not None and bound.is_of_evidence:
        return bound.explains_growth
    is_of_tensors = one.rank.verdict.signal is Signal.ALLOCATED
    return not (is_of_tensors and any(other.holds and other.is_of_evidence for other in one.view.bounds.values()))


def _ask(one: _Candidate, now_s: float) -> EvidenceAsk:
    rank = int(one.rank.identity.rank)
    digest = hashlib.sha256("\0".join(map(str, one.job)).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    evidence_id = f"auto-{digest}-{rank}-{int(now_s)}"
    target = RankTarget(rank, one.node_id, one.rank.process, one.rank.step)
    request = evidence_request(evidence_id, EvidenceReason.SUSPECTED, window_for(one.rank.verdict))
    return EvidenceAsk(one.job, target, evidence_id, request)


def _with_ask(state: EscalationState, ask: EvidenceAsk, now_s: float, rules: EscalationRules) -> EscalationState:
    place = ask.job, ask.target.rank
    ends_s = now_s + float(ask.request["most_s"]) + SEARCH_AND_TRIP_S
    return _with_look(state, place, _new_look(state.looks.get(place), ask.evidence_id, now_s, ends_s, rules))


def _new_look(
    before: Optional[AskedRank], evidence_id: str, now_s: float, ends_s: float, rules: EscalationRules
) -> AskedRank:
    """After ``before``, and barren until something is learnt."""
    barren, unfinished, last = (0, 0, None) if before is None else (before.barren, before.unfinished, before.last)
    again_s = now_s + min(rules.period_s * _doublings(barren), rules.longest_period_s)
    return AskedRank(evidence_id, now_s, ends_s, again_s, barren + 1, unfinished, last)


def _with_look(state: EscalationState, place: tuple[JobKey, int], look: AskedRank) -> EscalationState:
    return replace(state, looks={**state.looks, place: look})


def _forget(state: EscalationState, present: set[JobKey], now_s: float) -> EscalationState:
    """Drop the records of jobs that are gone once their waits are over; those of living jobs stay, for comparison."""
    looks = {
        (job, rank): look
        for (job, rank), look in state.looks.items()
        if job in present or now_s < max(look.again_s, look.ends_s)
    }
    return EscalationState(looks, {place: until_s for place, until_s in state.quiet.items() if now_s < until_s})


def _doublings(times: int) -> float:
    return 2.0 ** min(max(times, 0), 20)
