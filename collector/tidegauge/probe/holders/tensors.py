"""Reads tensors for the search: their address, shape and autograd node, and nothing that could run code.

A subclass may define ``__torch_function__`` and ``__torch_dispatch__``. This module calls only C functions that do
not dispatch, unbound, with ``__torch_function__`` disabled for the slice. The searches leave ``.grad`` alone: torch
exchanges it without the interpreter's lock. No device is touched and nothing is allocated on one. The caller passes
torch in. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from tidegauge.core.units import format_bytes
from tidegauge.probe.holders.looks import (
    MAX_YOUNG_TENSORS,
    has_base,
    instance_dict,
    mro,
    slot_values,
    slots_of,
    type_name,
    young_objects,
)

MAX_DIMS = 8
_PARTS = ("_indices", "_values", "crow_indices", "row_indices", "ccol_indices", "col_indices", "values")
"""Methods of ``torch.Tensor`` that give parts of a sparse tensor: COO, then CSR, BSR, CSC and BSC."""
MAX_WRAPPED = 3
"""Tensors in tensors in tensors."""
PINNED_BY_VIEW = 2
"""A tensor is shown as a view where its storage is this many times larger."""


class WantedBlocks:
    """The allocator blocks to search for, by address."""

    def __init__(self, blocks: Sequence[tuple[int, int]]) -> None:
        self.sizes: Mapping[int, int] = dict(blocks)
        self._starts = sorted(self.sizes)

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes.values())

    def at(self, address: int) -> Optional[int]:
        """The block that an address lies in, by its own; ``None``: none of these."""
        if address in self.sizes:
            return address
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._starts[index] + self.sizes[self._starts[index]]:
            return None
        return self._starts[index]


class MetTensors:
    """Tensors that were met, by id and address: of one that died, another one may have the id by now. Keeps none."""

    def __init__(self) -> None:
        self._addresses: dict[int, int] = {}

    def has(self, tensor: Any, address: Optional[int]) -> bool:
        return self._addresses.get(id(tensor)) == address

    def add(self, tensor: Any, address: int) -> bool:
        """Note it; whether it was not met before."""
        is_new = not self.has(tensor, address)
        self._addresses[id(tensor)] = address
        return is_new


class TensorDescription(NamedTuple):
    """A tensor's description in an answer."""

    name: str
    """``Tensor[8,128,4096] float32``."""
    own_bytes: int
    """Of its elements: less than its block where it is a view of a part."""

    def words(self, block_bytes: int) -> str:
        """Text at the end of a path."""
        if self.own_bytes * PINNED_BY_VIEW > block_bytes or block_bytes <= 512:
            return self.name
        return f"{self.name}, a view of a {format_bytes(block_bytes)} storage"


class Storage(NamedTuple):
    """The memory of a tensor."""

    address: int
    """Of its first byte."""
    size_bytes: int
    offset_bytes: int
    """Where in it the tensor begins."""


