"""A report's sentences: what a person reads first. The words are those of ``tidegauge.core.wording``."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.core import wording
from tidegauge.core.incidents import CAUSE_OF_SIGNAL
from tidegauge.core.verdicts import LeakState, Signal, Verdict
from tidegauge_exporter.report_values import RankReport, ReportInput, leaking, worst_first


def headline(report: ReportInput) -> str:
    """The job in one sentence."""
    if not any(rank.readings for rank in report.ranks):
        return "Nothing was recorded for this job."
    culprits = leaking(report.ranks)
    if culprits:
        return _accusation(culprits)
    suspects = [rank for rank in worst_first(report.ranks) if rank.verdict.state is LeakState.SUSPECTED]
    if suspects:
        verb = "may be leaking" if len(suspects) > 1 else "may leak"
        return f"{_ranks(suspects)} {verb}: memory grows, but not for long enough to be sure."
    steps = max(rank.readings[-1].step for rank in report.ranks if rank.readings)
    where = "the rank" if len(report.ranks) == 1 else f"any of the {len(report.ranks):,} ranks"
    return f"No leak in {steps:,} steps: memory does not keep growing on {where}."


def hint(signal: Signal | None) -> str | None:
    """Where to look, by what grows."""
    return None if signal is None else wording.hint(CAUSE_OF_SIGNAL[signal])


def time_to_oom(verdict: Verdict) -> str | None:
    """ "14-22 min", or in steps where time is not known; ``None`` without an end in sight."""
    return wording.time_left(verdict.seconds_to_oom, verdict.steps_to_oom)


def _accusation(culprits: Sequence[RankReport]) -> str:
    worst = culprits[0]
    verdict = worst.verdict
    cause = CAUSE_OF_SIGNAL[verdict.signal or Signal.ALLOCATED]
    does = f"{wording.does(cause, verdict.bytes_per_step)}{wording.since(verdict.onset_step)}"
    outlook = wording.outlook(verdict.severity, verdict.seconds_to_oom, verdict.steps_to_oom)
    if len(culprits) == 1:
        return f"{_ranks(culprits)} {does}{outlook}"
    same = wording.do(cause) if len({rank.verdict.signal for rank in culprits}) == 1 else "leak"
    return f"{_ranks(culprits)} {same}. The worst, rank {worst.identity.rank}, {does}{outlook}"


def _ranks(ranks: Sequence[RankReport]) -> str:
    return wording.capitalised(wording.name_ranks([rank.identity.rank for rank in ranks]))
