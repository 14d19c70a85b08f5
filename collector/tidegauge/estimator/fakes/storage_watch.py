"""Converts the lifetimes of tensors' storages into allocator events: made by an operator, freed without an owner."""

from __future__ import annotations

import weakref
from typing import Any, Optional

import torch

from tidegauge.estimator.gpus import Target
from tidegauge.estimator.kernels import scratch
from tidegauge.estimator.kernels.calls import OpCall
from tidegauge.estimator.recording import AllocatorEventLog, Block, RecordedKind


class StorageWatch:
    """Maps every storage on the fake GPU to its block.

    A storage's Python object lives exactly as long as PyTorch's own (it is preserved while C++ holds the storage), so
    its weak reference is called at the moment at which the real allocator would get the block back.
    """

    def __init__(self, log: AllocatorEventLog, target: Target) -> None:
        self._log = log
        self._target = target
        self._blocks: dict[int, tuple[Block, weakref.ref[Any]]] = {}
        self._workspaces: set[str] = set()

    def block_of(self, tensor: Any) -> Optional[Block]:
        """``None`` for tensors that are not on the GPU, or hold nothing; of a sharded tensor, this rank's part."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        if not isinstance(tensor, torch.Tensor) or not torch._C._has_storage(tensor):
            return None
        known = self._blocks.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def label(self, tensor: Any, kind: RecordedKind) -> None:
        """Set the purpose of this tensor's block, unless it has one already."""
        block = self.block_of(tensor)
        if block is not None and block.kind is None:
            block.kind = kind

    def op_ran(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: tuple[Any, ...], backward: bool
    ) -> None:
        """Log what the operator took: workspaces that its kernels are known for, and results in new storages."""
        needs = scratch(OpCall(name, args, kwargs, outputs, backward, self._target))
        held = [self._log.alloc(size, RecordedKind.WORKSPACE) for size in needs.before]
        for index in needs.order or range(len(outputs)):
            output = outputs[index]
            passing = [self._log.alloc(size, RecordedKind.WORKSPACE) for size in needs.ahead.get(index, ())]
            if output is not None and index not in needs.elsewhere:
                self._see(output)
            passing += [self._log.alloc(size, RecordedKind.WORKSPACE) for size in needs.between.get(index, ())]
            for block in passing:
                self._log.free(block)
        for workspace in needs.keep:
            if workspace.key not in self._workspaces:
                self._workspaces.add(workspace.key)
                self._log.alloc(workspace.size_bytes, RecordedKind.WORKSPACE)
        held += [self._log.alloc(size, RecordedKind.WORKSPACE) for size in needs.after]
        for block in reversed(held):
            self._log.free(block)

    def resized(self, storage: Any) -> None:
        """A storage may have got another size in place: PyTorch takes new memory before it gives back the old."""
        known = self._blocks.pop(storage._cdata, None)
        if known is None:
            return
        block, reference = known
        if block.size_bytes == storage.nbytes():
            self._blocks[storage._cdata] = known
            return
        if storage.nbytes():
            self._blocks[storage._cdata] = (self._log.alloc(storage.nbytes(), block.kind), reference)
        self._log.free(block)

    def _see(self, tensor: Any) -> None:
        if tensor.device.type != "cuda" or not torch._C._has_storage(tensor):
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._blocks:
            self.resized(storage)
        elif storage.nbytes():
            self._watch(storage, self._log.alloc(storage.nbytes()))

    def _watch(self, storage: Any, block: Block) -> None:
        key = storage._cdata

        def died(_: Any) -> None:
            gone = self._blocks.pop(key, None)
            if gone is not None:
                self._log.free(gone[0])

        self._blocks[key] = (block, weakref.ref(storage, died))
