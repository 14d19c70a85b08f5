"""How far a replay under other settings can be trusted: by what a trace does not say (docs/allocator_model.md)."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from tidegauge.analysis.whatif.results import ReplayConfidence
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak
from tidegauge.core.allocator.trace import Action, Trace


class TraceDoubts(NamedTuple):
    """What speaks against every figure of a trace, and what against those of other settings only. In words."""

    guesses: tuple[str, ...]
    """These make a figure rough."""
    open_ends: tuple[str, ...]
    """These leave it close."""
    left_out: tuple[str, ...] = ()
    """These leave even the figures of today's settings close: events that had to be skipped."""


def trace_doubts(trace: Trace, recorded: Replay) -> TraceDoubts:
    """``recorded`` is the trace under its own settings."""
    guesses = []
    if not trace.complete:
        guesses.append(
            "the recording lacks its beginning: what lived before it is known, the order of free blocks is not"
        )
    if recorded.address_mismatches:
        guesses.append(
            f"under the recorded settings {recorded.address_mismatches:,} of {recorded.events:,} addresses came out "
            "otherwise: not all that happened is in the trace"
        )
    delayed = delayed_frees(trace)
    open_ends = []
    left_out = [
        f"{count:,} {reason} left out, without which every address came back" for reason, count in trace.skipped.items()
    ]
    if delayed:
        open_ends.append(
            f"{delayed:,} blocks were given back only when another stream had done with them (record_stream): "
            "under another setting that moment can be another"
        )
    return TraceDoubts(tuple(guesses), tuple(open_ends), tuple(left_out))


def confidence(
    doubts: TraceDoubts, settings: AllocatorSettings, *, today: bool
) -> tuple[ReplayConfidence, tuple[str, ...]]:
    """Of the figures of ``settings``, and why it is not exact."""
    reasons = doubts.left_out
    if not today:
        reasons += doubts.open_ends
        # Inside an expandable segment addresses are offsets of one reservation: nothing is left open there.
        if settings.tie_break is TieBreak.ADDRESS and not settings.expandable_segments:
            reasons += (
                "torch up to 2.11 takes the lowest address among equally large free blocks, and where cudaMalloc "
                "would have put them is not known",
            )
    if doubts.guesses:
        return ReplayConfidence.ROUGH, doubts.guesses + reasons
    return (ReplayConfidence.CLOSE if reasons else ReplayConfidence.EXACT), reasons


def delayed_frees(trace: Trace) -> int:
    """Blocks that stayed active after their owner freed them: the completion is not the very next event.

    0 where completions were not recorded at all.
    """
    codes, addresses = trace.action, trace.address
    pairs = zip(codes, islice(codes, 1, None), addresses, islice(addresses, 1, None))
    requested, completed = Action.FREE_REQUESTED.value, Action.FREE_COMPLETED.value
    if completed not in codes:
        return 0
    followed = sum(1 for code, then, here, there in pairs if code == requested and then == completed and here == there)
    return codes.count(requested) - followed
