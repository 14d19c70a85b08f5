"""Signs: observations in the evidence that speak for a cause. Each examines one source and reports what it saw.

Signs of different sources are independent of each other: the holder search walks references, the snapshots are the
allocator's, readings are what the run showed from outside, NVML is the driver's, facts are the process's own word.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.evidence import PrivatePools, StackGrowth
from tidegauge.core.evidence.cause_input import MAIN_SHARE, CauseInput
from tidegauge.core.evidence.ledger import graphs_may_hold, nodes_grown
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import HolderKind
from tidegauge.core.evidence.words import holder_words, line_words
from tidegauge.core.units import format_bytes, format_count
from tidegauge.core.verdicts import Signal

MATERIAL_BYTES = 64 << 20
"""Outside of snapshots, less than this is noise: contexts and libraries take and give back some MiB at any time."""
MAX_FEW_SIZES, MIN_MANY_SIZES = 2, 4
"""One kind of tensor has one or two block sizes; what a forward pass saves has many."""
RATE_FACTOR = 1.25
"""Two rates of growth differ by less, if they are of the same: what is kept now and then makes steps differ."""
MIN_RATE_STEPS = 10
NOBODYS_SHARE = 0.2
"""Of what was looked for; what little is found then is something else."""

_TOLD_IN_DETAIL = frozenset({HolderKind.AUTOGRAD, HolderKind.CYCLE})
"""Kinds of holders whose path does not say all: how many nodes, through what objects hold themselves."""


POOLS_SHARE = 0.5
"""Growth lies in private pools where this part of it does, or more."""
STILL_SHARE = 0.01
"""Of what was gained since the growth began: a window that has seen no more has not seen it."""


class SignSource(str, Enum):
    """The source of a sign."""

    HOLDERS = "holder search"
    SNAPSHOTS = "snapshots"
    READINGS = "readings"
    NVML = "NVML"
    PROCESS = "the process"


class Sign(NamedTuple):
    """One check of the evidence."""

    source: SignSource
    words: str
    """What is looked at, for the documentation."""
    seen: Callable[[CauseInput], Optional[str]]
    """What was seen, as a sentence for people; ``None``: it was not."""


def _sign(source: SignSource, words: str) -> Callable[[Callable[[CauseInput], Optional[str]]], Sign]:
    """Make a sign of the function that looks for it."""
    return lambda seen: Sign(source, words, seen)


def held_by(*kinds: HolderKind, words: str) -> Sign:
    """A sign that a holder of one of these kinds holds most of the growth."""

    def seen(case: CauseInput) -> Optional[str]:
        holder = case.holder
        if holder is None or holder.kind not in kinds or case.search is None:
            return None
        steps = case.window_steps or 0
        if holder == case.steady_holder and holder.held_bytes < MAIN_SHARE * case.search.wanted_bytes:
            blocks = format_count(len(holder.blocks), "tensor")
            return f"{blocks} of {format_count(steps, 'step')} are held by {holder_words(holder.path)}"
        share = f"{min(100 * holder.held_bytes / max(case.search.wanted_bytes, 1), 100):.0f} %"
        told = holder.detail.partition("; ")[0] if holder.detail and holder.kind in _TOLD_IN_DETAIL else None
        detail = f" ({told})" if told else ""
        nameless = "; no name that leads to it was found" if holder.name is None else ""
        return f"{share} of what grew is held by {holder_words(holder.path)}{detail}{nameless}"

    return Sign(SignSource.HOLDERS, words, seen)


def _is_nobodys(case: CauseInput) -> bool:
    """Whether a search that is complete found that Python holds next to nothing of it."""
    search = case.search
    if search is None or search.problem is not None or search.wanted_bytes <= 0:
        return False
    python_bytes = sum(one.held_bytes for one in search.holders if one.kind is not HolderKind.NATIVE)
    return python_bytes <= NOBODYS_SHARE * search.wanted_bytes


@_sign(SignSource.HOLDERS, "no object of Python's holds it, and it has many block sizes")
def held_by_nobody(case: CauseInput) -> Optional[str]:
    if not _is_nobodys(case) or many_sizes.seen(case) is None:
        return None
    if case.holder is not None and case.holder.kind is not HolderKind.NATIVE:
        return None
    return "no object of Python's holds what grew, as with tensors that autograd saved"


@_sign(SignSource.SNAPSHOTS, "most of it comes from one line, in one or two block sizes")
def few_sizes(case: CauseInput) -> Optional[str]:
    line, by_line = case.line, case.bytes_by_line()
    is_holders = case.holder is not None and case.holder == case.steady_holder
    if line is None or (by_line.get(line, 0) < MAIN_SHARE * sum(by_line.values()) and not is_holders):
        return None
    sizes = {one.block_bytes for one in _at(case, line)}
    if not sizes or len(sizes) > MAX_FEW_SIZES or None in sizes:
        return None
    named = " and ".join(format_bytes(size) for size in sorted(size for size in sizes if size is not None))
    return f"{line_words(line)} leaves blocks of {named} behind, as one kind of tensor does"


@_sign(SignSource.SNAPSHOTS, "that line has one block, which is larger at the end")
def larger(case: CauseInput) -> Optional[str]:
    holder, line = case.holder, case.line
    if holder is None or holder.tensors != 1 or line is None or sum(one.blocks for one in _at(case, line)) > 1:
        return None
    return f"one block of {line_words(line)} is larger at the end of the window"


@_sign(SignSource.SNAPSHOTS, "that line leaves as many blocks behind each step (or every so many steps)")
def evenly(case: CauseInput) -> Optional[str]:
    line, steps = case.line, case.window_steps or 0
    if line is None or steps < 4:
        return None
    blocks = sum(one.blocks for one in _at(case, line))
    each = round(blocks / steps)
    if each >= 1 and abs(blocks - each * steps) <= max(0.1 * steps, 1):
        return f"{line_words(line)} leaves {format_count(each, 'block')} behind each step"
    every = round(steps / blocks) if blocks >= 3 else 0
    if every >= 2 and abs(blocks * every - steps) <= every:
        return f"{line_words(line)} leaves a block behind every {every:,} steps"
    return None


@_sign(SignSource.READINGS, "the rank grew as much a step since the growth began as the holder keeps of each step")
def at_the_same_rate(case: CauseInput) -> Optional[str]:
    holder, steps, rate = case.holder, case.window_steps or 0, case.verdict.bytes_per_step
    if holder is None or rate is None or steps < MIN_RATE_STEPS or case.signal is not Signal.ALLOCATED:
        return None
    each = holder.held_bytes / steps
    if not rate.likely / RATE_FACTOR <= each <= rate.likely * RATE_FACTOR:
        return None
    grew = f"the rank has grown by {format_bytes(round(rate.likely))} a step since the growth began"
    return f"{grew}, and this keeps {format_bytes(round(each))} of each step"


@_sign(SignSource.SNAPSHOTS, "it has four block sizes or more, as what a forward pass saves")
def many_sizes(case: CauseInput) -> Optional[str]:
    growing = [one for one in case.growth if one.grown_bytes > 0]
    by_size: dict[Optional[int], int] = {}
    for one in growing:
        by_size[one.block_bytes] = by_size.get(one.block_bytes, 0) + one.grown_bytes
    kinds = len(by_size) + sum(one.block_bytes is None for one in growing)
    if kinds < MIN_MANY_SIZES:
        return None
    return "what grew has many block sizes, as what a forward pass saves for backward"


@_sign(SignSource.SNAPSHOTS, "most of it was allocated inside `torch.optim`")
def by_an_optimizer(case: CauseInput) -> Optional[str]:
    share = _share_within(case, "/torch/optim/")
    return None if share is None else f"{share} of what grew was allocated inside torch.optim: state of an optimizer"


@_sign(SignSource.PROCESS, "it is 1, 2, 3 … times as large as all parameters")
def parameters_again(case: CauseInput) -> Optional[str]:
    parameters, grown = case.facts.parameter_bytes or 0, case.grown_bytes or 0
    times = round(grown / parameters) if parameters > 0 else 0
    if not 1 <= times <= 20 or abs(grown - times * parameters) > 0.05 * parameters:
        return None
    return f"what grew is {times} times as large as all parameters ({format_bytes(parameters)})"


@_sign(SignSource.PROCESS, "more optimizers are alive at the end of the window")
def more_optimizers(case: CauseInput) -> Optional[str]:
    return _rose(case.early_facts.optimizers, case.facts.optimizers, "optimizers that are alive")


@_sign(SignSource.PROCESS, "process groups were made within the window, and kept")
def more_groups(case: CauseInput) -> Optional[str]:
    return _rose(case.early_facts.process_groups, case.facts.process_groups, "process groups")


@_sign(SignSource.PROCESS, "kept tensors lead to twice as many autograd nodes, or more, at the end")
def more_nodes(case: CauseInput) -> Optional[str]:
    early, late = case.early_facts.graph_nodes, case.facts.graph_nodes
    if early is None or late is None or late - early < max(early, case.window_steps or 0, 1):
        return None
    return _rose(early, late, "autograd nodes that kept tensors lead to")


@_sign(SignSource.PROCESS, "pinned host memory rose, by half of what the host's did at least")
def more_pinned(case: CauseInput) -> Optional[str]:
    early, late = case.early_facts.pinned_bytes, case.facts.pinned_bytes
    if early is None or late is None or late - early < max(MATERIAL_BYTES, (case.readings.host_bytes or 0) // 2):
        return None
    return f"pinned host memory rose from {format_bytes(early)} to {format_bytes(late)}"


@_sign(SignSource.PROCESS, "more CUDA graphs are alive at the end of the window")
def more_graphs(case: CauseInput) -> Optional[str]:
    return _rose(case.early_facts.cuda_graphs, case.facts.cuda_graphs, "CUDA graphs that are alive")


@_sign(SignSource.SNAPSHOTS, "there are more private pools at the end of the window")
def more_pools(case: CauseInput) -> Optional[str]:
    early, late = case.early_pools, case.late_pools
    return None if early is None or late is None else _rose(early.pools, late.pools, "private pools")


@_sign(
    SignSource.SNAPSHOTS,
    "half of what grew, or more, lies in private pools (live tensors: in pools that have become more)",
)
def in_private_pools(case: CauseInput) -> Optional[str]:
    early, late = case.early_pools, case.late_pools
    if early is None or late is None:
        return None
    if case.signal is Signal.ALLOCATED:
        # In one pool tensors may be kept by anything: a job may allocate all that it has in a MemPool.
        if more_pools.seen(case) is None:
            return None
        return _grew_in_pools(case, late.live_bytes - early.live_bytes, case.grown_bytes)
    if late.unused_bytes < _main_part_since_onset(case):
        return None
    rose = late.reserved_bytes - early.reserved_bytes
    seen = None if _stood_still(case) else _grew_in_pools(case, rose, case.reserved_grown_bytes)
    return seen or _unused_in_pools(case, late)


def _grew_in_pools(case: CauseInput, rose: int, whole: Optional[int]) -> Optional[str]:
    least = MATERIAL_BYTES if case.signal is None else 1
    if whole is None or rose < max(POOLS_SHARE * whole, least):
        return None
    return (
        f"{format_bytes(rose)} of the {format_bytes(max(whole, rose))} that were gained between the two snapshots lie "
        "in private pools (CUDA graphs, MemPool)"
    )


def _unused_in_pools(case: CauseInput, late: PrivatePools) -> Optional[str]:
    """Growth that no tensor explains lies where unused memory lies, whatever the window has seen of it."""
    if case.unused_bytes is None or case.unused_bytes >= _main_part_since_onset(case):
        return None
    return (
        f"{format_bytes(late.unused_bytes)} lie unused in private pools (CUDA graphs, MemPool), and "
        f"{format_bytes(case.unused_bytes)} elsewhere"
    )


def _stood_still(case: CauseInput) -> bool:
    grown = case.reserved_grown_bytes
    return grown is not None and grown <= STILL_SHARE * (case.verdict.grown_bytes or 0)


def _main_part_since_onset(case: CauseInput) -> float:
    return POOLS_SHARE * (case.verdict.grown_bytes or 0)


@_sign(SignSource.PROCESS, "the cyclic garbage collector is off")
def gc_off(case: CauseInput) -> Optional[str]:
    return "Python's cyclic garbage collector is off (gc.disable())" if case.facts.gc_enabled is False else None


def tensors_stay(case: CauseInput) -> bool:
    """Whether live tensors became materially more since the growth began, whatever grows most."""
    return case.live_grown_since_onset >= MATERIAL_BYTES


@_sign(SignSource.READINGS, "reserved memory grows beyond what live tensors explain")
def reserved_alone(case: CauseInput) -> Optional[str]:
    rose, live = case.readings.reserved_bytes, case.readings.allocated_bytes
    if case.signal is Signal.RESERVED:
        return "the allocator reserves ever more, beyond what live tensors explain"
    if rose is None or live is None or rose < MATERIAL_BYTES or rose < 2 * live:
        return None
    return f"the allocator reserved {format_bytes(rose)} more, while live tensors took {format_bytes(live)} more"


@_sign(
    SignSource.READINGS,
    "reserved memory grows beyond what live tensors explain, and not in private pools as far as snapshots show",
)
def reserved_outside_pools(case: CauseInput) -> Optional[str]:
    """``reserved_alone``, unless the growth lies in private pools, or may, and the window has seen none of it."""
    pools = case.late_pools
    may = pools is not None and _stood_still(case) and pools.unused_bytes >= max(_main_part_since_onset(case), 1)
    return None if may or in_private_pools.seen(case) is not None else reserved_alone.seen(case)


@_sign(SignSource.READINGS, "unused pieces of split blocks grow, or allocations had to be tried again")
def scattered(case: CauseInput) -> Optional[str]:
    pieces, retries = case.readings.inactive_split_bytes or 0, case.readings.alloc_retries or 0
    if pieces < MATERIAL_BYTES and retries <= 0:
        return None
    seen = [f"unused pieces of split blocks grew by {format_bytes(pieces)}"] * (pieces >= MATERIAL_BYTES)
    seen += [f"the allocator had to free its cache and try again ({retries:,} times)"] * (retries > 0)
    return " and ".join(seen)


@_sign(SignSource.SNAPSHOTS, "live tensors do not grow between the snapshots")
def live_is_flat(case: CauseInput) -> Optional[str]:
    outside = max(case.readings.reserved_bytes or 0, case.readings.nontorch_bytes or 0, case.verdict.grown_bytes or 0)
    if case.grown_bytes is None or case.grown_bytes > max(outside // 10, 0) or tensors_stay(case):
        return None
    return "live tensors did not grow between the two snapshots"


@_sign(SignSource.NVML, "the process's bytes less what PyTorch reserves grow")
def outside_grows(case: CauseInput) -> Optional[str]:
    rose = case.readings.nontorch_bytes
    if case.signal is Signal.NONTORCH:
        return "the process takes ever more of the GPU outside PyTorch's allocator"
    if rose is None or rose < MATERIAL_BYTES or rose <= (case.readings.reserved_bytes or 0):
        return None
    return f"the process took {format_bytes(rose)} more of the GPU outside PyTorch's allocator"


@_sign(SignSource.READINGS, "host memory of the rank grows")
def host_grows(case: CauseInput) -> Optional[str]:
    return "the rank's memory on the host grows" if case.signal is Signal.HOST else None


@_sign(SignSource.NVML, "other processes on the GPU grow, and more than the rank")
def others_grow(case: CauseInput) -> Optional[str]:
    rose, own = case.readings.other_processes_bytes, max(case.grown_bytes or 0, case.readings.reserved_bytes or 0)
    if rose is None or rose < MATERIAL_BYTES or rose < 2 * own:
        return None
    return f"other processes took {format_bytes(rose)} more of the GPU"


@_sign(SignSource.NVML, "child processes of the rank hold GPU memory, and that explains more")
def children_hold(case: CauseInput) -> Optional[str]:
    held, rose = case.children_bytes or 0, case.readings.children_bytes or 0
    explains = rose > max(case.grown_bytes or 0, MATERIAL_BYTES) or (case.signal is None and not case.grew)
    if not case.gpu_children or held < MATERIAL_BYTES or not explains:
        return None
    who = "1 child process holds" if case.gpu_children == 1 else f"{case.gpu_children:,} child processes hold"
    return f"{who} {format_bytes(held)} of GPU memory"


@_sign(SignSource.PROCESS, "they were started by `multiprocessing`, as DataLoader starts workers")
def are_workers(case: CauseInput) -> Optional[str]:
    if not case.data_workers:
        return None
    return f"{case.data_workers:,} of them were started as DataLoader starts its workers"


@_sign(SignSource.SNAPSHOTS, "blocks of the size of cuBLAS's workspaces came, each on another stream")
def more_workspaces(case: CauseInput) -> Optional[str]:
    found = case.workspaces
    if found is None or not found.block_bytes or found.grown_bytes < MAIN_SHARE * max(case.grown_bytes or 0, 1):
        return None
    size, more = format_bytes(found.block_bytes), found.grown_bytes // found.block_bytes
    return (
        f"{more:,} blocks of {size}, as cuBLAS is given for each stream, came on new ones: {found.streams:,} have one"
    )


@_sign(SignSource.HOLDERS, "no object of Python's holds it, and autograd graphs gained too few nodes to")
def held_by_no_graph(case: CauseInput) -> Optional[str]:
    grown = nodes_grown(case.early_facts, case.facts)
    holder = case.holder
    if not _is_nobodys(case) or grown is None or holder is None or graphs_may_hold(holder, grown):
        return None
    return "neither Python objects nor autograd graphs hold what grew"


@_sign(SignSource.PROCESS, "training steps end inside `torch.autocast`, whose cache is emptied at its end alone")
def inside_autocast(case: CauseInput) -> Optional[str]:
    if not (case.early_facts.in_autocast and case.facts.in_autocast):
        return None
    return "training steps end inside torch.autocast, which keeps converted weights until it ends"


@_sign(SignSource.SNAPSHOTS, "most of it was allocated by `DistributedDataParallel`")
def by_ddp(case: CauseInput) -> Optional[str]:
    share = _share_within(case, "/torch/nn/parallel/distributed.py")
    return None if share is None else f"{share} of what grew was allocated by DistributedDataParallel: gradient buckets"


@_sign(SignSource.HOLDERS, "no object of Python's holds it")
def held_natively(case: CauseInput) -> Optional[str]:
    holder = case.holder
    if holder is None or holder.kind is not HolderKind.NATIVE:
        return None
    return "no object of Python's holds what grew"


def _rose(early: Optional[int], late: Optional[int], what: str) -> Optional[str]:
    if early is None or late is None or late <= early:
        return None
    return f"{what} rose from {early:,} to {late:,} within the window"


def _at(case: CauseInput, line: CodeLine) -> list[StackGrowth]:
    return [one for one in case.growth if one.line == line and one.grown_bytes > 0]


def _share_within(case: CauseInput, code: str) -> Optional[str]:
    """The share of growth that stacks through this code allocated, where it is the main part."""
    growing = [one for one in case.growth if one.grown_bytes > 0]
    whole = sum(one.grown_bytes for one in growing)
    made = sum(one.grown_bytes for one in growing if _is_within(one, code))
    return f"{100 * made / whole:.0f} %" if whole and made >= MAIN_SHARE * whole else None


def _is_within(one: StackGrowth, code: str) -> bool:
    return any(code in frame.filename.replace("\\", "/") for frame in one.stack)
