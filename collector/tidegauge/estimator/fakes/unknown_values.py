"""Substitutes for values that a program reads from tensors without data.

Scalars get a plausible value, shapes that depend on values their upper bound; both are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Say = Callable[[str], None]

SCALAR_READ = (
    "the program reads a value from a tensor; taken as {value!r}, so branches on it may differ from a real run"
)
SIZE_DEPENDS_ON_VALUES = "the size of the result of {name} depends on values; taken as large as it can be"


def scalar(dtype: Any, say: Say) -> Any:
    """A value for ``item()`` and ``bool()``: not zero, as losses are divided by and logarithms taken; flags are off.

    What ``all()`` and ``any()`` give does not come here: it is true and false, as programs check with them that nothing
    is out of the ordinary.
    """
    value: Any = False if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1
    say(SCALAR_READ.format(value=value))
    return value


def positions(mask: Any) -> tuple[Any, ...]:
    """The result of ``nonzero(as_tuple=True)`` for a boolean mask that is all set, as indexing uses it."""
    return tuple(torch.ops.aten.select.int(_nonzero(mask), 1, axis) for axis in range(max(1, mask.dim())))


def index_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of ``index`` and its kind, with every boolean mask replaced by the positions of all its elements."""
    indices: list[Any] = []
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            indices.extend(positions(index))
        else:
            indices.append(index)
    return (args[0], indices, *args[2:])


def has_mask(args: tuple[Any, ...]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _nonzero(value: Any) -> Any:
    return torch.empty((value.numel(), value.dim()), dtype=torch.int64, device=value.device)


def _masked_select(value: Any, mask: Any) -> Any:
    shape = torch.broadcast_shapes(value.shape, mask.shape)
    return torch.empty(shape.numel(), dtype=value.dtype, device=value.device)


def _unique(value: Any, *_: Any, **__: Any) -> tuple[Any, Any, Any]:
    """``_unique2``: sorted values, where each went, how often each occurs."""
    flat = torch.empty(value.numel(), dtype=value.dtype, device=value.device)
    inverse = torch.empty(value.shape, dtype=torch.int64, device=value.device)
    return flat, inverse, torch.empty(value.numel(), dtype=torch.int64, device=value.device)


def _repeat_interleave(repeats: Any, *, output_size: Any = None) -> Any:
    size = output_size if output_size is not None else repeats.numel()
    return torch.empty(size, dtype=repeats.dtype, device=repeats.device)


def _equal(left: Any, right: Any) -> bool:
    return bool(left.shape == right.shape and left is right)


SHAPES: dict[str, Callable[..., Any]] = {
    "aten.nonzero.default": _nonzero,
    "aten.masked_select.default": _masked_select,
    "aten._unique2.default": _unique,
    "aten.unique_consecutive.default": _unique,
    "aten.repeat_interleave.Tensor": _repeat_interleave,
    "aten.equal.default": _equal,
}
"""Operators whose result depends on values, by name."""
