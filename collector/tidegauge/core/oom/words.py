"""How an out-of-memory error is told to people, from its figures: each reason, and what would have to be changed.

Pure. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import math

from tidegauge.core.oom.case import OomCase
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import OK, LeakState

FIRST_STEPS = 2
"""Optimizer state appears in the first step, and the second is the first whole one: until then nothing has repeated."""


def whose_it_was(case: OomCase) -> str:
    if case.freed_meanwhile:
        return "the GPU had enough free a moment later: other processes gave memory back meanwhile"
    return f"other processes (or other ranks) held {case.say(case.others_bytes)} of the GPU"


def growth(case: OomCase) -> str:
    verdict = case.verdict or OK
    since = "" if verdict.onset_step is None else f" since step {verdict.onset_step}"
    return f"by {format_bytes(verdict.grown_bytes or 0)}{since}, without which it would have fitted"


def lasts(case: OomCase, unless: str = "the cause is found") -> str:
    onset = None if case.verdict is None else case.verdict.onset_step
    again = "" if onset is None or case.step is None else f" in about {case.step - onset} steps"
    return f"from a checkpoint, but it ends like this again{again} unless {unless}"


def how_with_pieces(case: OomCase) -> str:
    if case.expandable:
        return "expandable_segments is on already; steadier shapes, or less memory, would help"
    return "with the allocator setting expandable_segments:True"


def why_pieces(case: OomCase) -> str:
    largest = ""
    if case.largest_free_bytes is not None and case.largest_free_bytes < case.wanted_bytes:
        largest = f": the largest has {format_bytes(case.largest_free_bytes)}"
    return f"the allocator held enough unused memory, but in pieces too small for the request{largest}"


def why_private(case: OomCase) -> str:
    free = f"{case.say(case.private_free_bytes)} lay in private pools (CUDA graphs, MemPool), out of reach"
    return f"{free}; memory that is reserved grew {growth(case)}" if case.private_pools_grew else free


def how_with_pools(case: OomCase) -> str:
    if case.private_pools_grew:
        how = lasts(case, "graphs share one pool, or fewer of them are recorded")
    else:
        how = "let graphs share one pool, and drop the graphs and pools that are not needed any more"
    return f"{how}; expandable_segments does not help"


def limit(case: OomCase) -> str:
    fraction = "" if case.cap_fraction is None else f", fraction {case.cap_fraction:.3g}"
    return f"{case.say(case.limit_bytes)}{fraction}"


def what_was_refused(case: OomCase) -> str:
    return (
        f"{case.say(case.wanted_bytes)} more were refused when {format_bytes(case.reserved_bytes)} were reserved "
        f"({format_bytes(case.allocated_bytes)} by tensors) and {format_bytes(case.free_bytes)} free on the GPU"
    )


def how_with_cap(case: OomCase) -> str:
    needed_bytes = case.reserved_bytes + case.wanted_bytes
    part = ""
    if case.usable_bytes:
        part = f" (a fraction of {math.ceil(1e4 * needed_bytes / case.usable_bytes) / 1e4:g})"
    return f"under the same cap it ends like this again; it needs at least {case.say(needed_bytes)}{part}"


def larger_than_any(case: OomCase) -> str:
    return f"this one request is larger than the GPU ({case.say(case.total_bytes)}) has for it"


def why_needed(case: OomCase) -> str:
    if case.step is None or case.verdict is None:
        return "tensors in use leave no room for it: this is what the program needs at this point"
    if case.step == 0:
        return (
            "no training step had ended: model and batch do not fit, or a program without steps (inference, an "
            "evaluation) needed more than before"
        )
    if case.step <= FIRST_STEPS:
        return f"{case.step} {'step' if case.step == 1 else 'steps'} had ended: model and batch do not fit"
    if case.verdict.state is LeakState.LEAK:
        return "memory grows, but by less than was missing: this step needed more than there is"
    return (
        "no lasting growth was seen before: this step needed more than those before it (a longer batch, an "
        "evaluation), or memory grew too fast to be sure of"
    )


def answer(retry: bool, how: str) -> str:
    """Whether trying again makes sense, as a sentence."""
    return f"{'Trying again makes sense' if retry else 'Trying again does not help'}: {how}."


def needs_less(_: OomCase) -> str:
    return "it needs less memory (a smaller batch, activation checkpointing, sharding) or a larger GPU"
