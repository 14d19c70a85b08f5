"""An operator call, and the memory that its kernels allocate besides the results.

Sizes and layouts of tensors are computed from shape, strides and type alone, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidegauge.estimator.gpus import Target


class OpCall(NamedTuple):
    """An operator of PyTorch as the dispatcher hands it to a kernel, below autograd and autocast."""

    name: str
    """With namespace and overload: ``aten.convolution.default``."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]
    """Result tensors in the order of the schema, ``None`` where there is none; their data does not exist."""
    backward: bool
    """Whether autograd runs it: on a GPU that is another thread, with library handles and workspaces of its own."""
    target: Target

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """However it was passed."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


class Workspace(NamedTuple):
    """Memory that a library keeps from its first use to the process's end."""

    key: str
    """Asked for once for each; a library's handle and stream, say."""
    size_bytes: int


class Scratch(NamedTuple):
    """Requests in bytes, besides the results. Results are made in the order of ``OpCall.outputs``."""

    before: tuple[int, ...] = ()
    """Taken before the first result and given back when the operator ends."""
    ahead: Mapping[int, tuple[int, ...]] = {}
    """Taken right before the result of that index, and given back with ``between``."""
    between: Mapping[int, tuple[int, ...]] = {}
    """Taken right after the result of that index, and given back before the next is made."""
    after: tuple[int, ...] = ()
    """Taken after the last result and given back when the operator ends."""
    keep: tuple[Workspace, ...] = ()
    """Taken after the results, the first time only."""
    order: tuple[int, ...] = ()
    """In which the kernel makes the results, where that is not their order."""
    elsewhere: tuple[int, ...] = ()
    """Results that are not on the GPU, or not there at all, although PyTorch's description of the operator says so."""


NOTHING = Scratch()


class Layout(NamedTuple):
    """Shape and strides, both in elements, outermost first."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def layout(tensor: Any) -> Layout:
    return Layout(tuple(tensor.shape), tuple(tensor.stride()))


def dtype_name(tensor: Any) -> str:
    """``float32`` and so on."""
    return str(tensor.dtype).rpartition(".")[2]


def numel(tensor: Any) -> int:
    return math.prod(tensor.shape)


def size_bytes(tensor: Any) -> int:
    """Bytes of a dense copy."""
    return numel(tensor) * int(tensor.dtype.itemsize)


def is_contiguous(found: Layout) -> bool:
    """Row by row; dimensions of one element do not count."""
    return _is_dense(found, range(len(found.shape) - 1, -1, -1))


def is_channels_last(found: Layout) -> bool:
    """``is_contiguous(memory_format=torch.channels_last)``."""
    return len(found.shape) == 4 and _is_dense(found, (1, 3, 2, 0))


def _is_dense(found: Layout, fastest_first: Sequence[int]) -> bool:
    expected = 1
    for axis in fastest_first:
        if found.shape[axis] != 1:
            if found.strides[axis] != expected:
                return False
            expected *= found.shape[axis]
    return True


def suggests_channels_last(found: Layout) -> bool:
    """``is_channels_last_strides_2d``: the order of the strides, gaps allowed."""
    shape, strides = found
    if len(shape) != 4 or strides[1] == 0:
        return False
    least = 0
    for axis in (1, 3, 2, 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def copied(tensor: Any) -> tuple[int, ...]:
    """The copy that ``tensor.contiguous()`` takes, none where it is contiguous."""
    return () if is_contiguous(layout(tensor)) else (size_bytes(tensor),)


def rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
