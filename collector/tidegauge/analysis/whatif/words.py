"""Sentences about the trials of a trace, and the line for a job script. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Optional

from tidegauge.analysis.whatif.candidates import EXPANDABLE, GC, POPULAR
from tidegauge.analysis.whatif.results import (
    ReplayConfidence,
    SearchLimits,
    Trial,
    WhatIf,
    harms,
    is_dear,
    titled,
)
from tidegauge.core.alloc_conf import CUDA_NAME, GENERAL_NAME, merge_alloc_conf, parse_alloc_conf
from tidegauge.core.allocator.settings import MIB
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes

ALLOCATED_IS_ALL = 0.97
"""From this part of the limit on, allocated memory itself is the problem: no allocator packs without a gap."""


def findings(result: WhatIf) -> list[str]:
    """The findings as sentences, the most important first."""
    return [
        *_today(result),
        *_limits(result.limits),
        *_advice(result),
        *([] if result.recommended.replay.ooms else [*_price(result), *_simpler(result)]),
        *_worse(result),
        *_without_effect(result),
        *_trust(result),
    ]


def export_line(result: WhatIf) -> Optional[str]:
    """The shell line that sets the recommended settings; ``None`` where today's are to stay or none helps."""
    if result.recommended.today or result.recommended.replay.ooms:
        return None
    wanted = parse_alloc_conf(result.recommended.alloc_conf)
    return line_for(wanted, today=result.alloc_conf, torch_version=result.torch_version)


def calls(trial: Trial, steps: Optional[int]) -> str:
    """The number of device calls for memory, by step where the trace marks them: "1.1 calls a step"."""
    return f"{trial.device_calls:,} calls" if steps is None else f"{trial.device_calls / steps:.1f} calls a step"


def _today(result: WhatIf) -> Iterator[str]:
    today = result.today
    lowest = result.limits.lowest_bytes
    limit = f" of {format_bytes(lowest)} allowed" if lowest is not None else ""
    text = f"Today's settings ({titled(result.alloc_conf)}): reserved peaks at {_size(today)}{limit}"
    if today.waste_bytes:
        share = today.waste_bytes / today.replay.peak_reserved_bytes
        text += f", and {format_bytes(today.waste_bytes)} ({share:.0%}) of that is not allocated at that moment"
    yield text + f"; {_fate(today)}."


def _limits(limits: SearchLimits) -> Iterator[str]:
    if limits.cap_bytes is not None and limits.below_bytes is not None:
        yield (
            "The recording names no cap, but had one: the device had enough for what was refused. It was at least "
            f"{_mebibytes(limits.cap_bytes)}, which is taken here, and below {_mebibytes(limits.below_bytes)}: --cap "
            "tells the true one."
        )


def _advice(result: WhatIf) -> Iterator[str]:
    best, today = result.recommended, result.today
    if best.replay.ooms:
        yield from _nothing_helps(result)
        return
    if best.today:
        lowest = result.trials[0].replay.peak_reserved_bytes
        yield (
            f"No need to change anything: the best of {len(result.trials)} settings reserves {format_bytes(lowest)} "
            f"at its peak, today's {_size(today)}."
        )
    elif today.replay.ooms:
        retries = f", {_counts(best).partition(',')[0]}" if best.replay.alloc_retries else ""
        yield (
            f"Best: {titled(best.alloc_conf)}: no request fails (today: {today.replay.ooms:,}){retries}. "
            f"Peak reserved {_moves(best, today)}."
        )
    else:
        yield (f"Best: {titled(best.alloc_conf)}. Reserved peaks at {_against(best, today)}; {_fate(best)}.")
    if today.needs_bytes is not None and best.needs_bytes is not None:
        yield (
            f"Smallest cap that works (by search): {_mebibytes(best.needs_bytes)}; today's settings need "
            f"{_mebibytes(today.needs_bytes)}."
        )
    if result.died and not best.today:
        yield (
            "The recording ends, or goes on differently, where the job ran out of memory: what it would have needed "
            "after that is not in it."
        )


def _nothing_helps(result: WhatIf) -> Iterator[str]:
    needed, limit = result.needed_bytes, result.limits.lowest_bytes
    if limit is not None and needed >= ALLOCATED_IS_ALL * limit:
        yield (
            f"No setting helps: allocated memory itself is the problem. It wants {format_bytes(needed)} at its peak, "
            f"and there are {format_bytes(limit)} for it. `tidegauge oom` says which lines own it, `tidegauge "
            "estimate` what a smaller batch, checkpointing or another optimizer would save."
        )
        return
    best, today = result.recommended, result.today
    yield (
        f"No setting tried survives: all {len(result.trials)} run out of memory. Allocated memory peaks at "
        f"{format_bytes(needed)} where nothing limits it, and `tidegauge oom` says which lines own it."
    )
    if best.needs_bytes is not None and today.needs_bytes is not None:
        yield (
            f"The best, {titled(best.alloc_conf)}, needs a cap of {_mebibytes(best.needs_bytes)}; today's settings "
            f"need {_mebibytes(today.needs_bytes)}."
        )


