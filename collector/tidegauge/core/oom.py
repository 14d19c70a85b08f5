"""What a ``torch.OutOfMemoryError`` was about, and whether trying again makes sense: for owners and for the policy.

A scheduler sees exit code 1 and nothing else. Each kind of OOM is a question of "would the request have been served
without it?": without the growth, the scattered pieces, the cap, the neighbours. ``RULES`` is the table; the first rule
that says yes is the answer. docs/oom.md shows it. Pure. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.alloc_conf import parse_alloc_conf
from tidegauge.core.incidents import OomRecord
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import LeakState, Signal, Verdict
from tidegauge.core.views import JobView, RankSummary

FIRST_STEPS = 2
"""Optimizer state appears in the first step, and the second is the first whole one: until then nothing has repeated."""


class OomKind(str, Enum):
    """The reason why a request for memory was refused."""

    TOO_BIG = "too_big"
    LEAK = "leak"
    FRAGMENTATION = "fragmentation"
    CAP = "cap"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    NEIGHBOUR = "neighbour"


class OomVerdict(NamedTuple):
    """An OOM explained."""

    kind: OomKind
    retry: bool
    """Whether an attempt that begins again, changed only as ``retry_how`` says, would get further."""
    retry_how: str
    """For people: what to change, or what would have to be changed first."""
    sentence: str
    """For people: what it was, with figures, and what ``retry_how`` says."""
    capped: bool
    """The memory fraction refused it, not the GPU, which had enough free. Says nothing of whose fault it is."""


@dataclass(frozen=True)
class _Case:
    """The figures of one OOM, in bytes, and what follows from them."""

    oom: OomRecord
    verdict: Verdict
    cap_fraction: Optional[float]
    usable_bytes: Optional[int]
    nontorch_bytes: Optional[int]
    others_bytes: Optional[int]
    expandable: bool

    @property
    def capped(self) -> bool:
        """Without a cap the limit is the GPU's total, and what it has free would not have been enough."""
        oom = self.oom
        return oom.reserved_bytes + oom.wanted_bytes > oom.limit_bytes > 0 and oom.free_bytes >= oom.wanted_bytes

    @property
    def short_bytes(self) -> int:
        """By how much the request did not fit. Cached segments had been given back before it was refused."""
        oom = self.oom
        if self.capped:
            return oom.reserved_bytes + oom.wanted_bytes - oom.limit_bytes
        return max(0, oom.wanted_bytes - oom.free_bytes)

    @property
    def freed_meanwhile(self) -> bool:
        """What is free is read a moment after the refusal."""
        return not self.capped and self.oom.free_bytes >= self.oom.wanted_bytes

    @property
    def total_bytes(self) -> Optional[int]:
        """Of the GPU, as CUDA has it: the limit, where that is no cap."""
        if self.usable_bytes is not None or self.capped:
            return self.usable_bytes
        return self.oom.limit_bytes or None

    def grew_enough(self, signal: Signal) -> bool:
        """Whether it would have fitted without what this signal gained."""
        verdict = self.verdict
        return (
            verdict.state is LeakState.LEAK
            and verdict.signal is signal
            and verdict.grown_bytes is not None
            and verdict.grown_bytes >= self.short_bytes > 0
        )


class OomRule(NamedTuple):
    """One line of the table."""

    kind: OomKind
    when: str
    """For people: what is looked at."""
    applies: Callable[[_Case], bool]
    retry: Callable[[_Case], bool]
    retry_how: Callable[[_Case], str]
    says: Callable[[_Case], str]


def _too_large_for_any(case: _Case) -> bool:
    return case.total_bytes is not None and case.oom.wanted_bytes + (case.nontorch_bytes or 0) > case.total_bytes


def _scattered(case: _Case) -> bool:
    pieces_bytes = case.oom.reserved_bytes - case.oom.allocated_bytes
    return case.grew_enough(Signal.RESERVED) or pieces_bytes >= case.oom.wanted_bytes


def _mostly_outside(case: _Case) -> bool:
    outside_bytes = case.nontorch_bytes or 0
    largest = outside_bytes > max(case.oom.reserved_bytes, case.others_bytes or 0)
    return largest and outside_bytes >= case.short_bytes > 0