class Tensors:
    """Reads one torch's tensors, only within a slice (``pace``). What cannot be read is ``None`` or empty."""

    def __init__(self, torch: Any) -> None:
        self._base = torch.Tensor
        self._is_tensor: dict[int, bool] = {}
        begins = getattr(torch._C, "_data_address", None)
        self._address = begins or torch.Tensor.data_ptr
        self._is_of_storage = begins is not None
        self._grad_fn = torch.Tensor.grad_fn.__get__
        names = ("_backward_hooks", "_post_accumulate_grad_hooks")  # the latter from torch 2.1 on
        self._hooks = [getattr(torch.Tensor, name).__get__ for name in names if hasattr(torch.Tensor, name)]
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._is_cuda = torch.Tensor.is_cuda.__get__
        self._dtype = torch.Tensor.dtype.__get__
        self._layout = torch.Tensor.layout.__get__
        self._strided = torch.strided
        self._parts = [getattr(torch.Tensor, name) for name in _PARTS if hasattr(torch.Tensor, name)]
        self._gradient = torch.Tensor.grad.__get__
        self._offset = torch.Tensor.storage_offset
        self._storage = torch.Tensor.untyped_storage
        slot = vars(torch.Tensor).get("__dict__")
        self._dict = instance_dict if slot is None else slot.__get__

    def is_tensor(self, obj: object) -> bool:
        """Whether ``obj`` is a tensor, by its class; cached by class."""
        cls = type(obj)
        known = self._is_tensor.get(id(cls))
        if known is None:
            known = self._is_tensor[id(cls)] = any(base is self._base for base in mro(cls))
        return known

    def address(self, tensor: Any) -> Optional[int]:
        """The beginning of its storage; ``None``: it has none (sparse, wrapped, on the meta device)."""
        try:
            if not self._is_cuda(tensor):
                return None
            return self._address(tensor) or None
        except Exception:
            return None

    def addresses(self, tensor: Any) -> Sequence[int]:
        """The same, of each of its parts where it is sparse: indices and values."""
        address = self.address(tensor)
        if address is not None:
            return (address,)
        found = [self.address(part) for part in self._parts_of(tensor)]
        return [one for one in found if one is not None]

    def storages(self, tensor: Any, nesting: int = 0) -> Sequence[Storage]:
        """The memory of a tensor on a device, of each of its parts where it is sparse, or of the tensors that it
        wraps."""
        address = self.address(tensor)
        if address is not None:
            try:
                offset = self._offset(tensor)
                offset_bytes = offset * self._base.element_size(tensor) if offset else 0
                address -= 0 if self._is_of_storage else offset_bytes
                # The storage is not asked for its address: it would be copied if it is to be copied on write.
                return [Storage(address, self._storage(tensor).nbytes(), offset_bytes)]
            except Exception:
                return ()
        if nesting >= MAX_WRAPPED:
            return ()
        parts = self._parts_of(tensor) if self.is_plain(tensor) else self._wrapped(tensor)
        return [one for part in parts for one in self.storages(part, nesting + 1)]

    def gradient(self, tensor: Any) -> Optional[Any]:
        """``.grad`` of a parameter; at a step boundary alone, where no backward pass exchanges it."""
        try:
            return self._gradient(tensor)
        except Exception:
            return None

    def attributes(self, tensor: Any) -> dict[str, Any]:
        """A tensor's own ``__dict__``, by the slot of ``torch.Tensor``."""
        return self._dict(tensor) or {}

    def _parts_of(self, tensor: Any) -> list[Any]:
        """Indices and values, of a sparse one."""
        try:
            if not self._is_cuda(tensor) or self._layout(tensor) is self._strided:
                return []
        except Exception:
            return []
        found = []
        for read in self._parts:
            with suppress(Exception):  # it has another layout
                found.append(read(tensor))
        return found

    def _wrapped(self, tensor: Any) -> list[Any]:
        """Tensors that are attributes of a subclass's: ``_local_tensor`` of a DTensor."""
        values = [*self.attributes(tensor).values()]
        values += [value for _, value in slot_values(tensor, slots_of(type(tensor)))]
        return [value for value in values if self.is_tensor(value)]

    def node(self, tensor: Any) -> Optional[Any]:
        """Its autograd node, if it came from an operation. ``None`` also where that cannot be read."""
        try:
            return self._grad_fn(tensor)
        except Exception:
            return None

    def owned(self, tensor: Any) -> Any:
        """The tensor, kept alive by its Python object: before torch 2.10 C++ may have been its only owner, and may drop
        it under the hands of whoever got it from a weak reference (``torch.Tensor._fix_weakref``)."""
        fix = getattr(self._base, "_fix_weakref", None)
        if fix is not None:
            fix(tensor)
        return tensor

    def hooks(self, tensor: Any) -> list[dict[int, Any]]:
        """``register_hook``'s and ``register_post_accumulate_grad_hook``'s."""
        try:
            found = [read(tensor) for read in self._hooks]
        except Exception:
            return []
        return [hooks for hooks in found if has_base(hooks, dict)]

    def is_plain(self, tensor: Any) -> bool:
        """Whether it is torch's own kind; a subclass may wrap others."""
        return any(type(tensor) is cls for cls in self._plain)

    def look(self, tensor: Any) -> TensorDescription:
        """Its class, shape and type. Raises nothing."""
        name = type_name(tensor)
        try:
            shape = tuple(int(size) for size in self._base.size(tensor)[:MAX_DIMS])
            dtype = str(self._dtype(tensor)).rpartition(".")[2]
            own_bytes = self._base.numel(tensor) * self._base.element_size(tensor)
        except Exception:
            return TensorDescription(name, 0)
        return TensorDescription(f"{name}[{','.join(map(str, shape))}] {dtype}", own_bytes)


class YoungTensor(NamedTuple):
    """One of the newest tensors, held weakly: it may be one of training's that soon dies."""

    reference: weakref.ref[Any]
    block: Optional[int]
    """The wanted block that it is in; ``None``: it has a graph."""


def young_tensors(tensors: Tensors, wanted: WantedBlocks) -> list[YoungTensor]:
    """Those among the youngest objects that are in wanted blocks, or have a graph. In one go: until this is done, none
    of training's tensors can die."""
    found = []
    for one in young_objects(MAX_YOUNG_TENSORS):
        if tensors.is_tensor(one):
            address = tensors.address(one)
            block = None if address is None else wanted.at(address)
            if address is not None and (block is not None or tensors.node(one) is not None):
                found.append(YoungTensor(weakref.ref(one), block))
    return found
