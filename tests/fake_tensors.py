"""Tensors that are not there: as much of torch as the holder search reads. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Optional

FLOAT_BYTES = 4


STRIDED = "torch.strided"


class _TensorBase:
    """Without a dict, as torch's own in C."""

    __slots__ = ("__weakref__", "address", "hooks", "node", "parts", "shape")


class Tensor(_TensorBase):
    """So many floats at an address."""

    def __init__(
        self, address: int, *shape: int, grad_fn: Optional[Node] = None, parts: Optional[tuple[int, int]] = None
    ) -> None:
        """``parts``: addresses of indices and values of a sparse one, which has no storage of its own."""
        self.address = address
        self.parts = parts
        self.shape = shape
        self.node = grad_fn
        self.hooks: Optional[dict[int, Any]] = None
        self.gradient: Optional[Tensor] = None
        self.offset = 0
        self.storage_bytes = FLOAT_BYTES * _product(shape)

    def storage_offset(self) -> int:
        return self.offset

    def untyped_storage(self) -> Any:
        return SimpleNamespace(nbytes=lambda: self.storage_bytes)

    @property
    def grad(self) -> Optional[Tensor]:
        return self.gradient

    def size(self) -> tuple[int, ...]:
        return self.shape

    def numel(self) -> int:
        return _product(self.shape)

    def element_size(self) -> int:
        return FLOAT_BYTES

    @property
    def dtype(self) -> str:
        return "torch.float32"

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def layout(self) -> str:
        return STRIDED if self.parts is None else "torch.sparse_coo"

    @property
    def grad_fn(self) -> Optional[Node]:
        return self.node

    @property
    def _backward_hooks(self) -> Optional[dict[int, Any]]:
        return self.hooks

    def _indices(self) -> Tensor:
        return self._part(0)

    def _values(self) -> Tensor:
        return self._part(1)

    def _part(self, number: int) -> Tensor:
        if self.parts is None:
            raise RuntimeError("it is not sparse")
        return Tensor(self.parts[number], 1)


class Parameter(Tensor):
    pass


class Node:
    """Of a graph."""

    made = 0

    def __init__(self, name: str, shape: Sequence[int], *following: Node, **saved: object) -> None:
        """``saved``: attributes such as ``_saved_mat1_sym_sizes``."""
        Node.made += 1
        vars(self).update(saved)
        self._number = Node.made
        self._name = name
        self._input_metadata = (
            SimpleNamespace(
                shape=tuple(shape),
                dtype=SimpleNamespace(itemsize=FLOAT_BYTES),
                device=SimpleNamespace(type="cuda"),
                is_nested_tensor=False,
            ),
        )
        self.next_functions = tuple((node, 0) for node in following)

    def name(self) -> str:
        return self._name

    def _sequence_nr(self) -> int:
        return self._number


class FunctionBase:
    """Base of nodes that are written in Python."""


class Module:
    """``torch.nn.Module``, as far as its dicts go."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._parameters: dict[str, Any] = {}
        self._buffers: dict[str, Any] = {}
        self._forward_hooks: dict[int, Any] = {}


class Optimizer:
    """``torch.optim.Optimizer``, as far as its state goes."""

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}


class _Native:
    """``torch._C``."""

    _FunctionBase = FunctionBase

    @staticmethod
    def _data_address(tensor: Tensor) -> int:
        return tensor.address

    @staticmethod
    def _current_graph_task_id() -> int:
        return -1

    @staticmethod
    @contextmanager
    def DisableTorchFunctionSubclass() -> Iterator[None]:  # torch's name
        yield


def fake_tensor_torch() -> Any:
    """The module."""
    return SimpleNamespace(
        Tensor=Tensor,
        strided=STRIDED,
        nn=SimpleNamespace(Module=Module, Parameter=Parameter),
        optim=SimpleNamespace(Optimizer=Optimizer),
        cuda=SimpleNamespace(is_initialized=lambda: False),
        _C=_Native,
    )


def _product(numbers: Sequence[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product
