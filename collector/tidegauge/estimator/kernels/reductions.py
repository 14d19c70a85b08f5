"""Reductions such as sums: blocks that share an output write partial results to a buffer.

After ``setReduceConfig`` in PyTorch's Reduce.cuh and the ordering of dimensions in TensorIterator; the same as measured
on an H200 (torch 2.11) in all 834 distinct calls of 258 training jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.estimator.kernels.calls import Layout, OpCall, Scratch, dtype_name, layout, numel, size_bytes

_THREADS_PER_MULTIPROCESSOR = 2048
"""1536 on consumer GPUs, whose buffers are a quarter smaller."""
_WARP = 32
_MAX_THREADS = 512
_MAX_VALUES_PER_THREAD = 256
_SEMAPHORE_BYTES = 4
_WIDE_TYPES = ("float64", "int64")


class ReducedAxis(NamedTuple):
    """A dimension, possibly merged from several."""

    size: int
    stride: int
    """Of the input, in elements."""
    out_stride: int
    """Of the result; 0 where the dimension is reduced."""


class _Shape(NamedTuple):
    """The reduction's shape in the kernel: ``dim0`` runs along the threads of a warp."""

    inputs: int
    """Values that go into one result."""
    outputs: int
    dim0: int
    dim1: int
    along_inputs: bool
    """Whether a warp's threads share a result."""
    outputs_per_thread: int


