"""Explains a ``torch.OutOfMemoryError`` and whether a retry makes sense, for owners and for the policy.

A scheduler sees exit code 1 and nothing else. Each kind of OOM is a question of "would the request have been served
without it?": without the growth, the scattered pieces, the cap, the neighbours. ``RULES`` is the table; the first rule
that says yes is the answer. docs/oom.md shows it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.alloc_conf import parse_alloc_conf
from tidegauge.core.oom import words
from tidegauge.core.oom.case import OomCase
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import Signal, Verdict
from tidegauge.core.views import JobView, RankSummary

PIECES_FRACTION = 0.02
"""Unused memory below this part of what is reserved is no reason: a next small request would have been refused."""


class OomKind(str, Enum):
    """The reason why an allocation failed."""

    TOO_BIG = "too_big"
    """One request that no GPU of this size serves."""
    LEAK = "leak"
    ENOUGH_FREE = "enough_free"
    """Refused although the GPU had room for it, for a reason that the figures do not tell."""
    FRAGMENTATION = "fragmentation"
    PRIVATE_POOLS = "private_pools"
    """Enough was free, in the private pools of CUDA graphs or ``MemPool``."""
    CAP = "cap"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    NEIGHBOUR = "neighbour"
    ALLOCATED = "allocated"
    """Tensors that are in use leave no room: it really needs more."""


class OomVerdict(NamedTuple):
    """An OOM explained."""

    kind: OomKind
    retry: Optional[bool]
    """Whether an attempt that begins again, changed only as ``retry_how`` says, would get further; ``None`` unknown."""
    retry_how: str
    """For people: what to change, or what would have to be changed first."""
    sentence: str
    """For people: what it was, with figures, and what ``retry_how`` says."""
    capped: bool
    """The memory fraction refused it, not the GPU, which had enough free. Says nothing of whose fault it is."""
    reason: str
    """The part of ``sentence`` that says what it was."""


class OomRule(NamedTuple):
    """One row of ``RULES``."""

    kind: OomKind
    when: str
    """For people: what is looked at."""
    applies: Callable[[OomCase], bool]
    retry: Callable[[OomCase], Optional[bool]]
    retry_how: Callable[[OomCase], str]
    says: Callable[[OomCase], str]


def _too_large_for_any(case: OomCase) -> bool:
    if case.total_bytes is None or case.free_bytes > case.total_bytes:
        return False
    return case.wanted_bytes + (case.nontorch_bytes or 0) > case.total_bytes


def _scattered(case: OomCase) -> bool:
    if case.private_pools_grew or (_in_private_pools(case) and case.private_free_bytes >= 2 * case.pieces_bytes):
        return False
    enough_bytes = max(case.wanted_bytes, round(PIECES_FRACTION * case.reserved_bytes))
    if case.grew_enough(Signal.RESERVED):
        return True
    return case.pieces_bytes >= enough_bytes and not _far_more_elsewhere(case)


def _far_more_elsewhere(case: OomCase) -> bool:
    """Whether what others hold dwarfs the pieces, and would have been enough as well."""
    elsewhere_bytes = max(case.others_bytes or 0, case.nontorch_bytes or 0, case.unexplained_bytes or 0)
    enough_bytes = max(case.short_bytes, case.contexts_bytes, 2 * case.pieces_bytes)
    return not case.capped and elsewhere_bytes >= enough_bytes


def _in_private_pools(case: OomCase) -> bool:
    return case.private_pools_grew or case.private_free_bytes >= max(min(case.short_bytes, case.wanted_bytes), 1)


def _mostly_outside(case: OomCase) -> bool:
    outside_bytes = case.nontorch_bytes or 0
    largest = outside_bytes > max(case.reserved_bytes, case.others_bytes or 0)
    return largest and outside_bytes >= case.short_bytes > 0


def _others_hold_it(case: OomCase) -> bool:
    return case.others_bytes is not None and case.others_bytes >= case.short_bytes > 0


def _somebody_holds_it(case: OomCase) -> bool:
    unexplained_bytes = case.unexplained_bytes or 0
    return not case.capped and unexplained_bytes >= max(case.short_bytes, case.contexts_bytes) and case.short_bytes > 0


def _always(_: OomCase) -> bool:
    return True


def _never(_: OomCase) -> bool:
    return False


def _unknown(_: OomCase) -> Optional[bool]:
    return None


RULES = (
    OomRule(
        OomKind.TOO_BIG,
        "the request alone is larger than what the GPU has for the process",
        _too_large_for_any, _never, words.needs_less, words.larger_than_any,
    ),
    OomRule(
        OomKind.LEAK,
        "live tensors accumulate; without that growth the request would have fit",
        lambda case: case.grew_enough(Signal.ALLOCATED), _always, words.lasts,
        lambda case: f"live tensors grew {words.growth(case)}",
    ),
    OomRule(
        OomKind.OUTSIDE_ALLOCATOR,
        "memory outside the allocator grows; without that growth the request would have fit",
        lambda case: not case.capped and case.grew_enough(Signal.NONTORCH), _always, words.lasts,
        lambda case: f"memory outside PyTorch's allocator (communicators, other libraries) grew {words.growth(case)}",
    ),
    OomRule(
        OomKind.ENOUGH_FREE,
        "the GPU had more free than was asked for, and more than the last 1/64 of it, under no cap that refused it",
        lambda case: case.enough_free, _unknown, words.how_in_spite_of_room, words.why_in_spite_of_room,
    ),
    OomRule(
        OomKind.FRAGMENTATION,
        "reserved and unused memory is as large as the request, at least 2 % of what is reserved, and not dwarfed by "
        "what others hold; or it grew by what was missing; and private pools do not hold what was missing and twice as "
        "much as is unused",
        _scattered, lambda case: not case.expandable, words.how_with_pieces, words.why_pieces,
    ),
    OomRule(
        OomKind.PRIVATE_POOLS,
        "as much as was missing lies in private pools; or reserved memory grew by what was missing, half of it or "
        "more in private pools",
        _in_private_pools, lambda case: case.private_pools_grew, words.how_with_pools, words.why_private,
    ),
    OomRule(
        OomKind.CAP,
        "the request went beyond the memory fraction, and the GPU had enough free for it",
        lambda case: case.capped, _never, words.how_with_cap,
        lambda case: f"the memory fraction set the limit ({words.limit(case)}), not the GPU",
    ),
    OomRule(
        OomKind.OUTSIDE_ALLOCATOR,
        "most of what the process holds is outside the allocator, and as much as was missing",
        _mostly_outside, _never,
        lambda _: "reduce what else allocates GPU memory in this process (does a framework preallocate?)",
        lambda case: f"the process holds {case.say(case.nontorch_bytes)} outside PyTorch's allocator",
    ),
    OomRule(
        OomKind.NEIGHBOUR,
        "other processes held as much of the GPU as was missing",
        _others_hold_it, _always,
        lambda _: "on a GPU of its own, or after the other processes are gone",
        words.whose_it_was,
    ),
    OomRule(
        OomKind.OUTSIDE_ALLOCATOR,
        "as much as was missing, at least 2 GiB (on a small GPU a quarter of it, at least 1 GiB), is in use outside "
        "this allocator, owner unknown",
        _somebody_holds_it, _never,
        lambda _: "check nvidia-smi for the owner: another process, or something else in this one",
        lambda case: f"{case.say(case.unexplained_bytes)} of the GPU are in use outside PyTorch's allocator, by this "
        "process or by others",
    ),
    OomRule(
        OomKind.ALLOCATED,
        "none of these: live tensors need more than there is",
        _always, _never, words.needs_less, words.why_needed,
    ),
)  # fmt: skip
"""In this order; the last one always applies."""


def explain_case(case: OomCase) -> OomVerdict:
    """Explain this OOM by the first rule that applies."""
    rule = next(rule for rule in RULES if rule.applies(case))
    how = rule.retry_how(case)
    sentence = f"{words.what_was_refused(case)}: {rule.says(case)}"
    if case.capped and rule.kind is not OomKind.CAP:
        sentence += f". The memory fraction set the limit ({words.limit(case)}), not the GPU"
    retry = rule.retry(case)
    return OomVerdict(rule.kind, retry, how, f"{sentence}. {words.answer(retry, how)}", case.capped, sentence)


def explain_oom(
    oom: OomRecord,
    *,
    verdict: Verdict,
    cap_fraction: Optional[float] = None,
    usable_bytes: Optional[int] = None,
    nontorch_bytes: Optional[int] = None,
    others_bytes: Optional[int] = None,
    neighbours: tuple[tuple[int, int], ...] = (),
    largest_free_bytes: Optional[int] = None,
    alloc_conf: Optional[str] = None,
) -> OomVerdict:
    """Explain this OOM of a watched rank. ``None`` is not known, and then not taken for a reason.

    ``verdict`` is the detector's of that rank; the other figures are those of ``OomCase``.
    """
    return explain_case(
        OomCase(
            wanted_bytes=oom.wanted_bytes,
            free_bytes=oom.free_bytes,
            limit_bytes=oom.limit_bytes,
            allocated_bytes=oom.allocated_bytes,
            reserved_bytes=oom.reserved_bytes,
            step=oom.step,
            verdict=verdict,
            cap_fraction=cap_fraction,
            usable_bytes=usable_bytes,
            nontorch_bytes=nontorch_bytes,
            others_bytes=others_bytes,
            neighbours=neighbours,
            private_free_bytes=oom.private_free_bytes,
            largest_free_bytes=largest_free_bytes,
            expandable=is_expandable(alloc_conf),
        )
    )


def is_expandable(alloc_conf: Optional[str]) -> bool:
    """Whether these allocator settings switch ``expandable_segments`` on."""
    return parse_alloc_conf(alloc_conf or "").get("expandable_segments", "").lower() == "true"


def explanation_for(rank: RankSummary, job: JobView) -> str:
    """The sentence for the last OOM of ``rank``, one of ``job``'s."""
    who = f"rank {rank.identity.rank}"
    oom = rank.last_oom
    if oom is None:
        return f"{who} ran out of memory; no figures were recorded."
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
