"""Compares a job's ranks: growth of only some ranks is suspicious, growth of all may be the workload."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from math import inf, log2
from typing import NamedTuple, Optional

from tidegauge.core.verdicts import LeakState, Severity, Signal, Verdict

COMMON_SHARE = 0.5
"""Ranks beyond this share that grow alike make it a common rise."""
ALIKE_FACTOR = 3.0
"""A peer grows alike when it grows on the same signal at no less than this fraction (1/3) of the rank's rate."""

LONE_MIN_BYTES = 64 << 20
"""Growth of a rank with quiet peers is no more than suspected of the job below this: kernels that are loaded lazily add
44 MiB to one rank of FSDP2 before they do to the other."""
LONE_EATEN_PER_DOUBLING = 0.02
"""... and below this share of the head-room for each doubling of the ranks: 6 % of 8 ranks, 24 % of 4,096. Of so many
ranks whose memory wanders by a twenty-fifth of it, one seems to grow somewhere at most looks."""


class Suspect(NamedTuple):
    """A rank that grows."""

    rank: int
    odd: bool
    """Its peers do not grow, or grow much slower: a fault of this rank rather than of the workload."""
    verdict: Verdict


class JobVerdict(NamedTuple):
    """The verdict on a job, made of its ranks'."""

    state: LeakState
    severity: Optional[Severity]
    signal: Optional[Signal]
    common: bool
    """Most ranks grow alike: a workload that grows (curriculum, buffer) or a leak in code that all of them run."""
    suspects: tuple[Suspect, ...]
    """Ranks that grow, the one to look at first first."""


def judge_job(verdicts: Mapping[int, Verdict]) -> JobVerdict:
    """Compare the ranks of one attempt of one job. Ranks without a verdict are simply left out.

    The job's state is that of its surest rank. A rank whose peers are quiet is no surer for it: of many ranks that
    wander, one always wanders most. So its growth counts against the number of ranks that are looked at.
    """
    growing = {rank: verdict for rank, verdict in verdicts.items() if verdict.state is not LeakState.OK}
    if not growing:
        return JobVerdict(LeakState.OK, None, None, False, ())
    rates = _sorted_rates(growing.values())
    suspects: list[Suspect] = [
        Suspect(rank, _is_odd(verdict, rates, peers=len(verdicts) - 1), verdict) for rank, verdict in growing.items()
    ]
    suspects.sort(key=_first_to_look_at)
    first = suspects[0]
    alike = sum(not suspect.odd for suspect in suspects)
    common = len(verdicts) > 1 and alike > COMMON_SHARE * len(verdicts)
    state = max((_state_for_job(suspect, len(verdicts)) for suspect in suspects), key=lambda state: state.level)
    return JobVerdict(state, first.verdict.severity, first.verdict.signal, common, tuple(suspects))


def _state_for_job(suspect: Suspect, ranks: int) -> LeakState:
    """The state of the rank, or ``SUSPECTED`` where growth of one among so many ranks may be chance."""
    verdict = suspect.verdict
    if not suspect.odd or verdict.state is not LeakState.LEAK or verdict.severity is Severity.CRITICAL:
        return verdict.state
    eaten = inf if verdict.headroom_eaten is None else verdict.headroom_eaten
    small = verdict.grown_bytes is not None and verdict.grown_bytes < LONE_MIN_BYTES
    return LeakState.SUSPECTED if small or eaten < LONE_EATEN_PER_DOUBLING * log2(ranks) else LeakState.LEAK


def _first_to_look_at(suspect: Suspect) -> tuple[int, bool, float, int]:
    """Sort key: surest, then odd, then fastest in bytes per step, then lowest rank."""
    return -suspect.verdict.state.level, not suspect.odd, -_rate(suspect.verdict), suspect.rank


def _rate(verdict: Verdict) -> float:
    return 0.0 if verdict.bytes_per_step is None else verdict.bytes_per_step.likely


def _sorted_rates(growing: Iterable[Verdict]) -> Mapping[Optional[Signal], list[float]]:
    """The rates of growth on each signal, the slowest first."""
    rates: dict[Optional[Signal], list[float]] = {}
    for verdict in growing:
        rates.setdefault(verdict.signal, []).append(_rate(verdict) * ALIKE_FACTOR)
    for found in rates.values():
        found.sort()
    return rates


def _is_odd(verdict: Verdict, rates: Mapping[Optional[Signal], list[float]], *, peers: int) -> bool:
    """Fewer than half of the peers grow on the same signal at a similar or higher rate.

    Counted in sorted ``rates`` (times ``ALIKE_FACTOR``), its own among them: where thousands of ranks grow alike,
    looking from each of them at all others would take seconds.
    """
    if not peers:
        return False
    same, rate = rates[verdict.signal], _rate(verdict)
    alike = len(same) - bisect_left(same, rate) - (rate * ALIKE_FACTOR >= rate)
    return alike < COMMON_SHARE * peers
