"""Embeddings, indexing and sorting: kernels that sort positions first. Measured on an H200 with torch 2.11."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.estimator.kernels.calls import OpCall, Scratch, copied, dtype_name, numel

_INDEX_BYTES = 8
_FLOAT_BYTES = 4
_SORTED_FROM = 3072
"""Indices; up to here ``embedding_dense_backward_cuda`` needs no sorting."""
_ROWS_PER_SEGMENT = 10
"""``NROWS_PER_THREAD`` in EmbeddingBackwardKernel.cu."""
_OFTEN = 64
"""Indices for each row of the table, from which no partial gradients were seen (at 2,048; up to 4 they were)."""
_ONE_BLOCK_SORTS = 4096
"""Positions that cub sorts without memory for histograms."""


def _embedding(call: OpCall) -> Scratch:
    return Scratch(before=copied(call.args[1]))


def _embedding_backward(call: OpCall) -> Scratch:
    """``embedding_backward_cuda_kernel``: one partial gradient for each ten rows and for each index that occurs.

    How many indices occur depends on the data; PyTorch allocates for as many as there can be.
    """
    gradient, indices, weights = call.args[:3]
    before = (*copied(gradient), *copied(indices))
    count = numel(indices)
    if count <= _SORTED_FROM:
        return Scratch(before=before)
    segments = min(count, weights) + count // _ROWS_PER_SEGMENT
    row_bytes = gradient.shape[-1] * max(_FLOAT_BYTES, int(gradient.dtype.itemsize))
    if count > _OFTEN * weights:
        row_bytes = _INDEX_BYTES
    positions = count * _INDEX_BYTES
    starts = min(count, weights) * _INDEX_BYTES
    sorting = 2 * positions + count * 7 // 32 if count > _ONE_BLOCK_SORTS else positions
    return Scratch(
        before=(*before, positions, positions),
        between={0: (positions, sorting)},
        after=(positions, positions, starts, starts, segments * _INDEX_BYTES, segments * row_bytes),
    )


def _index_put(call: OpCall) -> Scratch:
    """Only where values are added up (``index_put_with_sort_kernel``)."""
    if not call.argument(3, "accumulate", False):
        return Scratch()
    values = call.args[2]
    count = max((numel(index) for index in call.args[1] if index is not None), default=0)
    return Scratch(after=(count * _INDEX_BYTES,) * 5 + copied(values))


def _sort(call: OpCall) -> Scratch:
    count = numel(call.args[0])
    histograms = (count * _INDEX_BYTES * 2,) if count > _ONE_BLOCK_SORTS else ()
    return Scratch(after=(count * _INDEX_BYTES, *histograms))


def _cumulative(call: OpCall) -> Scratch:
    """Whole numbers and flags from a copy as 64 bits."""
    tensor = call.args[0]
    return Scratch(after=(numel(tensor) * 8,) if dtype_name(tensor) in ("bool", "uint8", "int32") else ())


KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    "aten.embedding.default": _embedding,
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten.index_put.default": _index_put,
    "aten.index_put_.default": _index_put,
    "aten._index_put_impl_.default": _index_put,
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.cumsum.default": _cumulative,
}
