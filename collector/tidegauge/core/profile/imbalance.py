"""Which rank of a job has more memory than its peers, and why: what differs is told by category, module and line. Pure.

The fullest rank is compared with the one in the middle, so that the differences add up to the gap, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional, Union

from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.comparison import LineChange, ModuleChange, compare_profiles
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.step_profile import StepProfile

MIN_EXCESS_SHARE = 0.02
"""Of the median, below which ranks count as equal."""
MIN_EXCESS_BYTES = 2 << 20
"""The same: the allocator's rounding alone makes a difference of some blocks."""
ABOUT = 0.05
"""Sizes that differ by this share at most are called the same."""
MIN_LINE_SHARE = 0.1
"""Of the gap, below which a line does not stand for it. The backward pass has none."""
MAX_NAMED_MODULES = 2


class Outside(str, Enum):
    """Memory on a rank's GPU that PyTorch's allocator knows nothing of."""

    PROCESS = "outside PyTorch"
    """Of the rank's own process."""
    OTHERS = "other processes"
    """Of this job, or of nobody that is known: without jobs that the service watches."""


Part = Union[Category, Outside]
"""Of what a rank holds."""


class PartChange(NamedTuple):
    """One part of the gap."""

    part: Part
    median_bytes: int
    worst_bytes: int

    @property
    def grown_bytes(self) -> int:
        return self.worst_bytes - self.median_bytes


class Imbalance(NamedTuple):
    """The fullest rank against the one in the middle."""

    rank: int
    peer: int
    """The rank in the middle; of an even number of ranks, the lower of the two."""
    worst_bytes: int
    """Allocated at its peak, and outside PyTorch where that is known of all ranks."""
    median_bytes: int
    """The same of ``peer``."""
    parts: tuple[PartChange, ...]
    """All that differ; the largest excess first. They add up to the gap."""

    @property
    def excess_bytes(self) -> int:
        return self.worst_bytes - self.median_bytes

    def grown_bytes(self, *parts: Part) -> int:
        """What these parts together have more than on ``peer``."""
        return sum(one.grown_bytes for one in self.parts if one.part in parts)


class ImbalanceKind(str, Enum):
    """Why a rank has more memory than its peers."""

    MODEL_COPY = "a copy of the model"
    MODEL_PART = "more of the model"
    """As a pipeline stage with the embedding or the head has."""
    OPTIMIZER_STATE = "optimizer state"
    """Of as many parameters: ZeRO-1 that deals out unevenly, or state on some ranks only."""
    BATCH = "a larger batch"
    """Or longer sequences: the same lines made as many blocks, which are larger."""
    LINE = "other code"
    """A line made blocks that it did not make on ``peer``."""
    OTHER_LIBRARY = "another library"
    OTHER_PROCESS = "another process on its GPU"
    CATEGORY = "a category"
    """Nothing more is known than which."""


@dataclass(frozen=True)
class ImbalanceCause:
    """What most of the gap is made of."""

    kind: ImbalanceKind
    part: Part
    """The largest part of it."""
    bytes: int
    """So much of the gap it explains."""
    modules: tuple[ModuleChange, ...] = ()
    """Those that grew most, where modules are known and tell it."""
    line: Optional[LineChange] = None
    times: Optional[float] = None
    """``BATCH``: how many times as large these blocks are; ``MODEL_COPY``: how many copies."""