def _price(result: WhatIf) -> Iterator[str]:
    best, today = result.recommended, result.today
    if is_dear(best, today):
        yield (
            f"Its price: {calls(best, result.steps)} to the device for memory, today {calls(today, result.steps)}. "
            "Each of them can wait for the GPU."
        )


def _simpler(result: WhatIf) -> Iterator[str]:
    best, lowest = result.recommended, result.trials[0]
    if best is not lowest and not best.today:
        yield f"{titled(lowest.alloc_conf)} would reach {_size(lowest)}: too little better to be worth it."


def _worse(result: WhatIf) -> Iterator[str]:
    """Settings that are often advised and would harm this job, and settings of the owner that harm it."""
    harmful = []
    for trial in result.trials:
        change = tuple(trial.changes.items())
        if len(change) == 1 and change[0] in POPULAR and harms(trial, result.today):
            fails = f", {_counts(trial)}" if trial.replay.ooms or trial.replay.alloc_retries else ""
            harmful.append(f"{':'.join(map(str, change[0]))} ({_size(trial)}{fails})")
        if len(change) == 1 and change[0][1] is None and harms(result.today, trial):
            yield f"{change[0][0]}, set today, does harm: without it reserved peaks at {_size(trial)}; {_fate(trial)}."
    if harmful:
        yield f"Often advised, and worse for this job than today's {_size(result.today)}: {', '.join(harmful)}."


def _without_effect(result: WhatIf) -> Iterator[str]:
    own, advised = parse_alloc_conf(result.alloc_conf), parse_alloc_conf(result.recommended.alloc_conf)
    if GC in own and result.limits.cap_bytes is None:
        yield f"{GC}, set today, does nothing: it counts from a cap, and this job has none."
    elif GC in own and own.get(EXPANDABLE) == "True":
        yield f"{GC}, set today, does nothing beside {EXPANDABLE}:True."
    if GC in advised and GC not in own and not result.limits.is_own:
        yield (
            f"{GC} counts from a cap that the job sets itself: torch.cuda.set_per_process_memory_fraction, or "
            "TIDEGAUGE_MEMORY_FRACTION. Without one it does nothing."
        )


def _trust(result: WhatIf) -> Iterator[str]:
    best = result.recommended
    if best.confidence is ReplayConfidence.EXACT:
        recorded = result.recorded
        if not recorded.address_mismatches:
            yield f"Exact: under its own settings the model gives back every address of {recorded.events:,} events."
        return
    yield f"Confidence: {best.confidence.value}. {_sentence('; '.join(best.doubts))}"


def _fate(trial: Trial) -> str:
    text = _counts(trial)
    if trial.failing_request_bytes is None or trial.largest_free_bytes is None:
        return text
    return (
        f"{text} (the first wants {format_bytes(trial.failing_request_bytes)}, the largest free block has "
        f"{format_bytes(trial.largest_free_bytes)})"
    )


def _counts(trial: Trial) -> str:
    retries, ooms = trial.replay.alloc_retries, trial.replay.ooms
    told = f"{retries:,} retr{'y' if retries == 1 else 'ies'}" if retries else "no retries"
    failed = f"{ooms:,} request{'s' * (ooms > 1)} out of memory" if ooms else "no request fails"
    return f"{told}, {failed}"


def _size(trial: Trial) -> str:
    return format_bytes(trial.replay.peak_reserved_bytes)


def _against(trial: Trial, today: Trial) -> str:
    """The peaks of both, in figures that tell them apart where they differ."""
    ours, theirs = _size(trial), _size(today)
    if ours == theirs:
        ours, theirs = (_mebibytes(one.replay.peak_reserved_bytes) for one in (trial, today))
    return f"{ours} instead of {theirs}" if ours != theirs else f"{_size(trial)}, as today"


def _moves(trial: Trial, today: Trial) -> str:
    """What becomes of the peak: "rises from 6.2 GiB to 6.5 GiB"."""
    ours, separator, theirs = _against(trial, today).partition(" instead of ")
    if not separator:
        return f"stays at {_size(trial)}"
    rises = trial.replay.peak_reserved_bytes > today.replay.peak_reserved_bytes
    return f"{'rises' if rises else 'falls'} from {theirs} to {ours}"


def _mebibytes(count: int) -> str:
    """Format caps that lie close together."""
    return f"{count / MIB:,.0f} MiB"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def line_for(settings: Mapping[str, str], *, today: str, torch_version: Optional[str]) -> str:
    """The shell line that replaces ``today``'s settings by ``settings``, quoted: a recording cannot inject commands.

    torch up to 2.9 reads the CUDA name only; an unknown torch is told by the name that all of them read. From 2.10 on
    the CUDA name still wins, so one that may carry today's settings has to go.
    """
    named = merge_alloc_conf({}, settings, torch_version=torch_version)
    if not named:
        return f"unset {GENERAL_NAME} {CUDA_NAME}"
    ((name, text),) = named.items()
    line = f"export {name}={shlex.quote(one_line(text, len(text)))}"
    return line if name == CUDA_NAME or not today else f"unset {CUDA_NAME}; {line}"
