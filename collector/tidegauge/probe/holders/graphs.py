"""Autograd graphs reachable from kept tensors: counts nodes, and estimates the sizes of what they saved.

What a node saved is neither unpacked nor read: its hooks could run the job's code (checkpointing recomputes,
offloading copies back), and a read while a backward pass frees it in another thread could crash the process. The
shapes of a node's outputs (``_input_metadata``) do not change, and give the sizes; those of inputs that no node
outputs are numbers beside what was saved (``_saved_mat1_sym_sizes``), of matrix products alone. Source-compatible with
Python 3.9.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple, Optional

from tidegauge.core.allocator_sizes import MAX_SMALL_BYTES, MIN_BLOCK_BYTES
from tidegauge.probe.holders.looks import clean, has_base
from tidegauge.probe.holders.pace import Work

MAX_NODES = 200_000
"""In all. A node costs some 3 us."""
NODES_AT_ONCE = 1_000
"""Walked while training stands still: those of a larger graph, and what they saved, stay alive until all are walked."""
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        "Alias", "AsStrided", "Chunk", "Detach", "Diagonal", "Expand", "Narrow", "Permute", "ReshapeAlias", "Select",
        "Slice", "Split", "SplitWithSizes", "Squeeze", "T", "Transpose", "Unbind", "Unfold", "Unsqueeze", "View",
        "UnsafeView",
    )
)  # fmt: skip
"""Nodes whose output has no storage of its own."""
_FACTORS = {"AddmmBackward0": ("mat1", "mat2"), "MmBackward0": ("self", "mat2")}
"""The two matrices of a product, as its node calls them: a ``Linear``'s input and weight."""
_NO_NUMBER = (1 << 64) - 1
"""``_sequence_nr`` of nodes that accumulate gradients: there is one for each parameter."""


class Graph(NamedTuple):
    """The graph nodes that one tensor leads to and no earlier one did."""

    first: str
    """Name of the tensor's own node: ``MeanBackward0``."""
    nodes: int
    sizes: Counter[tuple[int, str]]
    """Bytes of a node's outputs and of its input that needs no gradient, rounded as the allocator does, and the node's
    name."""
    contexts: Sequence[Any]
    """Nodes that are Python's: ``ctx`` of a ``torch.autograd.Function``."""

    @property
    def walked_last(self) -> int:
        """Nodes since the walk's last yield."""
        return self.nodes % NODES_AT_ONCE


class Graphs:
    """Walks graphs, each node once."""

    def __init__(self, torch: Any) -> None:
        self._python_node = torch._C._FunctionBase
        self._seen: set[int] = set()
        self.nodes = 0

    def walk(self, node: Any) -> Work[Optional[Graph]]:
        """Walk from a tensor's node on; ``None``: its graph was walked before, or there were too many nodes."""
        first = clean(node.name())
        sizes: Counter[tuple[int, str]] = Counter()
        contexts, nodes = [], 0
        waiting = [node]
        while waiting and self.nodes < MAX_NODES:
            node = waiting.pop()
            number = node._sequence_nr()
            if number in self._seen or number == _NO_NUMBER:
                continue
            self._seen.add(number)
            self.nodes += 1
            nodes += 1
            name = clean(node.name())
            if name not in _VIEWS:
                sizes.update((size_bytes, name) for size_bytes in _output_bytes(node))
            if has_base(node, self._python_node):
                contexts.append(node)
            elif name in _FACTORS:
                sizes.update((size_bytes, name) for size_bytes in _input_bytes(node, *_FACTORS[name]))
            waiting += [following for following, _ in node.next_functions if following is not None]
            if nodes % NODES_AT_ONCE == 0:
                yield from repeat(False, NODES_AT_ONCE)
        return Graph(first, nodes, sizes, contexts) if nodes else None


def fits(block_bytes: int, size_bytes: int) -> bool:
    """Whether the allocator may have given a block of ``block_bytes`` for a request of ``size_bytes``, rounded."""
    return 0 <= block_bytes - size_bytes <= (MAX_SMALL_BYTES if block_bytes > MAX_SMALL_BYTES else 0)


def _output_bytes(node: Any) -> list[int]:
    return [
        _rounded_bytes(output.shape, output.dtype.itemsize)
        for output in getattr(node, "_input_metadata", ())
        if output.device.type == "cuda" and not output.is_nested_tensor
    ]


def _input_bytes(node: Any, first: str, second: str) -> list[int]:
    """Of the factor that needs no gradient, which no node outputs: it is saved where the other one needs some. A
    factor's strides are kept only for its own gradient."""
    needed = {factor: bool(getattr(node, f"_saved_{factor}_sym_strides", ())) for factor in (first, second)}
    if needed[first] == needed[second]:
        return []
    shape = getattr(node, f"_saved_{second if needed[first] else first}_sym_sizes", ())
    outputs = getattr(node, "_input_metadata", ())
    return [_rounded_bytes(shape, output.dtype.itemsize) for output in outputs if output.device.type == "cuda"]


def _rounded_bytes(shape: Sequence[Any], item_bytes: int) -> int:
    elements = math.prod(int(size) for size in shape)
    return -(-elements * item_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
