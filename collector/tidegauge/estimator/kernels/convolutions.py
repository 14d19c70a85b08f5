"""Convolutions: cuDNN's workspaces, from a table, and the copies that PyTorch makes around it.

cuDNN's fastest kernels want channels last. For tensors in the usual layout the workspace then holds input and output
once more, which is often the largest allocation of a training step. The copies follow PyTorch's ConvShared.cpp and
Convolution.cpp.

``h200_convolutions.csv.gz`` holds the 24,616 cases of ``bench/gpu_workspaces.py`` on an H200 (torch 2.11, cuDNN 9.15,
November 2026): the convolutions of 44 models of torchvision, batches from 1 to 256, three types, two layouts, without
``cudnn.benchmark``. For other cases the nearest three tell which kinds of kernels cuDNN takes: a workspace is divided
into copies of input and output and the rest, these are scaled to the sizes at hand, and the middle one counts.
"""

from __future__ import annotations

import gzip
import heapq
import math
import operator
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib import resources
from math import log2
from statistics import median
from typing import Any, NamedTuple, Optional

from tidegauge.estimator.kernels.calls import (
    Layout,
    OpCall,
    Scratch,
    copied,
    dtype_name,
    is_channels_last,
    is_contiguous,
    layout,
    size_bytes,
    suggests_channels_last,
)  # fmt: skip
from tidegauge.estimator.kernels.reductions import of_tensor

TABLE = "h200_convolutions.csv.gz"
_NATIVE = "-"
"""In the table: PyTorch's own kernel for depthwise convolutions, which needs no workspace."""
_SMALL_BYTES = 4096
"""Descriptors and the like: does not grow with the tensors."""
_NEIGHBOURS = 3
"""Whose middle is taken for a case that was not measured."""
_PIXEL_PAIRS = ((1, 1), (2, 0), (0, 2), (1, 0), (0, 1))
"""How often input and output may be in a workspace."""


