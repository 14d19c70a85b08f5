"""Names the cause of growth from the evidence of one window, with its reasons and advice.

``RULES`` is the table, read from above; docs/evidence.md is made from it. Pure. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.evidence import CauseFound, advice, signs
from tidegauge.core.evidence.advice import Advice
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.cause_input import CauseInput as CauseInput
from tidegauge.core.evidence.cause_input import MemoryGrowth as MemoryGrowth
from tidegauge.core.evidence.rank_evidence import HolderKind
from tidegauge.core.evidence.signs import Sign
from tidegauge.core.evidence.words import line_words
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
        EvidenceCause.CUDA_GRAPHS, _POOLED, (signs.IN_PRIVATE_POOLS,),
        (signs.RESERVED_ALONE, signs.MORE_POOLS, signs.MORE_GRAPHS),
        advice.cuda_graphs,
    ),
    CauseRule(
        EvidenceCause.CUBLAS_WORKSPACES, _TENSORS, (signs.MORE_WORKSPACES,), (signs.HELD_NATIVELY,), advice.workspaces,
    ),
    CauseRule(
        EvidenceCause.CYCLE, _TENSORS,
        (signs.held_by(HolderKind.CYCLE, words="what holds it are objects that hold each other, and nothing else"),),
        (signs.GC_OFF,),
        advice.cycle,
    ),
    CauseRule(
        EvidenceCause.EXCEPTION_FRAME, _TENSORS,
        (signs.held_by(HolderKind.EXCEPTION, words="an exception that is kept holds it, by its traceback's frames"),),
        (signs.FEW_SIZES, signs.EVENLY, signs.MANY_SIZES),
        advice.exception,
    ),
    CauseRule(
        EvidenceCause.HOOK, _TENSORS,
        (signs.held_by(HolderKind.HOOK, words="a forward or backward hook holds it"),),
        (signs.FEW_SIZES, signs.EVENLY),
        advice.hook,
    ),
    CauseRule(
        EvidenceCause.OPTIMIZER_REBUILT, _TENSORS,
        (signs.held_by(HolderKind.OPTIMIZER, words="state of an optimizer holds it"),),
        (signs.MORE_OPTIMIZERS, signs.BY_AN_OPTIMIZER, signs.PARAMETERS_AGAIN),
        advice.optimizer,
    ),
    CauseRule(
        EvidenceCause.OPTIMIZER_REBUILT, _TENSORS,
        (signs.BY_AN_OPTIMIZER,),
        (signs.MORE_OPTIMIZERS, signs.PARAMETERS_AGAIN),
        advice.optimizer,
    ),
    CauseRule(
        EvidenceCause.RETAINED_GRAPH, _TENSORS,
        (signs.held_by(HolderKind.AUTOGRAD, words="the graph of a tensor that is kept holds it"),),
        (signs.MANY_SIZES, signs.EVENLY, signs.MORE_NODES),
        advice.graph,
    ),
    CauseRule(
        EvidenceCause.CLOSURE, _TENSORS,
        (signs.held_by(HolderKind.CLOSURE, words="a function's closure holds it"),),
        (signs.FEW_SIZES, signs.EVENLY),
        advice.closure,
    ),
    CauseRule(
        EvidenceCause.PYTHON_CONTAINER, _TENSORS,
        (signs.held_by(
            HolderKind.CONTAINER, HolderKind.ATTRIBUTE, HolderKind.GLOBAL, HolderKind.FRAME, HolderKind.THREAD,
            words="a list, dict, deque, attribute or variable holds it",
        ),),
        (signs.FEW_SIZES, signs.EVENLY, signs.LARGER),
        advice.container,
    ),
    CauseRule(
        EvidenceCause.RETAINED_GRAPH, _TENSORS, (signs.HELD_BY_NOBODY,), (signs.MORE_NODES,), advice.graph,
    ),
    CauseRule(
        EvidenceCause.RETAINED_GRAPH, frozenset({Signal.HOST}), (signs.MORE_NODES,), (signs.HOST_GROWS,),
        advice.host_graph,
    ),
    CauseRule(
        EvidenceCause.PINNED_HOST, _HOST, (signs.MORE_PINNED,), (signs.HOST_GROWS,), advice.pinned,
    ),
    CauseRule(
        EvidenceCause.FRAGMENTATION, _RESERVED, (signs.RESERVED_OUTSIDE_POOLS,), (signs.LIVE_IS_FLAT, signs.SCATTERED),
        advice.fragmentation,
    ),
    CauseRule(
        EvidenceCause.COMMUNICATORS, _OUTSIDE, (signs.OUTSIDE_GROWS, signs.MORE_GROUPS), (), advice.communicators,
    ),
    CauseRule(
        EvidenceCause.DATALOADER_WORKER, frozenset(Signal) | {None}, (signs.CHILDREN_HOLD,),
        (signs.ARE_WORKERS, signs.LIVE_IS_FLAT),
        advice.dataloader_worker,
    ),
    CauseRule(
        EvidenceCause.OUTSIDE_ALLOCATOR, _OUTSIDE, (signs.OUTSIDE_GROWS,), (signs.LIVE_IS_FLAT,), advice.outside,
    ),
    CauseRule(
        EvidenceCause.OTHER_PROCESS, frozenset({None}), (signs.OTHERS_GROW,), (signs.LIVE_IS_FLAT,),
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
    return likely or _not_known(case)


def _try(rule: CauseRule, case: CauseInput) -> Optional[CauseFound]:
    if case.signal not in rule.signals:
        return None
    needed = [sign.seen(case) for sign in rule.needs]
    if None in needed:
        return None
    seen = [(sign.source, said) for sign, said in zip(rule.needs, needed) if said is not None]
    seen += [(sign.source, said) for sign in rule.also for said in [sign.seen(case)] if said is not None]
    agree = len({source for source, _ in seen}) > 1
    confidence = Confidence.NAMED if agree else Confidence.LIKELY
    return CauseFound(rule.cause, confidence, tuple(said for _, said in seen), rule.advice(case))


def _not_known(case: CauseInput) -> CauseFound:
    """What was seen all the same: where to look is worth more than a guess."""
    if case.grown_bytes is None:
        return CauseFound(because=("there are no two snapshots to compare",))
    if not case.grew:
        return CauseFound(because=("no more is alive at the end of the window than at its beginning",))
    grew = f"{format_bytes(case.grown_bytes)} more is alive at the end of the window"
    if case.line is None:
        return CauseFound(because=(f"{grew}, allocated where no stack was recorded",))
    most = f"{grew}; the line that allocated most of it is {line_words(case.line)}"
    return CauseFound(because=(most,), advice=advice.line_alone(case))
