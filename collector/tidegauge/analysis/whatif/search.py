"""Searches for better allocator settings of a recorded job: replays the trace under those worth trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, Optional

from tidegauge.analysis.traces.replays import follow
from tidegauge.analysis.whatif.candidates import Candidates, Changes, in_effect
from tidegauge.analysis.whatif.results import (
    ReplayConfidence,
    SearchLimits,
    Trial,
    WhatIf,
    best_first,
    helps,
    recommended,
    titled,
)
from tidegauge.core.allocator.replay import replay as run_replay
from tidegauge.core.allocator.results import FailedRequest, Replay
from tidegauge.core.allocator.settings import MIB, AllocatorSettings, TieBreak, parse_settings
from tidegauge.core.allocator.trace import Action, Trace


def own_limits(trace: Trace, recorded: Replay) -> SearchLimits:
    """The recorded cap; where the file names none, what its failed requests show. ``recorded``: ``trace``, replayed."""
    if trace.cap_bytes is not None:
        return SearchLimits(trace.cap_bytes)
    failed = [request for request in recorded.failed if trace.action[request.event] == Action.OOM]
    # The driver had enough for these: so it was a cap that refused them.
    capped = [request for request in failed if trace.address[request.event] >= request.segment_bytes]
    if capped:
        below = min(_held(trace, request) + request.segment_bytes for request in capped)
        return SearchLimits(
            cap_bytes=recorded.peak_reserved_bytes, below_bytes=max(below, recorded.peak_reserved_bytes)
        )
    shown = [_held(trace, request) + trace.address[request.event] for request in failed]
    return SearchLimits(capacity_bytes=max(min(shown), recorded.peak_reserved_bytes) if shown else None)


def _held(trace: Trace, request: FailedRequest) -> int:
    """Reserved when the request failed for good: the allocator had first given back what it could."""
    given_back = 0
    for event in range(request.event - 1, -1, -1):
        action = trace.action[event]
        if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            given_back += trace.size_bytes[event]
        elif action != Action.FREE_COMPLETED:
            break
    return request.reserved_bytes - given_back


# How far a replay under other settings can be trusted: by what a trace does not say (docs/allocator_model.md).


class TraceDoubts(NamedTuple):
    """Doubts about all figures of a trace, or only about those of other settings. In words."""

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
    """The confidence in the figures of ``settings``, and why it is not exact."""
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


MAX_TRIALS = 30
"""Replays of different settings; a replay of 100,000 events takes a tenth of a second."""
CURVE_POINTS = 480
"""As many as a chart draws."""
CAP_STEPS = 128
"""A needed cap is found to this part of the peak, or to 2 MiB."""

OnProgress = Callable[[str], object]
"""Called before each replay with its subject."""


def whatif(
    trace: Trace,
    *,
    cap_bytes: Optional[int] = None,
    candidates: Optional[Sequence[Changes]] = None,
    version_is_given: bool = False,
    recorded: Optional[Replay] = None,
    on_progress: OnProgress = str,
) -> WhatIf:
    """Try today's settings, then ``candidates`` (default: those worth trying on this trace, and combinations).

    ``cap_bytes`` limits what PyTorch reserves, as ``set_per_process_memory_fraction`` does; without it, the limits that
    the recording names or shows are kept. ``version_is_given``: the trace's torch version is known, not concluded from
    the file. ``recorded``: the trace, replayed under its own settings, where that is done. Raises ``ValueError`` where
    torch would refuse the trace's own settings, or the trace cannot be followed.
    """
    on_progress("replaying the recorded settings")
    known, recorded, _ = follow(
        trace, cap_bytes=cap_bytes, version_is_given=version_is_given, recorded=recorded, curve_points=CURVE_POINTS
    )
    limits = own_limits(known, recorded)
    if cap_bytes is not None:
        limits = SearchLimits(cap_bytes, is_own=cap_bytes == trace.cap_bytes)
    # Keys are proposed by what the file says of its torch: that addresses go the way of one proves no key.
    proposed = Candidates(known, torch_version=trace.torch_version, cap_bytes=limits.cap_bytes)
    bench = _Bench(known, proposed, trace_doubts(known, recorded), limits, on_progress)
    today = bench.today(recorded if cap_bytes in (None, known.cap_bytes) else None)
    tried = [today]
    if candidates is None:
        tried += bench.each(proposed.single())
        ranked = best_first(tried[1:])
        helpful = [trial.changes for trial in ranked if helps(trial, today)]
        others = [trial.changes for trial in ranked if not helps(trial, today)]
        tried += bench.each(proposed.combined(helpful, others))
    else:
        tried += bench.each(candidates)
    ranked = best_first(tried)
    limited = today.replay.ooms or recorded.ooms
    needed_bytes = (bench.unlimited(today) if limited else today.replay).peak_allocated_bytes
    if today.replay.ooms:
        ranked = bench.with_needs(ranked, today, recommended(ranked, today))
        today = next(trial for trial in ranked if trial.today)
    return WhatIf(
        trials=tuple(ranked),
        today=today,
        recommended=recommended(ranked, today),
        recorded=recorded,
        needed_bytes=needed_bytes,
        alloc_conf=trace.alloc_conf,
        torch_version=trace.torch_version,
        limits=limits,
        steps=len(trace.marks.get("step", ())) or None,
        died=Action.OOM in trace.action,
    )


@dataclass
class _Bench:
    """Replays one trace under one limit, each setting once."""

    trace: Trace
    proposed: Candidates
    doubts: TraceDoubts
    limits: SearchLimits
    on_progress: OnProgress
    seen: set[AllocatorSettings] = field(default_factory=set)

    def today(self, recorded: Optional[Replay]) -> Trial:
        """The trace's own settings: as ``recorded`` under its own cap, replayed under another."""
        conf = self.trace.alloc_conf
        settings = parse_settings(conf, self.trace.torch_version)
        self.seen.add(in_effect(settings, cap_bytes=self.limits.cap_bytes))
        if recorded is None:
            self.on_progress("trying the recorded settings under this cap")
        outcome = recorded or self.run(settings)
        return Trial(conf, {}, settings, outcome, *confidence(self.doubts, settings, today=recorded is not None))

    def each(self, changes: Iterable[Changes]) -> Iterator[Trial]:
        """A trial of each that torch would accept and that has an effect of its own, as long as there is room."""
        wanted = []
        for change in changes:
            conf = self.proposed.conf(change)
            try:
                settings = parse_settings(conf, self.trace.torch_version)
            except ValueError:  # this torch refuses it, beside what the owner has set
                continue
            acting = in_effect(settings, cap_bytes=self.limits.cap_bytes)
            if acting not in self.seen and len(self.seen) < MAX_TRIALS:
                self.seen.add(acting)
                wanted.append((conf, change, settings))
        for number, (conf, change, settings) in enumerate(wanted, start=len(self.seen) - len(wanted) + 1):
            self.on_progress(f"trying setting {number}: {titled(conf)}")
            yield Trial(conf, change, settings, self.run(settings), *confidence(self.doubts, settings, today=False))

    def with_needs(self, ranked: Sequence[Trial], *wanted: Trial) -> list[Trial]:
        """The same, the ``wanted`` ones with the smallest cap that they survive."""
        return [
            replace(trial, needs_bytes=self.needs(trial)) if any(trial is one for one in wanted) else trial
            for trial in ranked
        ]

    def needs(self, trial: Trial) -> int:
        """The smallest cap under which no request fails, found by halving: a larger one is not tried again."""
        unlimited = self.unlimited(trial)
        low, enough = unlimited.peak_allocated_bytes, unlimited.peak_reserved_bytes
        step = max(2 * MIB, enough // CAP_STEPS)
        self.on_progress(f"searching for the smallest cap for {titled(trial.alloc_conf)}")
        while enough - low > step:
            middle = (low + enough) // 2
            if run_replay(self.trace, trial.settings, cap_bytes=middle).ooms:
                low = middle
            else:
                enough = middle
        return enough

    def unlimited(self, trial: Trial) -> Replay:
        """``trial`` with nothing to limit it."""
        self.on_progress(f"trying {titled(trial.alloc_conf)} without a limit")
        return run_replay(self.trace, trial.settings, cap_bytes=None)

    def run(self, settings: AllocatorSettings) -> Replay:
        return run_replay(
            self.trace,
            settings,
            cap_bytes=self.limits.cap_bytes,
            capacity_bytes=self.limits.capacity_bytes,
            curve_points=CURVE_POINTS,
        )
