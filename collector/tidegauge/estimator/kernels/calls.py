"""An operator call, and the memory that its kernels allocate besides the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge.estimator.target import Target


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
