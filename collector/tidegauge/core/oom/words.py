"""Sentences about an out-of-memory error, made of its figures: the reason, and what would have to change."""

from __future__ import annotations

import math
from typing import Optional

from tidegauge.core.oom.case import OomCase
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import OK, LeakState

FIRST_STEPS = 2
"""Optimizer state appears in the first step, and the second is the first whole one: until then nothing has repeated."""


def whose_it_was(case: OomCase) -> str:
    held = f"other processes (or other ranks) held {case.say(case.others_bytes)} of the GPU"
    if not case.neighbours:
        return held
    pid, pid_bytes = case.neighbours[0]
    if len(case.neighbours) == 1:
        return f"process {pid} (another process, or another rank) held {case.say(pid_bytes)} of the GPU"
    return f"{held}, the largest is process {pid} with {case.say(pid_bytes)}"


def why_in_spite_of_room(_: OomCase) -> str:
    return "it was refused although enough GPU memory was free, and the figures do not say why"


def how_in_spite_of_room(_: OomCase) -> str:
    return (
        "if another process released memory a moment later. Other usual reasons: host memory or the page file was "
        "exhausted (Windows, WSL), a limit on a single allocation or on address space, a driver failure"
    )


def growth(case: OomCase) -> str:
    verdict = case.verdict or OK
    since = "" if verdict.onset_step is None else f" since step {verdict.onset_step}"
    return f"by {format_bytes(verdict.grown_bytes or 0)}{since}; without that growth it would have fit"


def lasts(case: OomCase, unless: str = "the cause is fixed") -> str:
    onset = None if case.verdict is None else case.verdict.onset_step
    again = "" if onset is None or case.step is None else f" after about {case.step - onset} steps"
    return f"from a checkpoint, but it would run out again{again} unless {unless}"


def how_with_pieces(case: OomCase) -> str:
    if case.expandable:
        return "expandable_segments is already on; use steadier shapes or less memory"
    setting = "with the allocator setting expandable_segments:True"
    return f"{setting}, which needs PyTorch 2.1 or later" if case.before_2_1 else setting


def why_pieces(case: OomCase) -> str:
    largest = ""
    if case.largest_free_bytes is not None and case.largest_free_bytes < case.wanted_bytes:
        largest = f" (largest: {format_bytes(case.largest_free_bytes)})"
    return f"the allocator held enough unused memory, but in blocks too small for the request{largest}"


def why_private(case: OomCase) -> str:
    free = f"{case.say(case.private_free_bytes)} were free in private pools (CUDA graphs, MemPool), out of reach"
    return f"{free}; reserved memory grew {growth(case)}" if case.private_pools_grew else free


def how_with_pools(case: OomCase) -> str:
    if case.private_pools_grew:
        how = lasts(case, "the graphs share one pool, or the job captures fewer")
    else:
        how = "let graphs share one pool, and drop graphs and pools that are no longer needed"
    return f"{how}; expandable_segments does not help"


def limit(case: OomCase) -> str:
    fraction = "" if case.cap_fraction is None else f", fraction {case.cap_fraction:.3g}"
    return f"{case.say(case.limit_bytes)}{fraction}"


def what_was_refused(case: OomCase) -> str:
    reserved, live = format_bytes(case.reserved_bytes), format_bytes(case.allocated_bytes)
    by_tensors = f" ({'all of it' if live == reserved else live} by live tensors)" if case.reserved_bytes else ""
    return (
        f"an allocation of {case.say(case.wanted_bytes)} failed with {reserved} reserved{by_tensors} and "
        f"{format_bytes(case.free_bytes)} free on the GPU"
    )


def how_with_cap(case: OomCase) -> str:
    needed_bytes = case.reserved_bytes + case.wanted_bytes
    part = ""
    if case.usable_bytes:
        part = f" (a fraction of {math.ceil(1e4 * needed_bytes / case.usable_bytes) / 1e4:g})"
    return f"under the same cap it would run out again; it needs at least {case.say(needed_bytes)}{part}"


def larger_than_any(case: OomCase) -> str:
    return f"this single request is larger than the GPU ({case.say(case.total_bytes)}) can hold"


def why_needed(case: OomCase) -> str:
    if case.step is None or case.verdict is None:
        return "live tensors leave no room for it: the program needs this much at this point"
    if case.step == 0:
        return (
            "no training step had finished: model and batch do not fit, or a program without steps (inference, an "
            "evaluation) needed more than before"
        )
    if case.step <= FIRST_STEPS:
        return f"{case.step} {'step' if case.step == 1 else 'steps'} had finished: model and batch do not fit"
    if case.verdict.state is LeakState.LEAK:
        return "memory grew, but by less than was missing: this step needed more than there is"
    return (
        "no lasting growth before: this step needed more than those before it (a longer batch, an evaluation), or "
        "memory grew too fast for a verdict"
    )


def answer(retry: Optional[bool], how: str) -> str:
    """Whether a retry makes sense: "Retry with …", "A retry would not help: …", "A retry may help if …"."""
    if retry is None:
        return f"A retry may help {how}."
    return f"Retry {how}." if retry else f"A retry would not help: {how}."


def needs_less(_: OomCase) -> str:
    return "it needs less memory (a smaller batch, activation checkpointing, sharding) or a larger GPU"
