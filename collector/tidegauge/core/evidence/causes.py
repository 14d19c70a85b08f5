"""Names the cause of growth from the evidence of one window, with its reasons and advice.

``RULES`` is the table, read from above; docs/evidence.md is made from it. Pure.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.evidence import CauseFound, advice, signs
from tidegauge.core.evidence.advice import Advice
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.rank_evidence import HolderKind
from tidegauge.core.evidence.signs import Sign, SignSource
from tidegauge.core.evidence.words import lines_words
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import Signal

_TENSORS = frozenset({Signal.ALLOCATED, Signal.HOST, None})
_RESERVED = frozenset({Signal.RESERVED, None})
_POOLED = frozenset({Signal.ALLOCATED, Signal.RESERVED, None})
_OUTSIDE = frozenset({Signal.NONTORCH, None})
_HOST = frozenset({Signal.HOST, None})


class CauseRule(NamedTuple):
    """One row of ``RULES``."""

    cause: EvidenceCause
    signals: frozenset[Optional[Signal]]
    """Of which signals of the detector it can be the cause; ``None``: of evidence without a verdict."""
    needs: tuple[Sign, ...]
    """All of them must be seen."""
    also: tuple[Sign, ...]
    """Each that is seen makes it surer."""
    advice: Advice


RULES = (
    CauseRule(
        EvidenceCause.CUDA_GRAPHS, _POOLED, (signs.in_private_pools,),
        (signs.reserved_alone, signs.more_pools, signs.more_graphs),
        advice.cuda_graphs,
    ),
    CauseRule(
        EvidenceCause.CUBLAS_WORKSPACES, _TENSORS, (signs.more_workspaces,), (signs.held_natively,), advice.workspaces,
    ),
    CauseRule(
        EvidenceCause.DDP_BUCKETS, _TENSORS, (signs.by_ddp,), (signs.held_natively,), advice.ddp_buckets,
    ),
    CauseRule(
        EvidenceCause.AUTOCAST_CACHE, _TENSORS, (signs.held_by_no_graph, signs.inside_autocast), (),
        advice.autocast_cache,
    ),
    CauseRule(
        EvidenceCause.CYCLE, _TENSORS,
        (signs.held_by(HolderKind.CYCLE, words="what holds it are objects that hold each other, and nothing else"),),
        (signs.gc_off,),
        advice.cycle,
    ),
    CauseRule(
        EvidenceCause.EXCEPTION_FRAME, _TENSORS,
        (signs.held_by(HolderKind.EXCEPTION, words="an exception that is kept holds it, by its traceback's frames"),),
        (signs.few_sizes, signs.evenly, signs.many_sizes),
        advice.exception,
    ),
    CauseRule(
        EvidenceCause.HOOK, _TENSORS,
        (signs.held_by(HolderKind.HOOK, words="a forward or backward hook holds it"),),
        (signs.few_sizes, signs.evenly),
        advice.hook,
    ),
    CauseRule(
        EvidenceCause.OPTIMIZER_REBUILT, _TENSORS,
        (signs.held_by(HolderKind.OPTIMIZER, words="state of an optimizer holds it"),),
        (signs.more_optimizers, signs.by_an_optimizer, signs.parameters_again),
        advice.optimizer,
    ),
    CauseRule(
        EvidenceCause.OPTIMIZER_REBUILT, _TENSORS,
        (signs.by_an_optimizer,),
        (signs.more_optimizers, signs.parameters_again),
        advice.optimizer,
    ),
    CauseRule(
        EvidenceCause.RETAINED_GRAPH, _TENSORS,
        (signs.held_by(HolderKind.AUTOGRAD, words="the graph of a tensor that is kept holds it"),),
        (signs.many_sizes, signs.evenly, signs.more_nodes),
        advice.graph,
    ),
    CauseRule(
        EvidenceCause.CLOSURE, _TENSORS,
        (signs.held_by(HolderKind.CLOSURE, words="a function's closure holds it"),),
        (signs.few_sizes, signs.evenly),
        advice.closure,
    ),
    CauseRule(
        EvidenceCause.PYTHON_CONTAINER, _TENSORS,
        (signs.held_by(
            HolderKind.CONTAINER, HolderKind.ATTRIBUTE, HolderKind.GLOBAL, HolderKind.FRAME, HolderKind.THREAD,
            words="a list, dict, deque, attribute or variable holds it",
        ),),
        (signs.few_sizes, signs.evenly, signs.larger, signs.at_the_same_rate),
        advice.container,
    ),
    CauseRule(
        EvidenceCause.RETAINED_GRAPH, _TENSORS, (signs.held_by_nobody,), (signs.more_nodes,), advice.graph,
    ),
    CauseRule(
        EvidenceCause.RETAINED_GRAPH, frozenset({Signal.HOST}), (signs.more_nodes,), (signs.host_grows,),
        advice.host_graph,
    ),
    CauseRule(
        EvidenceCause.PINNED_HOST, _HOST, (signs.more_pinned,), (signs.host_grows,), advice.pinned,
    ),
    CauseRule(
        EvidenceCause.FRAGMENTATION, _RESERVED, (signs.reserved_outside_pools,), (signs.live_is_flat, signs.scattered),
        advice.fragmentation,
    ),
    CauseRule(
        EvidenceCause.COMMUNICATORS, _OUTSIDE, (signs.outside_grows, signs.more_groups), (), advice.communicators,
    ),
    CauseRule(
        EvidenceCause.DATALOADER_WORKER, frozenset(Signal) | {None}, (signs.children_hold,),
        (signs.are_workers, signs.live_is_flat),
        advice.dataloader_worker,
    ),
    CauseRule(
        EvidenceCause.OUTSIDE_ALLOCATOR, _OUTSIDE, (signs.outside_grows,), (signs.live_is_flat,), advice.outside,
    ),
    CauseRule(
        EvidenceCause.OTHER_PROCESS, frozenset({None}), (signs.others_grow,), (signs.live_is_flat,),
        advice.other_process,
    ),
)  # fmt: skip
"""Of those that are seen, one that is named wins over one that is likely, else the upper one."""


def name_cause(case: CauseInput) -> CauseFound:
    """The cause that most lines of evidence agree on. Never raises for values that are of their types."""
    likely: Optional[CauseFound] = None
    for rule in RULES:
        found = _try(rule, case)
        if found is not None and found.confidence is Confidence.NAMED:
            return found
        likely = likely or found
    return likely or not_known(case)


def _try(rule: CauseRule, case: CauseInput) -> Optional[CauseFound]:
    is_by_holder = any(sign.source is SignSource.HOLDERS for sign in rule.needs)
    explains_reserved = case.signal is Signal.RESERVED and Signal.RESERVED not in rule.signals
    if explains_reserved:
        # Tensors that stay keep the segments around them: letting them go cures both.
        if not (Signal.ALLOCATED in rule.signals and is_by_holder and signs.tensors_stay(case)):
            return None
    elif case.signal not in rule.signals:
        return None
    needed = [sign.seen(case) for sign in rule.needs]
    if None in needed:
        return None
    seen = [(sign.source, said) for sign, said in zip(rule.needs, needed) if said is not None]
    seen += [(sign.source, said) for sign in rule.also for said in [sign.seen(case)] if said is not None]
    agree = len({source for source, _ in seen}) > 1
    if is_by_holder and case.holder is not None and case.holder.kind is not HolderKind.NATIVE:
        agree = agree and case.holder_is_sure
    because = [said for _, said in seen]
    if explains_reserved:
        if not (agree and case.holder_is_sure):
            return None
        because.append("the allocator reserves ever more around tensors that stay")
    confidence = Confidence.NAMED if agree else Confidence.LIKELY
    return CauseFound(rule.cause, confidence, tuple(because), rule.advice(case), explains_reserved)


def not_known(case: CauseInput) -> CauseFound:
    """An unknown cause with what was seen all the same: a place to look is worth more than a guess."""
    if case.grown_bytes is None:
        return CauseFound(because=("there are no two snapshots to compare",))
    if not case.grew:
        return CauseFound(because=("no more is alive at the end of the window than at its beginning",))
    grew = f"{format_bytes(case.grown_bytes)} more is alive at the end of the window"
    if case.line is None:
        return CauseFound(because=(f"{grew}, allocated where no stack was recorded",))
    most = f"{grew}; the line that allocated most of it is {lines_words(case.line, case.through)}"
    return CauseFound(because=(most,), advice=advice.line_alone(case))
