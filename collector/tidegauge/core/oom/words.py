"""Sentences about an out-of-memory error, made of its figures: the reason, and what would have to change."""

from __future__ import annotations

import math

from tidegauge.core.oom.case import OomCase
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import OK, LeakState

FIRST_STEPS = 2
"""Optimizer state appears in the first step, and the second is the first whole one: until then nothing has repeated."""


def whose_it_was(case: OomCase) -> str:
    if case.freed_meanwhile:
        return "the GPU had enough free memory a moment later: other processes released some"
    return f"other processes (or other ranks) held {case.say(case.others_bytes)} of the GPU"


def growth(case: OomCase) -> str:
    verdict = case.verdict or OK
    since = "" if verdict.onset_step is None else f" since step {verdict.onset_step}"
    return f"by {format_bytes(verdict.grown_bytes or 0)}{since}; without that growth it would have fit"


def lasts(case: OomCase, unless: str = "the cause is fixed") -> str:
    onset = None if case.verdict is None else case.verdict.onset_step
    again = "" if onset is None or case.step is None else f" in about {case.step - onset} steps"
    return f"from a checkpoint, but it runs out again{again} unless {unless}"


def how_with_pieces(case: OomCase) -> str:
    if case.expandable:
        return "expandable_segments is already on; use steadier shapes or less memory"
    return "with the allocator setting expandable_segments:True"


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
    part = "all of it" if live == reserved else live
    return (
        f"an allocation of {case.say(case.wanted_bytes)} failed with {reserved} reserved ({part} by live tensors) and "
        f"{format_bytes(case.free_bytes)} free on the GPU"
    )


def how_with_cap(case: OomCase) -> str:
    needed_bytes = case.reserved_bytes + case.wanted_bytes
    part = ""
    if case.usable_bytes:
        part = f" (a fraction of {math.ceil(1e4 * needed_bytes / case.usable_bytes) / 1e4:g})"
    return f"under the same cap it runs out again; it needs at least {case.say(needed_bytes)}{part}"


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


def answer(retry: bool, how: str) -> str:
    """Whether a retry makes sense, as a sentence: "Retry with …", "A retry will not help: …"."""
    return f"Retry {how}." if retry else f"A retry will not help: {how}."


def needs_less(_: OomCase) -> str:
    return "it needs less memory (a smaller batch, activation checkpointing, sharding) or a larger GPU"