def buffer_bytes(
    found: Layout, dims: Optional[Iterable[int]], multiprocessors: int, accumulator_bytes: int = 4
) -> tuple[int, ...]:
    """The buffer and its semaphores; nothing where each result is the work of one block. No ``dims``: all of them."""
    shape = _seen(_axes(found, dims))
    most = _MAX_THREADS // shape.outputs_per_thread
    width = min(_threads(shape.dim0, most), _WARP)
    height = min(_threads(shape.dim1, most), most // width)
    width = min(_threads(shape.dim0, most), most // height)
    step_in = width if shape.along_inputs else 1
    step_out = 1 if shape.along_inputs else width
    per_thread = -(-shape.inputs // step_in)
    shared_by_rows = per_thread >= height * 16 or per_thread >= _MAX_VALUES_PER_THREAD
    if shared_by_rows:
        per_thread = -(-shape.inputs // (step_in * height))
    else:
        step_out *= height
    blocks = -(-(shape.outputs // shape.outputs_per_thread) // step_out)
    room = multiprocessors * (_THREADS_PER_MULTIPROCESSOR // (width * height))
    if not shared_by_rows or per_thread < _MAX_VALUES_PER_THREAD or blocks > room:
        return ()
    sharing = max(min(-(-room // blocks), -(-per_thread // 16)), -(-per_thread // _MAX_VALUES_PER_THREAD))
    if sharing <= 1:
        return ()
    size = accumulator_bytes * shape.outputs * sharing
    return size if shape.along_inputs else size * width * shape.outputs_per_thread, _SEMAPHORE_BYTES * blocks


def _threads(size: int, most: int) -> int:
    """``last_pow2``, at most ``most``."""
    return 1 << (max(size, 1).bit_length() - 1) if size < most else most


def _axes(found: Layout, dims: Optional[Iterable[int]]) -> list[ReducedAxis]:
    count = len(found.shape)
    reduced = {dim % count for dim in dims} if dims is not None and count else set()
    reduced = reduced or set(range(count))
    axes: list[ReducedAxis] = []
    out_stride = 1
    for axis in reversed(range(count)):
        size = found.shape[axis]
        axes.append(ReducedAxis(size, found.strides[axis], 0 if axis in reduced else out_stride))
        out_stride *= 1 if axis in reduced else size
    axes = [axis for axis in axes if axis.size != 1] or [ReducedAxis(1, 1, 1)]
    return _merged(_ordered(axes))


def _ordered(axes: list[ReducedAxis]) -> list[ReducedAxis]:
    """``reorder_dimensions``: an insertion sort that leaves ambiguous pairs as they are."""
    for begin in range(1, len(axes)):
        moving = begin
        for other in reversed(range(begin)):
            order = _comes_after(axes[other], axes[moving])
            if order is True:
                axes[other], axes[moving] = axes[moving], axes[other]
                moving = other
            elif order is False:
                break
    return axes


def _comes_after(first: ReducedAxis, second: ReducedAxis) -> Optional[bool]:
    if (first.out_stride == 0) != (second.out_stride == 0):
        return second.out_stride == 0
    for mine, other in ((first.out_stride, second.out_stride), (first.stride, second.stride)):
        if mine == 0 or other == 0:
            continue
        if mine != other:
            return mine > other
        if first.size > second.size:
            return True
    return None


def _merged(axes: Sequence[ReducedAxis]) -> list[ReducedAxis]:
    """``coalesce_dimensions``."""
    merged = [axes[0]]
    for axis in axes[1:]:
        last = merged[-1]
        if last.stride * last.size == axis.stride and last.out_stride * last.size == axis.out_stride:
            merged[-1] = last._replace(size=last.size * axis.size)
        else:
            merged.append(axis)
    return merged


def _seen(axes: Sequence[ReducedAxis]) -> _Shape:
    reduced = [axis for axis in axes if axis.out_stride == 0]
    kept = [axis for axis in axes if axis.out_stride != 0]
    outputs = math.prod(axis.size for axis in kept)
    inputs = math.prod(axis.size for axis in reduced)
    if not kept or (reduced and reduced[0].stride < kept[0].stride):
        vectorized = len(axes) == 1 and bool(reduced) and reduced[0].stride == 1 and inputs > 128
        return _Shape(inputs, outputs, inputs // 4 if vectorized else inputs, outputs, True, 1)
    width = _outputs_per_thread(axes, kept[0]) if kept[0].stride == 1 else 1
    return _Shape(inputs, outputs, outputs // width, inputs, False, width)


def _outputs_per_thread(axes: Sequence[ReducedAxis], fastest: ReducedAxis) -> int:
    others = [axis.stride for axis in axes if axis is not fastest]
    return next(width for width in (4, 2, 1) if fastest.size % width == 0 and all(s % width == 0 for s in others))


def of_tensor(call: OpCall, tensor: Any, dims: Optional[Iterable[int]]) -> tuple[int, ...]:
    """The buffer for a reduction of this tensor on the call's GPU."""
    accumulator_bytes = 8 if dtype_name(tensor) in _WIDE_TYPES else 4
    return buffer_bytes(layout(tensor), dims, call.target.multiprocessors, accumulator_bytes)


def _reduction(call: OpCall) -> Scratch:
    """Whole numbers and flags are added up as 64 bits, from a copy of that type."""
    tensor = call.args[0]
    if call.name.startswith("aten.sum") and dtype_name(tensor) in ("bool", "uint8", "int8", "int16", "int32"):
        return Scratch(after=(numel(tensor) * 8,))
    return Scratch(after=of_tensor(call, tensor, _dims(call.argument(1, "dim"))))


def _norm(call: OpCall) -> Scratch:
    return Scratch(after=of_tensor(call, call.args[0], _dims(call.argument(2, "dim"))))


def _whole(call: OpCall) -> Scratch:
    return Scratch(after=of_tensor(call, call.args[0], None))


def _log_of_sum(call: OpCall) -> Scratch:
    """``logsumexp_out_impl``: largest values, then a copy of everything less those."""
    tensor = call.args[0]
    rows = size_bytes(call.outputs[0])
    return Scratch(after=(rows, size_bytes(tensor)))


def _loss(call: OpCall) -> Scratch:
    """``mse_loss_out`` and ``smooth_l1_loss_out``: a loss for each element, and their sum."""
    if len(call.outputs[0].shape):
        return Scratch()
    count = max(numel(tensor) for tensor in call.args[:2])
    whole = buffer_bytes(Layout((count,), (1,)), None, call.target.multiprocessors)
    return Scratch(after=(count * int(call.outputs[0].dtype.itemsize), *whole))


def _dims(value: Any) -> Optional[Sequence[int]]:
    return (value,) if isinstance(value, int) else value or None


KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    "aten.sum.dim_IntList": _reduction,
    "aten.mean.dim": _reduction,
    "aten.amax.default": _reduction,
    "aten.amin.default": _reduction,
    "aten.sum.default": _reduction,
    "aten.mean.default": _whole,
    "aten.max.default": _whole,
    "aten.min.default": _whole,
    "aten.linalg_vector_norm.default": _norm,
    "aten.logsumexp.default": _log_of_sum,
    "aten.mse_loss.default": _loss,
    "aten.smooth_l1_loss.default": _loss,
}
