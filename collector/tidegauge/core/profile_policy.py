"""Decides which ranks of a node to ask for a memory profile, and when. Pure: no clock, no I/O.

=============  ========================================================================================================
what           rule
=============  ========================================================================================================
level          ``auto`` only: who chose ``stats`` is left alone, and ``trace`` records its own history
warm-up        the peak of the rank has not risen by ``grown_by`` for ``steady_steps`` steps and ``steady_s`` seconds
evidence       comes first: not while the verdict is anything but ``ok``, and not while the rank is asked for evidence
once           per process, and again when its peak rose by ``grown_by`` since, but not within ``again_s``
large jobs     more than ``few_ranks`` ranks: of those on this node the fullest and the emptiest
refused        a rank that is busy: after ``refused_again_s``, twice as long each time; one that cannot: never again
at once        ``most_at_once``
=============  ========================================================================================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.profile.rank_profile import PROFILE_PEAK_ROSE, PROFILE_WARMED_UP
from tidegauge.core.profile.request import MAX_S, TRIP_S
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import RankView
from tidegauge.core.wire import from_wire, to_wire

NEVER = float("inf")


class ProfileRules(NamedTuple):
    """Explained by the module's table."""

    levels: frozenset[str] = frozenset({"auto"})
    grown_by: float = 0.1
    steady_steps: int = 20
    steady_s: float = 30.0
    """Allocators settle, learning rates warm up, and the first evaluation may follow: the peak then rises, and with it
    the wait begins anew."""
    few_ranks: int = 8
    again_s: float = 600.0
    refused_again_s: float = 300.0
    most_at_once: int = 16
    """A node has rarely more than sixteen GPUs."""


DEFAULT_RULES = ProfileRules()


class RankToProfile(NamedTuple):
    """A rank to ask now."""

    view: RankView
    reason: str


@dataclass
class _Rank:
    """What is remembered of one process. Times are on the caller's monotonic clock."""

    peak_bytes: int
    """The highest so far, less what rose by less than ``grown_by`` since."""
    steady_since_s: float
    steady_since_step: int
    profiled_bytes: int | None = None
    """The peak that its last profile was made at; ``None``: it has none."""
    again_s: float = 0.0
    """Not asked before."""
    refusals: int = 0
    evidence_until_s: float = 0.0


class ProfilePolicy:
    """The ranks of one node. For one thread."""

    def __init__(self, rules: ProfileRules = DEFAULT_RULES) -> None:
        self._rules = rules
        self._ranks: dict[ProcessId, _Rank] = {}
        self._earlier: dict[ProcessId, _Rank] = {}
        """Of an earlier agent, of ranks that have no view yet."""

    def state_dict(self, process: ProcessId) -> Any:
        return to_wire(self._ranks.get(process))

    def load_state_dict(self, process: ProcessId, state: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` for what is no state."""
        self._earlier[process] = from_wire(_Rank, state)

    def wanted(
        self, views: Sequence[RankView], profiled: Mapping[ProcessId, int], now_s: float
    ) -> tuple[RankToProfile, ...]:
        """The ranks to ask now. ``profiled``: the peaks at which ranks were profiled, also by earlier agents."""
        living = [view for view in views if view.alive and view.steps > 0]
        self._ranks = {view.process: self._taken(view, now_s) for view in living}
        for process, peak_bytes in profiled.items():
            if process in self._ranks:
                self._ranks[process].profiled_bytes = peak_bytes
        if not any(self._is_due(view, now_s) for view in living):
            return ()  # as at nearly every round
        of_job: dict[JobKey, list[RankView]] = defaultdict(list)
        for view in living:
            of_job[JobKey(view.identity.job_id, view.identity.attempt, view.uid, view.group)].append(view)
        chosen = [view for ranks in of_job.values() for view in self._chosen(ranks, now_s)]
        due = [view for view in chosen if self._is_due(view, now_s)]
        return tuple(self._ask(view) for view in due[: self._rules.most_at_once])

    def asked(self, process: ProcessId, now_s: float) -> None:
        """The rank records: it is not asked again before that must have come to an end."""
        known = self._ranks.get(process)
        if known is not None:
            known.again_s = max(known.again_s, now_s + max(self._rules.again_s, MAX_S + TRIP_S))

    def done(self, process: ProcessId, now_s: float) -> None:
        """There is a profile of it."""
        known = self._ranks.get(process)
        if known is not None:
            known.refusals, known.again_s = 0, now_s + self._rules.again_s

    def refused(self, process: ProcessId, now_s: float, *, for_good: bool) -> None:
        """It does not record now, or the recording came to nothing."""
        known = self._ranks.get(process)
        if known is not None:
            known.again_s = NEVER if for_good else now_s + self._rules.refused_again_s * 2**known.refusals
            known.refusals = min(known.refusals + 1, 10)

    def gives_evidence(self, process: ProcessId, until_s: float) -> None:
        """The rank is asked for evidence, which takes until then."""
        known = self._ranks.get(process)
        if known is not None:
            known.evidence_until_s = max(known.evidence_until_s, until_s)

    def _taken(self, view: RankView, now_s: float) -> _Rank:
        peak_bytes = peak_of(view)
        known = self._ranks.get(view.process) or self._earlier.pop(view.process, None)
        if known is None:
            return _Rank(peak_bytes, now_s, view.steps)
        if peak_bytes > known.peak_bytes * (1 + self._rules.grown_by):
            known.peak_bytes, known.steady_since_s, known.steady_since_step = peak_bytes, now_s, view.steps
        return known

    def _chosen(self, ranks: Sequence[RankView], now_s: float) -> Sequence[RankView]:
        """Of the ranks of one job on this node, those past their warm-up of which a profile is wanted; of a large job
        only once all are, as it is not known before which will be the fullest."""
        warm = [view for view in ranks if self._is_warm(view, now_s)]
        if max(view.identity.world_size for view in ranks) <= self._rules.few_ranks:
            return warm
        if len(warm) < len(ranks):
            return ()
        by_peak = sorted(ranks, key=lambda view: (-peak_of(view), int(view.identity.rank)))
        return by_peak[:1] if len(by_peak) == 1 else (by_peak[0], by_peak[-1])

    def _is_warm(self, view: RankView, now_s: float) -> bool:
        known, rules = self._ranks[view.process], self._rules
        steps, seconds = view.steps - known.steady_since_step, now_s - known.steady_since_s
        return steps >= rules.steady_steps and seconds >= rules.steady_s

    def _is_due(self, view: RankView, now_s: float) -> bool:
        known = self._ranks[view.process]
        if view.identity.profile not in self._rules.levels or now_s < known.again_s:
            return False
        if view.verdict.state is not LeakState.OK or now_s < known.evidence_until_s:
            return False
        return known.profiled_bytes is None or peak_of(view) > known.profiled_bytes * (1 + self._rules.grown_by)

    def _ask(self, view: RankView) -> RankToProfile:
        is_first = self._ranks[view.process].profiled_bytes is None
        return RankToProfile(view, PROFILE_WARMED_UP if is_first else PROFILE_PEAK_ROSE)


def peak_of(view: RankView) -> int:
    """The highest allocated memory that the rank reports; a program may reset what PyTorch counts."""
    return max(view.allocated_bytes, view.allocated_peak_bytes or 0)
