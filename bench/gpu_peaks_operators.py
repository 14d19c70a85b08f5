"""Which operator allocated what: tags the allocator's trace with the running ATen operator, and sums it up.

Needs torch >= 2.10 (`torch.cuda.memory._set_memory_metadata`, whose text is kept per thread and put on each event).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LISTED_TENSORS = 4
"""Longer tensor lists (foreach optimizers) are given by length, bytes and first member."""

_SHORT_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int64": "i64"}


class Call(NamedTuple):
    """One operator call as it was dispatched, below autograd and autocast."""

    step: int
    phase: str
    name: str
    arguments: Mapping[str, Any]
    outputs: tuple[tuple[int, int], ...]
    """Address and bytes of each output's storage."""


class Allocation:
    """One block that a call asked for."""

    __slots__ = ("address", "freed_after", "requested_bytes")

    def __init__(self, address: int, requested_bytes: int) -> None:
        self.address = address
        self.requested_bytes = requested_bytes
        self.freed_after: int | None = None
        """How many blocks the call had asked for when it freed this one; None if it did not."""


def begin_trace() -> None:
    """Record every event of the allocator from here on, without stacks; forget the earlier ones."""
    torch.cuda.memory._record_memory_history(max_entries=8_000_000, context=None, clear_history=True)


def trace() -> list[dict[str, Any]]:
    """The events of device 0 since `begin_trace`, oldest first: `_snapshot()["device_traces"][0]`."""
    return list(torch.cuda.memory._snapshot()["device_traces"][0])


class OperatorTags(TorchDispatchMode):  # type: ignore[misc]  # torch has no types where mypy runs
    """Puts the number of the running operator on the allocator's events, in autograd's threads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.step = 0
        self.phase = ""

    def mark(self, phase: str) -> None:
        self.phase = phase

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number = len(self.calls)
        arguments = named_arguments(func, args, kwargs or {})
        self.calls.append(Call(self.step, self.phase, str(func), arguments, ()))
        result = tagged(f"#{number}", lambda: func(*args, **(kwargs or {})))
        storages = [leaf.untyped_storage() for leaf in tree_leaves(result) if torch.is_tensor(leaf) and leaf.is_cuda]
        outputs = tuple((storage.data_ptr(), storage.nbytes()) for storage in storages)
        self.calls[number] = self.calls[number]._replace(outputs=outputs)
        return result


def tagged(tag: str, action: Callable[[], Any]) -> Any:
    """Do something with a tag on every event of the allocator that this thread causes."""
    torch.cuda.memory._set_memory_metadata(tag)
    try:
        return action()
    finally:
        torch.cuda.memory._set_memory_metadata("")


def allocations(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Allocation]]:
    """What was asked for under each tag, in order."""
    asked: dict[str, list[Allocation]] = {}
    for event in events:
        tag = event.get("user_metadata", "")
        if not tag.startswith("#"):
            continue
        if event["action"] == "alloc":
            asked.setdefault(tag, []).append(Allocation(event["addr"], event["size"]))
        elif event["action"] == "free_requested":
            for block in reversed(asked.get(tag, ())):
                if block.address == event["addr"] and block.freed_after is None:
                    block.freed_after = len(asked[tag])
                    break
    return asked


def summary(calls: Iterable[Call], events: Iterable[Mapping[str, Any]], steps: int) -> list[dict[str, Any]]:
    """The calls that allocated, equal ones once with their number in each step.

    `allocations` holds, in order, [bytes asked for, fate, blocks asked for when freed]; the fate is `output` (a result
    lives in it), `temporary` (freed by the operator itself) or `kept` (a library's workspace, saved for the backward).
    """
    asked = allocations(events)
    entries: dict[str, dict[str, Any]] = {}
    for number, call in enumerate(calls):
        blocks = asked.get(f"#{number}")
        if not blocks:
            continue
        results = {address for address, _ in call.outputs}
        entry = {
            "op": call.name,
            "phase": call.phase,
            "arguments": call.arguments,
            "output_bytes": [size for _, size in call.outputs][:LISTED_TENSORS],
            "allocations": [[block.requested_bytes, _fate(block, results), block.freed_after] for block in blocks],
        }
        counted = entries.setdefault(json.dumps(entry, sort_keys=True), {**entry, "count": [0] * steps})
        counted["count"][call.step] += 1
    return list(entries.values())


def _fate(block: Allocation, results: set[int]) -> str:
    if block.freed_after is not None:
        return "temporary"
    return "output" if block.address in results else "kept"


def named_arguments(func: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their names in the operator's schema, tensors as text; those that are None left out."""
    values = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    return {name: shown(value) for name, value in {**values, **kwargs}.items() if value is not None}


def shown(value: Any) -> Any:
    """A value for JSON: a tensor as `f32[4,256]`, with `@cl` for channels_last and `@(strides)` for other layouts."""
    if torch.is_tensor(value):
        return _tensor_text(value)
    if isinstance(value, (list, tuple)):
        tensors = [item for item in value if torch.is_tensor(item)]
        if len(tensors) > LISTED_TENSORS:
            total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            return {"tensors": len(tensors), "bytes": total, "first": _tensor_text(tensors[0])}
        return [shown(item) for item in value]
    return value if isinstance(value, (bool, int, str)) or value is None else repr(value)


def _tensor_text(tensor: Any) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    where = "" if tensor.is_cuda else "cpu:"
    text = f"{where}{_SHORT_TYPES.get(name, name)}[{','.join(map(str, tensor.shape))}]"
    if tensor.is_contiguous():
        return text
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return f"{text}@cl"
    return f"{text}@({','.join(map(str, tensor.stride()))})"
