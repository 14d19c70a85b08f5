"""Fused attention: gradients are added up in float32, in memory of their own.

Measured on an H200 with torch 2.11 and cuDNN 9.15; the flash kernel after ``mha_bwd`` in PyTorch's flash_api.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegauge.estimator.kernels.calls import (
    Layout,
    OpCall,
    Scratch,
    is_contiguous,
    layout,
    numel,
    rounded_up,
    size_bytes,
)

_FLOAT_BYTES = 4
_TILE = 64
"""Rows of queries, and at least so many elements of a head, that one block of the memory-efficient kernel holds."""
_TILE_COUNTER_BYTES = 16
_FLASH_ROWS = 128
_CUDNN_FIXED_BYTES = 256


def _efficient(_: OpCall) -> Scratch:
    """Seed and offset of dropout stay on the CPU."""
    return Scratch(elsewhere=(2, 3))


def _efficient_backward(call: OpCall) -> Scratch:
    """``_efficient_attention_backward`` in attention_backward.cu; the transposed gradient has to be contiguous."""
    gradient, query = call.args[0], call.args[1]
    batch, heads, length, _ = query.shape
    rows_bytes = batch * heads * length * _FLOAT_BYTES
    tiles = -(-length // _TILE)
    head = rounded_up(query.shape[-1], _TILE)
    accumulator = batch * heads * tiles * (_TILE * head * _FLOAT_BYTES + _TILE_COUNTER_BYTES)
    copy = () if is_contiguous(_transposed(layout(gradient))) else (size_bytes(gradient),)
    last = 3 if call.outputs[3:] and call.outputs[3] is not None else 2
    if query.dtype.itemsize < _FLOAT_BYTES:
        return Scratch(before=copy, after=(rows_bytes, accumulator))
    product = numel(gradient) * _FLOAT_BYTES
    return Scratch(before=copy, between={last: (product, rows_bytes)}, after=(rows_bytes, accumulator))


def _transposed(found: Layout) -> Layout:
    """Heads and positions exchanged."""
    shape, strides = found
    return Layout(tuple(shape[axis] for axis in (0, 2, 1, 3)), tuple(strides[axis] for axis in (0, 2, 1, 3)))


def _cudnn(_: OpCall) -> Scratch:
    """``run_cudnn_SDP_fprop``: seed and offset of dropout come first."""
    return Scratch(after=(_CUDNN_FIXED_BYTES,), order=(6, 7, 0, 1))


def _cudnn_backward(call: OpCall) -> Scratch:
    """Gradients of grouped keys and values are made for every head of the query, and then added up."""
    query, key, value = call.args[1], call.args[2], call.args[3]
    batch, heads, length, head = query.shape
    taken = batch * heads * length * (head + 1) * _FLOAT_BYTES + _CUDNN_FIXED_BYTES
    return Scratch(after=(taken + sum(_for_every_head(heads, key, value)),))


def _flash_backward(call: OpCall) -> Scratch:
    query, key, value = call.args[1], call.args[2], call.args[3]
    batch, heads, length, head = query.shape
    rows = batch * heads * rounded_up(length, _FLASH_ROWS)
    sums, accumulator = rows * _FLOAT_BYTES, rows * rounded_up(head, 32) * _FLOAT_BYTES
    return Scratch(after=(sums, accumulator, *_for_every_head(heads, key, value)))


def _for_every_head(heads: int, *tensors: Any) -> tuple[int, ...]:
    return tuple(size_bytes(tensor) // tensor.shape[1] * heads for tensor in tensors if tensor.shape[1] != heads)


KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    "aten._scaled_dot_product_efficient_attention.default": _efficient,
    "aten._scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "aten._scaled_dot_product_cudnn_attention.default": _cudnn,
    "aten._scaled_dot_product_cudnn_attention_backward.default": _cudnn_backward,
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
}