_MODEL = (Category.PARAMETERS, Category.BUFFERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
_BATCH = (Category.ACTIVATIONS, Category.INPUTS, Category.TEMPORARIES)
_COPIES = (Category.PARAMETERS, Category.OTHER, Category.UNKNOWN)
"""What a copy of the model may count as: a module of its own, tensors by other names, or neither."""


def imbalance_of(ranks: Iterable[RankProfile]) -> Optional[Imbalance]:
    """The fullest of these ranks against the median; ``None`` where they are equal within ``MIN_EXCESS_SHARE`` of the
    median or ``MIN_EXCESS_BYTES``, and for fewer than two. Their order does not matter. Other processes count only
    where the ranks' own memory is equal: those may be anybody's."""
    held = held_by_rank(ranks)
    own: dict[int, dict[Part, int]] = {
        rank: {part: size for part, size in parts.items() if part is not Outside.OTHERS} for rank, parts in held.items()
    }
    return _imbalance_of(own) or _imbalance_of(held)


def _imbalance_of(held: Mapping[int, Mapping[Part, int]]) -> Optional[Imbalance]:
    if len(held) < 2:
        return None
    order = sorted(held, key=lambda rank: (sum(held[rank].values()), -rank))
    worst, peer = order[-1], order[(len(order) - 1) // 2]
    most, median = sum(held[worst].values()), sum(held[peer].values())
    if most - median <= max(MIN_EXCESS_BYTES, MIN_EXCESS_SHARE * median):
        return None
    parts = [
        PartChange(part, held[peer].get(part, 0), held[worst].get(part, 0))
        for part in (*Category, *Outside)
        if held[peer].get(part, 0) != held[worst].get(part, 0)
    ]
    return Imbalance(worst, peer, most, median, tuple(sorted(parts, key=lambda one: -one.grown_bytes)))


def held_by_rank(ranks: Iterable[RankProfile]) -> dict[int, dict[Part, int]]:
    """What each rank holds at its peak; outside PyTorch, where NVML's figures are known of all of them."""
    profiled = [one for one in ranks if one.by_category]
    with_outside = all(one.process_outside_bytes is not None for one in profiled)
    with_others = with_outside and _has_others_of_its_own(profiled)
    return {one.rank: _held(one, with_outside=with_outside, with_others=with_others) for one in profiled}


def _has_others_of_its_own(profiled: Sequence[RankProfile]) -> bool:
    """Whether other processes are known of all ranks, and of none twice: ranks on one GPU are others to each other."""
    gpus = [one.gpu_uuid for one in profiled if one.gpu_uuid is not None]
    return len(set(gpus)) == len(gpus) and all(one.other_processes_bytes is not None for one in profiled)


def _held(one: RankProfile, *, with_outside: bool, with_others: bool) -> dict[Part, int]:
    held: dict[Part, int] = {
        category: one.by_category[category] for category in Category if category in one.by_category
    }
    if with_outside:
        held[Outside.PROCESS] = one.process_outside_bytes or 0
    if with_others:
        held[Outside.OTHERS] = one.unwatched_processes_bytes or 0
    return held


def cause_of(found: Imbalance, worst: StepProfile, peer: StepProfile) -> ImbalanceCause:
    """What the gap is made of. ``worst`` and ``peer`` are the whole profiles of these ranks."""
    groups = (_MODEL, _BATCH, *((part,) for part in (*Category, *Outside) if part not in _MODEL + _BATCH))
    largest = max(groups, key=lambda parts: found.grown_bytes(*parts))
    parts = [one for one in found.parts if one.part in largest]
    part, grown = parts[0].part, found.grown_bytes(*largest)
    compared = compare_profiles(peer, worst)
    copies = _copies(found, peer)
    if part in _COPIES and copies is not None:
        return ImbalanceCause(ImbalanceKind.MODEL_COPY, part, found.grown_bytes(part), times=copies)
    if part is Outside.PROCESS:
        return ImbalanceCause(ImbalanceKind.OTHER_LIBRARY, part, grown)
    if part is Outside.OTHERS:
        return ImbalanceCause(ImbalanceKind.OTHER_PROCESS, part, grown)
    lines = [one for one in compared.lines if one.category in largest and one.grown_bytes > 0]
    line = next((one for one in lines if one.line is not None and one.grown_bytes >= MIN_LINE_SHARE * grown), None)
    if part in _MODEL:
        modules = tuple(one for one in compared.modules if one.path is not None and one.grown_bytes > 0)
        kind = ImbalanceKind.OPTIMIZER_STATE if _is_state_alone(found) else ImbalanceKind.MODEL_PART
        return ImbalanceCause(kind, part, grown, modules[:MAX_NAMED_MODULES], line)
    if part in _BATCH:
        times = _times(lines)
        if times is not None:
            return ImbalanceCause(ImbalanceKind.BATCH, part, grown, line=line, times=times)
    if line is not None:
        return ImbalanceCause(ImbalanceKind.LINE, part, grown, line=line)
    return ImbalanceCause(ImbalanceKind.CATEGORY, part, grown)


def _copies(found: Imbalance, peer: StepProfile) -> Optional[int]:
    """How many copies of the parameters the largest part of the gap is, to which neither gradients nor optimizer state
    belong; ``None``: no whole number of them."""
    parameters = peer.peak.by_category.get(Category.PARAMETERS, 0)
    grown = found.parts[0].grown_bytes
    trained = found.grown_bytes(Category.GRADIENTS, Category.OPTIMIZER_STATE)
    if not parameters or abs(trained) > ABOUT * grown:
        return None
    copies = round(grown / parameters)
    return copies if copies and abs(grown - copies * parameters) <= ABOUT * parameters else None


def _is_state_alone(found: Imbalance) -> bool:
    state = found.grown_bytes(Category.OPTIMIZER_STATE)
    return state > 0 and abs(found.grown_bytes(Category.PARAMETERS)) <= ABOUT * state


def _times(lines: list[LineChange]) -> Optional[float]:
    """How many times as large the blocks of these lines are, if most bytes are of lines that made as many."""
    alike = [one for one in lines if one.before_blocks == one.after_blocks]
    if 2 * sum(one.grown_bytes for one in alike) < sum(one.grown_bytes for one in lines):
        return None
    before = sum(one.before_bytes for one in alike)
    return sum(one.after_bytes for one in alike) / before if before else None
