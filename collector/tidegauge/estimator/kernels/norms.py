"""Normalisations, softmax and dropout. Measured on an H200 with torch 2.11 and cuDNN 9.15."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tidegauge.estimator.kernels.calls import (
    NOTHING,
    Layout,
    OpCall,
    Scratch,
    copied,
    layout,
    numel,
    size_bytes,
    suggests_channels_last,
)
from tidegauge.estimator.kernels.reductions import buffer_bytes

_FLOAT_BYTES = 4
_MANY_ROWS = 64 * 1024
_ROWS_PER_BLOCK, _PARTS_PER_BLOCK = 256, 8
_WARP = 32
_MAX_BLOCKS, _ROWS_PER_THREAD, _MAX_THREADS = 128, 16, 512


def _layer_norm(call: OpCall) -> Scratch:
    return Scratch(before=copied(call.args[0]))


def _layer_norm_backward(call: OpCall) -> Scratch:
    """``launch_gamma_beta_backward_CUDA_kernel``: of many short rows, gradients of weight and bias in two steps."""
    gradient, values, shape = call.args[:3]
    columns = math.prod(shape)
    rows = numel(values) // max(columns, 1)
    parts: tuple[int, ...] = ()
    if rows > _MANY_ROWS and columns // _WARP < call.target.multiprocessors // 2:
        sums = -(-rows // _ROWS_PER_BLOCK) * _PARTS_PER_BLOCK
        buffer = buffer_bytes(Layout((sums, columns), (columns, 1)), (0,), call.target.multiprocessors)
        parts = (*(sums * columns * _FLOAT_BYTES,) * 2, *buffer)
    return Scratch(before=copied(values), after=(*parts, *copied(gradient)))


def _batch_norm(call: OpCall) -> Scratch:
    """Channels last, the native kernel's blocks meet in a buffer (``batch_norm_stats_channels_last_cuda_template``)."""
    return Scratch(after=_staging(call.args[0], 4 * _FLOAT_BYTES))


def _batch_norm_backward(call: OpCall) -> Scratch:
    return Scratch(after=_staging(call.args[1], 2 * _FLOAT_BYTES))


def _staging(tensor: Any, bytes_per_channel: int) -> tuple[int, ...]:
    found = layout(tensor)
    if not suggests_channels_last(found) or found.shape[2] * found.shape[3] == 1:
        return ()
    channels = found.shape[1]
    rows = numel(tensor) // channels
    width = min(_power_below(channels), _WARP)
    height = min(_power_below(-(-rows // _ROWS_PER_THREAD)), _MAX_THREADS // width)
    blocks = min(-(-rows // (height * _ROWS_PER_THREAD)), _MAX_BLOCKS)
    if blocks < 2:
        return ()
    return (channels * blocks * bytes_per_channel, -(-channels // width) * _FLOAT_BYTES)


def _power_below(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)


def _cudnn_batch_norm(call: OpCall) -> Scratch:
    """Channels last, cuDNN takes about a bit of every value; fitted to 24 measured sizes, at most 1 % off."""
    tensor = call.args[0]
    if not suggests_channels_last(layout(tensor)):
        return NOTHING
    return Scratch(after=(numel(tensor) // 8 + numel(tensor) // 1000 + 1000,))


def _cudnn_batch_norm_backward(call: OpCall) -> Scratch:
    """The same for a twelfth of the values."""
    tensor = call.args[0]
    if not suggests_channels_last(layout(tensor)):
        return NOTHING
    return Scratch(after=(numel(tensor) // 12 + 8 * tensor.shape[1] // 3 + 1000,))


def _softmax(call: OpCall) -> Scratch:
    """Softmax and log-softmax, and the backward pass of the latter, whose first argument is the gradient."""
    return Scratch(after=copied(call.args[0]))


def _softmax_backward(call: OpCall) -> Scratch:
    """``softmax_backward_cuda_out``: the product of gradient and result, always."""
    return Scratch(after=(size_bytes(call.args[0]),))


def _safe_softmax(call: OpCall) -> Scratch:
    """Looks for rows that are masked whole: a flag for each value, then one for each row."""
    tensor = call.args[0]
    values = numel(tensor)
    return Scratch(after=(values, values // max(tensor.shape[call.args[1]], 1), tensor.dtype.itemsize))


def _dropout(_: OpCall) -> Scratch:
    """The mask first."""
    return Scratch(order=(1, 0))


KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.cudnn_batch_norm.default": _cudnn_batch_norm,
    "aten.cudnn_batch_norm_backward.default": _cudnn_batch_norm_backward,
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax_backward_data.default": _softmax,
    "aten._safe_softmax.default": _safe_softmax,
    "aten.native_dropout.default": _dropout,
}