class Geometry(NamedTuple):
    """A two-dimensional convolution; ``height`` and ``width`` are the input's."""

    batch: int
    channels: int
    out_channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str
    channels_last: bool

    @property
    def item_bytes(self) -> int:
        return 2 if self.dtype in ("float16", "bfloat16") else 4

    @property
    def input_bytes(self) -> int:
        return self.batch * self.channels * self.height * self.width * self.item_bytes

    @property
    def output_bytes(self) -> int:
        sides = (
            (size + 2 * edge - gap * (side - 1) - 1) // step + 1
            for size, edge, gap, side, step in zip(
                (self.height, self.width), self.padding, self.dilation, self.kernel, self.stride
            )
        )
        height, width = sides
        return self.batch * self.out_channels * max(height, 1) * max(width, 1) * self.item_bytes

    @property
    def weight_bytes(self) -> int:
        inner = max(self.channels // self.groups, 1)
        return self.out_channels * inner * self.kernel[0] * self.kernel[1] * self.item_bytes


class WorkspaceTable(NamedTuple):
    """Bytes; 0: none. One at a time: each is given back before the next is taken."""

    forward: int
    input_gradient: int
    weight_gradient: int


class _Kind(NamedTuple):
    """Cases of different kinds say nothing about each other."""

    dtype: str
    channels_last: bool
    grouping: str


class _Case(NamedTuple):
    """One measured convolution."""

    geometry: Geometry
    place: tuple[float, ...]
    found: Optional[WorkspaceTable]


@lru_cache(maxsize=4096)
def workspaces(wanted: Geometry) -> Optional[WorkspaceTable]:
    """``None``: not cuDNN's, but PyTorch's own kernel runs."""
    place = _place(wanted)

    def distance(case: _Case) -> float:
        return math.fsum(map(abs, map(operator.sub, place, case.place)))

    nearest = heapq.nsmallest(_NEIGHBOURS, _measured(_kind(wanted)), key=distance)
    if nearest[0].geometry == wanted or nearest[0].found is None:
        return nearest[0].found
    told = [[_scaled(size, case.geometry, wanted) for size in case.found] for case in nearest if case.found is not None]
    return WorkspaceTable(*(int(median(sizes)) for sizes in zip(*told)))


def _scaled(size: int, known: Geometry, wanted: Geometry) -> int:
    """A workspace for ``known`` at the sizes of ``wanted``."""
    if size < _SMALL_BYTES:
        return size
    weights = wanted.weight_bytes / known.weight_bytes
    for inputs, outputs in _PIXEL_PAIRS:
        pixels = inputs * known.input_bytes + outputs * known.output_bytes
        if 0 <= size - pixels <= max(8 * known.weight_bytes + _SMALL_BYTES, pixels // 50):
            rest = (size - pixels) * weights
            return inputs * wanted.input_bytes + outputs * wanted.output_bytes + int(rest)
    before, after = (one.input_bytes + one.output_bytes for one in (known, wanted))
    if before <= size <= before + 40 * known.weight_bytes:
        return after + int((size - before) * weights)
    return size * after // before


def _kind(geometry: Geometry) -> _Kind:
    dtype = geometry.dtype if geometry.dtype in ("float16", "bfloat16") else "float32"
    return _Kind(dtype, geometry.channels_last, _grouping(geometry.groups, geometry.channels))


def _grouping(groups: int, channels: int) -> str:
    return "one" if groups == 1 else "each" if groups == channels else "some"


def _place(geometry: Geometry) -> tuple[float, ...]:
    """Coordinates in which near means alike: doublings, and whether tensor cores can take the channels as they are.

    The weights are those that did best where one case was told from all others of the table.
    """
    inner = max(geometry.channels // geometry.groups, 1)
    outer = max(geometry.out_channels // geometry.groups, 1)
    kernel, stride, dilation = geometry.kernel, geometry.stride, geometry.dilation
    pixels = log2(max(geometry.height * geometry.width, 1))
    batch = log2(max(geometry.batch, 1))
    by_pixels, by_rows, by_batch = (1.0, 0.3, 0.5) if geometry.groups == geometry.channels else (0.2, 1.0, 0.1)
    return (
        log2(inner), log2(outer), log2(geometry.groups),
        by_pixels * pixels, by_rows * (pixels + batch - 2 * log2(stride[1])), by_batch * batch,
        3 * log2(kernel[0]), 3 * log2(kernel[1]), 3 * log2(stride[1]), 3 * log2(dilation[1]),
        *(4.0 * (count % multiple != 0) for count in (inner, outer) for multiple in (4, 8)),
        *(1.0 * (count % multiple != 0) for count in (inner, outer) for multiple in (16, 32, 64)),
        0.01 * abs(geometry.padding[0] - kernel[0] // 2), 0.001 * abs(geometry.height - geometry.width),
    )  # fmt: skip


@cache
def _lines() -> list[list[str]]:
    """The table. A line: 13 numbers of the geometry, type, layout, and ``batch:forward:input:weight`` each."""
    packed = resources.files(__package__).joinpath(TABLE).read_bytes()
    return [line.split(",") for line in gzip.decompress(packed).decode("ascii").splitlines()]


@cache
def _measured(kind: _Kind) -> list[_Case]:
    cases: list[_Case] = []
    for words in _lines():
        channels, groups, dtype, channels_last = int(words[0]), int(words[12]), words[13], words[14] == "channels_last"
        if (dtype, channels_last, _grouping(groups, channels)) != kind:
            continue
        numbers = [int(word) for word in words[:12]]
        kernel, stride, padding, dilation = ((numbers[begin], numbers[begin + 1]) for begin in range(4, 12, 2))
        for word in words[15:]:
            batch, *sizes = word.split(":")
            geometry = Geometry(
                int(batch), numbers[0], numbers[1], numbers[2], numbers[3], kernel, stride, padding, dilation,
                groups, dtype, channels_last,
            )  # fmt: skip
            found = None if sizes == [_NATIVE] else WorkspaceTable(*map(int, sizes))
            cases.append(_Case(geometry, _place(geometry), found))
    return cases


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
    """The gradients of input, weight and bias, in this order; the last is an ordinary sum.

    Each of the first two makes its own copy of a gradient with gaps: the input's after its result, the weight's before.
    A transposed convolution makes one for both (``cudnn_convolution_transpose_backward`` in ConvShared.cpp).
    """
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
    elif call.args[7]:
        before = (*before, *incoming.copied(channels_last=last))
    else:
        arriving = incoming.copied(channels_last=last)
    data = (*filters.copied(channels_last=last), *arriving, *_nonzero(_for_input(found, call)))
    weights = _nonzero(found.weight_gradient)
    between = {0: data if wanted[0] else (), 1: weights if wanted[1] else (), 2: sums}
    return Scratch(before=before, ahead={1: arriving} if wanted[1] and arriving else {}, between=between)


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
    """The values of the two last dimensions; ``fill`` for the first where there is but one."""
    values = list(value) if len(value) == dimensions else [value[0]] * dimensions
    if dimensions == 1:
        return (fill, values[0])
    return (values[-2], values[-1])


KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    "aten.convolution.default": _forward,
    "aten.convolution_backward.default": _backward,
}
