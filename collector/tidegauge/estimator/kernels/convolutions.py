"""Convolutions: cuDNN's workspaces, from a table, and the copies that PyTorch makes around it.

cuDNN's fastest kernels want channels last. For tensors in the usual layout the workspace then holds input and output
once more, which is often the largest allocation of a training step. The copies follow PyTorch's ConvShared.cpp and
Convolution.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegauge.estimator.kernels.calls import OpCall, Scratch
from tidegauge.estimator.kernels.convolution_table import Geometry, WorkspaceTable, workspaces
from tidegauge.estimator.kernels.reductions import of_tensor
from tidegauge.estimator.kernels.tensors import (
    Layout,
    copied,
    dtype_name,
    is_channels_last,
    is_contiguous,
    layout,
    size_bytes,
    suggests_channels_last,
)  # fmt: skip


class _Viewed:
    """A tensor as two-dimensional convolutions see it: one dimension becomes a picture of one row, and the depth of
    three becomes height."""

    def __init__(self, tensor: Any, *, made_contiguous: bool = False) -> None:
        """``made_contiguous``: as the input is where it has one dimension, lest a transposed one counts as channels
        last."""
        shape, strides = layout(tensor)
        self.bytes = size_bytes(tensor)
        self._made: tuple[int, ...] = ()
        if len(shape) == 3 and made_contiguous:
            self._made, strides = copied(tensor), (shape[1] * shape[2], shape[2], 1)
        if len(shape) == 3:
            shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
        elif len(shape) == 5:
            shape, strides = (*shape[:2], shape[2] * shape[3], shape[4]), (*strides[:2], *strides[3:])
        self.layout = Layout(tuple(shape), tuple(strides))
        self.prefers_last = suggests_channels_last(self.layout)

    def copied(self, *, channels_last: bool) -> tuple[int, ...]:
        """The copy that it takes to have it in this layout."""
        dense = is_channels_last(self.layout) if channels_last else is_contiguous(self.layout)
        return self._made if dense else (*self._made, self.bytes)


def _forward(call: OpCall) -> Scratch:
    tensor, weight = call.args[:2]
    values, filters = _Viewed(tensor, made_contiguous=True), _Viewed(weight)
    last = values.prefers_last or filters.prefers_last
    found = workspaces(_geometry(call, tensor, weight, 3, channels_last=last))
    before = values.copied(channels_last=last)
    if found is None:
        return Scratch(before=before)
    taken = found.input_gradient if call.args[6] else found.forward
    return Scratch(before=before, after=(*filters.copied(channels_last=last), *_nonzero(taken)))


def _backward(call: OpCall) -> Scratch:
    """The gradients of input, weight and bias, in this order; the last is an ordinary sum."""
    gradient, tensor, weight = call.args[:3]
    wanted = call.args[10]
    values, filters, incoming = _Viewed(tensor, made_contiguous=True), _Viewed(weight), _Viewed(gradient)
    last = values.prefers_last or filters.prefers_last
    sums = of_tensor(call, gradient, (0, *range(2, len(gradient.shape)))) if wanted[2] else ()
    found = workspaces(_geometry(call, tensor, weight, 4, channels_last=last))
    if found is None:
        before = (*copied(gradient), *copied(tensor))
        return Scratch(before=before, between={2: sums}, order=(1, 0, 2))
    before = values.copied(channels_last=last) if wanted[1] else ()
    arriving: tuple[int, ...] = ()
    if incoming.prefers_last != values.prefers_last:
        before = (incoming.bytes, *before)
    else:
        arriving = incoming.copied(channels_last=last)
    data = (*filters.copied(channels_last=last), *arriving, *_nonzero(_for_input(found, call)))
    weights = (*arriving, *_nonzero(found.weight_gradient))
    between = {0: data if wanted[0] else (), 1: weights if wanted[1] else (), 2: sums}
    return Scratch(before=before, between=between)


def _for_input(found: WorkspaceTable, call: OpCall) -> int:
    return found.forward if call.args[7] else found.input_gradient


def _nonzero(size: int) -> tuple[int, ...]:
    return (size,) if size else ()


def _geometry(call: OpCall, tensor: Any, weight: Any, first: int, *, channels_last: bool) -> Geometry:
    """``first``: where the arguments begin at which both operators agree, from the stride on."""
    stride, padding, dilation, transposed, output_padding, groups = call.args[first : first + 6]
    shape, kernel = _Viewed(tensor).layout.shape, _Viewed(weight).layout.shape[2:]
    dimensions = len(tensor.shape) - 2
    steps, gaps = _pair(stride, dimensions, 1), _pair(dilation, dimensions, 1)
    edges, more = _pair(padding, dimensions, 0), _pair(output_padding, dimensions, 0)
    channels, out_channels = shape[1], weight.shape[0]
    height, width = shape[2], shape[3]
    if transposed:  # the convolution whose gradient it is: its input is this one's result
        height, width = (
            (size - 1) * step - 2 * edge + gap * (side - 1) + extra + 1
            for size, step, edge, gap, side, extra in zip((height, width), steps, edges, gaps, kernel, more)
        )
        channels, out_channels = weight.shape[1] * groups, channels
    return Geometry(
        shape[0], channels, out_channels, height, width, (kernel[0], kernel[1]), steps, edges, gaps, groups,
        dtype_name(tensor), channels_last,
    )  # fmt: skip


def _pair(value: Sequence[int], dimensions: int, fill: int) -> tuple[int, int]:
    """Of the two last dimensions; ``fill`` for the first where there is but one."""
    values = list(value) if len(value) == dimensions else [value[0]] * dimensions
    if dimensions == 1:
        return (fill, values[0])
    return (values[-2], values[-1])


KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    "aten.convolution.default": _forward,
    "aten.convolution_backward.default": _backward,
}
