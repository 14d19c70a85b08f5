"""Facts about the process besides its holders: its garbage collector, process groups, pinned memory and optimizers.

Each is read separately: what this torch does not offer, or what fails, is ``None``. Nothing is changed, no device
touched. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import gc
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, Optional, TypeVar

from tidegauge.core.evidence.rank_evidence import RankFacts
from tidegauge.probe.holders import looks
from tidegauge.probe.holders.from_names import Forward
from tidegauge.probe.holders.graphs import MAX_NODES, Graphs
from tidegauge.probe.holders.links import ObjectLinks
from tidegauge.probe.holders.pace import PATIENCE_S, AtBoundary, Budget, NoBoundaryError, OutOfWorkError, Slices, Work
from tidegauge.probe.holders.ref_paths import RefPath
from tidegauge.probe.holders.tensors import MetTensors, Tensors, WantedBlocks, YoungTensor, young_tensors

MAX_UNITS = 500_000
"""Of work."""
MAX_OBJECTS = 60_000
"""Followed from names."""

T = TypeVar("T")


class _Seen:
    optimizers: Optional[int] = None
    parameter_bytes: Optional[int] = None
    graph_nodes: Optional[int] = None
    cuda_graphs: Optional[int] = None
    in_autocast: Optional[bool] = None


def read_facts(
    torch: Any,
    *,
    pause: Callable[[], None],
    at_boundary: AtBoundary,
    patience_s: float = PATIENCE_S,
    step_s: float = 0.0,
    clock_s: Callable[[], float] = time.perf_counter,
) -> RankFacts:
    """This process's facts: looks at the objects that names lead to, and at graphs, at step boundaries. Exceptions of
    ``pause`` pass through, no others."""
    seen = _Seen()
    with suppress(OutOfWorkError, NoBoundaryError):
        budget = Budget(MAX_UNITS, patience_s=patience_s, step_s=step_s)
        Slices(torch, budget, pause=pause, at_boundary=at_boundary, clock_s=clock_s).run(_look(torch, seen))
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
        in_autocast=seen.in_autocast,
    )


def _or_none(read: Callable[[], Optional[T]]) -> Optional[T]:
    try:
        return read()
    except Exception:
        return None


class _Census:
    """Counts what names lead to."""

    def __init__(self, torch: Any, tensors: Tensors) -> None:
        self._tensors = tensors
        self._parameter = torch.nn.Parameter
        self._optimizer = torch.optim.Optimizer
        self._cuda_graph = _cuda_graph(torch)
        self._met = MetTensors()
        self.graphs = Graphs(torch)
        self.optimizers = self.parameter_bytes = self.cuda_graphs = 0

    def tensor(self, tensor: Any, _trail: RefPath) -> bool:
        address = self._tensors.address(tensor)
        if address is None or not self._met.add(tensor, address):
            return False
        if looks.has_base(tensor, self._parameter):
            self.parameter_bytes += self._tensors.look(tensor).own_bytes
        return True

    def graph(self, node: Any, _name: str, _trail: RefPath) -> Work[tuple[int, Sequence[Any]]]:
        walk = self.graphs.walk(node)
        del node
        graph = yield from walk
        return (0, ()) if graph is None else (graph.walked_last, graph.contexts)

    def stray(self, young: YoungTensor) -> Work[None]:
        """Count the graph of a tensor that no name leads to."""
        tensor = young.reference()
        is_met = tensor is None or self._met.has(tensor, self._tensors.address(tensor))
        node = None if is_met else self._tensors.node(tensor)
        tensor = None
        if node is not None:
            walk = self.graphs.walk(node)
            node = None
            graph = yield from walk
            yield from repeat(False, 0 if graph is None else graph.walked_last)

    def second_way(self, _known: RefPath, _other: RefPath) -> None:
        """Two ways to a container lead to the same tensors."""

    def is_noted(self, cls: type) -> bool:
        return looks.derives(cls, self._optimizer) or self._is_cuda_graph(cls)

    def note(self, obj: Any) -> None:
        if self._is_cuda_graph(type(obj)):
            self.cuda_graphs += 1
        else:
            self.optimizers += 1

    def _is_cuda_graph(self, cls: type) -> bool:
        return self._cuda_graph is not None and looks.derives(cls, self._cuda_graph)


def _look(torch: Any, seen: _Seen) -> Work[None]:
    seen.in_autocast = _or_none(lambda: torch.is_autocast_enabled() and torch.is_autocast_cache_enabled())
    tensors = Tensors(torch)
    young = young_tensors(tensors, WantedBlocks(())) if looks.may_list_young() else []
    yield False
    census = _Census(torch, tensors)
    forward = Forward(tensors, ObjectLinks(torch), census, most_objects=MAX_OBJECTS)
    yield from forward.run()
    yield from forward.forget()
    yield from forward.trails.forget()
    for one in young:
        yield from census.stray(one)
    seen.optimizers, seen.parameter_bytes = census.optimizers, census.parameter_bytes
    seen.cuda_graphs = None if _cuda_graph(torch) is None else census.cuda_graphs
    seen.graph_nodes = _counted(census.graphs)


def _counted(graphs: Graphs) -> Optional[int]:
    """Nodes; ``None`` where there are more than are walked."""
    return graphs.nodes if graphs.nodes < MAX_NODES else None


def _cuda_graph(torch: Any) -> Optional[type]:
    return getattr(getattr(torch, "cuda", None), "CUDAGraph", None)


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
