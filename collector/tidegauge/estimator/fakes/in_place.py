"""Operators that PyTorch runs in place, but not for tensor subclasses such as fake tensors (``isTensorSubclassLike``).

Each result that is made out of place instead would be memory that no real run takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

_INTO_ZEROS = (
    "aten.index_add.default",
    "aten.index_put.default",
    "aten.masked_scatter.default",
    "aten.scatter.src",
    "aten.scatter_add.default",
)
"""How the backward passes of ``index_select``, indexing, ``masked_select``, ``max`` and ``gather`` fill new zeros
(``index_select_backward_symint``, ``index_backward``, ``masked_select_backward``, ``gather_backward`` and
``value_selecting_reduction_backward`` in FunctionsManual.cpp)."""
_ACCUMULATE = 3
"""Position of the argument of ``index_put``; without it, it is the backward pass of ``index_put`` itself."""


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by operator, to be registered above PyTorch's."""
    return {"linear": _linear}


def in_backward(name: str, args: tuple[Any, ...]) -> bool:
    """Whether this operator, run by autograd, writes into its first argument. Double backward passes do not."""
    if name not in _INTO_ZEROS or torch.is_grad_enabled():
        return False
    return name != "aten.index_put.default" or (len(args) > _ACCUMULATE and bool(args[_ACCUMULATE]))


def _linear(values: Any, weight: Any, bias: Optional[Any] = None) -> Any:
    """``linear`` in Linear.cpp: a bias is added in place where input is not contiguous and the product has no bias."""
    operator = torch.ops.aten.linear.default
    if bias is None or values.dim() <= 2 or bias.dim() != 1 or values.is_contiguous():
        return operator.decompose(values, weight, bias)
    return torch.matmul(values, weight.t()).add_(bias)