def _others_hold_it(case: _Case) -> bool:
    return case.others_bytes is not None and case.others_bytes >= case.short_bytes > 0


def _whose_it_was(case: _Case) -> str:
    if case.freed_meanwhile:
        return "the GPU had enough free a moment later: other processes gave memory back meanwhile"
    return f"other processes (or other ranks) held {format_bytes(case.others_bytes or 0)} of the GPU"


def _growth(case: _Case) -> str:
    verdict = case.verdict
    since = "" if verdict.onset_step is None else f" since step {verdict.onset_step}"
    return f"by {format_bytes(verdict.grown_bytes or 0)}{since}, without which it would have fitted"


def _lasts(case: _Case) -> str:
    onset = case.verdict.onset_step
    again = "" if onset is None else f" in about {case.oom.step - onset} steps"
    return f"from a checkpoint, but it ends like this again{again} unless the cause is found"


def _how_with_pieces(case: _Case) -> str:
    if case.expandable:
        return "expandable_segments is on already; steadier shapes, or less memory, would help"
    return "with the allocator setting expandable_segments:True"


def _limit(case: _Case) -> str:
    fraction = "" if case.cap_fraction is None else f", fraction {case.cap_fraction:.3g}"
    return f"{format_bytes(case.oom.limit_bytes)}{fraction}"


def _what_was_refused(case: _Case) -> str:
    oom = case.oom
    return (
        f"{format_bytes(oom.wanted_bytes)} more were refused when {format_bytes(oom.reserved_bytes)} were reserved "
        f"({format_bytes(oom.allocated_bytes)} by tensors) and {format_bytes(oom.free_bytes)} free on the GPU"
    )


def _how_with_cap(case: _Case) -> str:
    needed_bytes = case.oom.reserved_bytes + case.oom.wanted_bytes
    part = ""
    if case.usable_bytes is not None:
        part = f" (a fraction of {math.ceil(1e4 * needed_bytes / case.usable_bytes) / 1e4:g})"
    return f"under the same cap it ends like this again; it needs at least {format_bytes(needed_bytes)}{part}"


def _why_too_big(case: _Case) -> str:
    if _too_large_for_any(case):
        return f"this one request is larger than the GPU ({format_bytes(case.total_bytes or 0)}) has for it"
    if case.oom.step <= FIRST_STEPS:
        return f"{case.oom.step} steps had ended: model and batch do not fit"
    if case.verdict.state is LeakState.LEAK:
        return "memory grows, but by less than was missing: this step needed more than there is"
    return "memory had not grown: this step needed more than those before it (a longer batch, an evaluation)"


def _always(_: _Case) -> bool:
    return True


def _never(_: _Case) -> bool:
    return False


def _needs_less(_: _Case) -> str:
    return "it needs less memory (a smaller batch, activation checkpointing, sharding) or a larger GPU"


RULES = (
    OomRule(
        OomKind.TOO_BIG,
        "the request alone is larger than what the GPU has for the process",
        _too_large_for_any, _never, _needs_less, _why_too_big,
    ),
    OomRule(
        OomKind.LEAK,
        "live tensors pile up, and without what they gained it would have fitted",
        lambda case: case.grew_enough(Signal.ALLOCATED), _always, _lasts,
        lambda case: f"tensors that are kept grew {_growth(case)}",
    ),
    OomRule(
        OomKind.OUTSIDE_ALLOCATOR,
        "memory outside the allocator grows, and without what it gained it would have fitted",
        lambda case: not case.capped and case.grew_enough(Signal.NONTORCH), _always, _lasts,
        lambda case: f"memory outside PyTorch's allocator (communicators, other libraries) grew {_growth(case)}",
    ),
    OomRule(
        OomKind.FRAGMENTATION,
        "reserved and unused memory is as large as the request, or grew by what was missing",
        _scattered, lambda case: not case.expandable, _how_with_pieces,
        lambda _: "the allocator held enough unused memory, but in pieces too small for the request",
    ),
    OomRule(
        OomKind.CAP,
        "the request went beyond the memory fraction, and the GPU had enough free for it",
        lambda case: case.capped, _never, _how_with_cap,
        lambda case: f"its memory fraction, not the GPU, was the reason (the limit was {_limit(case)})",
    ),
    OomRule(
        OomKind.OUTSIDE_ALLOCATOR,
        "most of what the process holds is outside the allocator, and as much as was missing",
        _mostly_outside, _never,
        lambda _: "whatever else takes GPU memory in this process has to take less (a framework that preallocates?)",
        lambda case: f"the process holds {format_bytes(case.nontorch_bytes or 0)} outside PyTorch's allocator",
    ),
    OomRule(
        OomKind.NEIGHBOUR,
        "other processes held as much of the GPU as was missing, or it was free again a moment later",
        lambda case: _others_hold_it(case) or case.freed_meanwhile, _always,
        lambda _: "on a GPU of its own, or once the other processes are gone",
        _whose_it_was,
    ),
    OomRule(
        OomKind.TOO_BIG,
        "none of these: it needs more than there is",
        _always, _never, _needs_less, _why_too_big,
    ),
)  # fmt: skip
"""In this order; the last one always applies."""


