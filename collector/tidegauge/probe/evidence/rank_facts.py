"""Facts about the process besides its holders: its garbage collector, process groups, pinned memory and optimizers.

Each is read separately: what this torch does not offer, or what fails, is ``None``. Nothing is changed, no device
touched. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import gc
import platform
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Optional, TypeVar

from tidegauge.core.evidence.rank_evidence import RankFacts
from tidegauge.probe.holders import looks
from tidegauge.probe.holders.graphs import Graphs
from tidegauge.probe.holders.looks import instances, with_subclasses
from tidegauge.probe.holders.pace import AtBoundary, NoBoundaryError, OutOfTimeError, Slices, Work
from tidegauge.probe.holders.tensors import Tensors

MAX_FACTS_S = 10.0

T = TypeVar("T")


class _Seen:
    optimizers: Optional[int] = None
    parameter_bytes: Optional[int] = None
    graph_nodes: Optional[int] = None
    cuda_graphs: Optional[int] = None


def read_facts(
    torch: Any,
    *,
    pause: Callable[[], None],
    at_boundary: AtBoundary,
    clock_s: Callable[[], float] = time.perf_counter,
) -> RankFacts:
    """This process's facts: looks at all its objects, each at a step boundary of its own, then walks through graphs
    at later ones, for ``MAX_FACTS_S`` by ``clock_s``. Exceptions of ``pause`` pass through, no others."""
    seen = _Seen()
    with suppress(OutOfTimeError, NoBoundaryError):
        Slices(torch, MAX_FACTS_S, pause=pause, at_boundary=at_boundary, clock_s=clock_s).run(_look(torch, seen))
    return RankFacts(
        gc_enabled=gc.isenabled(),
        gc_frozen=_or_none(gc.get_freeze_count),
        graph_nodes=seen.graph_nodes,
        process_groups=_or_none(_process_groups),
        pinned_bytes=_or_none(lambda: _pinned_bytes(torch)),
        optimizers=seen.optimizers,
        parameter_bytes=seen.parameter_bytes,
        python=platform.python_version(),
        cuda_graphs=seen.cuda_graphs,
    )


def _or_none(read: Callable[[], Optional[T]]) -> Optional[T]:
    try:
        return read()
    except Exception:
        return None


def _look(torch: Any, seen: _Seen) -> Work[None]:
    tensors = Tensors(torch)
    with_graph = yield from _count(torch, tensors, seen)
    graphs = Graphs(torch)
    for reference in with_graph:
        tensor = reference()
        node = None if tensor is None else tensors.node(tensor)
        tensor = None
        if node is not None:
            yield from graphs.walk(node)
    seen.graph_nodes = graphs.nodes


def _count(torch: Any, tensors: Tensors, seen: _Seen) -> Work[list[weakref.ref[Any]]]:
    """Count tensors, optimizers and CUDA graphs; returns the tensors that came from an operation."""
    optimizers = parameter_bytes = cuda_graphs = 0
    with_graph = []
    recorded = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
    graphs = [] if recorded is None else with_subclasses(recorded)
    graph_ids = frozenset(map(id, graphs))
    for found in instances([*with_subclasses(torch.Tensor), *with_subclasses(torch.optim.Optimizer), *graphs]):
        while found:  # in one go: until this is done, none of training's tensors can die
            one = found.pop()
            if id(type(one)) in graph_ids:
                cuda_graphs += 1
            elif not tensors.is_tensor(one):
                optimizers += 1
            elif looks.has_base(one, torch.nn.Parameter):
                parameter_bytes += tensors.look(one).own_bytes if tensors.address(one) is not None else 0
            elif tensors.node(one) is not None:
                with_graph.append(weakref.ref(one))
            del one
        yield True
    seen.optimizers, seen.parameter_bytes = optimizers, parameter_bytes
    seen.cuda_graphs = cuda_graphs if graphs else None
    return with_graph


def _process_groups() -> Optional[int]:
    """Number of process groups; 0 without ``torch.distributed``."""
    names = looks.module_globals(sys.modules.get("torch.distributed.distributed_c10d"))
    world = (names or {}).get("_world")
    return 0 if world is None else len(world.pg_map)


def _pinned_bytes(torch: Any) -> Optional[int]:
    """Pinned host memory; ``None`` before torch 2.7."""
    if not torch.cuda.is_initialized():
        return 0
    found = torch.cuda.host_memory_stats().get("allocated_bytes.current")
    return None if found is None else int(found)