def explain_oom(
    oom: OomRecord,
    *,
    verdict: Verdict,
    cap_fraction: Optional[float] = None,
    usable_bytes: Optional[int] = None,
    nontorch_bytes: Optional[int] = None,
    others_bytes: Optional[int] = None,
    alloc_conf: Optional[str] = None,
) -> OomVerdict:
    """What this OOM was. ``None`` is not known, and then not taken for a reason.

    ``verdict`` is the detector's of that rank; ``usable_bytes`` is CUDA's total of the GPU; ``nontorch_bytes`` is
    what the process holds outside the allocator, ``others_bytes`` what other processes held at that moment.
    """
    expandable = parse_alloc_conf(alloc_conf or "").get("expandable_segments", "").lower() == "true"
    case = _Case(oom, verdict, cap_fraction, usable_bytes, nontorch_bytes, others_bytes, expandable)
    rule = next(rule for rule in RULES if rule.applies(case))
    how = rule.retry_how(case)
    sentence = f"{_what_was_refused(case)}: {rule.says(case)}"
    if case.capped and rule.kind is not OomKind.CAP:
        sentence += f". The memory fraction set the limit ({_limit(case)}), not the GPU"
    retry = rule.retry(case)
    answer = "Trying again makes sense" if retry else "Trying again does not help"
    return OomVerdict(rule.kind, retry, how, f"{sentence}. {answer}: {how}.", case.capped)


def explanation_for(rank: RankSummary, job: JobView) -> str:
    """The sentence for the last OOM of ``rank``, one of ``job``'s."""
    who = f"rank {rank.identity.rank}"
    oom = rank.last_oom
    if oom is None:
        return f"{who} ran out of memory; no figures of that moment are left."
    others = sum(one.last_oom is not None for one in job.ranks if one.identity.rank != rank.identity.rank)
    if others:
        who += f" (and {others} more)"
    usable_bytes = usable_bytes_of(rank)
    verdict = explain_oom(
        oom,
        verdict=rank.verdict,
        cap_fraction=rank.cap_fraction,
        usable_bytes=usable_bytes,
        nontorch_bytes=rank.nontorch_bytes,
        others_bytes=_others_bytes(oom, usable_bytes, rank.nontorch_bytes),
        alloc_conf=rank.identity.alloc_conf,
    )
    return f"{who}, step {oom.step}: {verdict.sentence}"


def usable_bytes_of(rank: RankSummary) -> Optional[int]:
    """CUDA's total of the rank's GPU, from its limit: to within a few bytes where a fraction of it is in force.

    ``None`` also for a fraction, be it only claimed, that leaves no byte.
    """
    if rank.limit_bytes is None or rank.cap_fraction is None:
        return rank.limit_bytes
    return round(rank.limit_bytes / rank.cap_fraction) or None


def _others_bytes(oom: OomRecord, usable_bytes: Optional[int], nontorch_bytes: Optional[int]) -> Optional[int]:
    if usable_bytes is None or nontorch_bytes is None:
        return None
    return max(0, usable_bytes - oom.free_bytes - oom.reserved_bytes - nontorch_bytes)
