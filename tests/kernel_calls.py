"""Calls of operators as values: tensors that are shape, strides and type, written as ``bench/gpu_peaks.py`` does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from tidegauge.estimator.gpus import H200, Target
from tidegauge.estimator.kernels.calls import OpCall

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
SHORT = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "i64": "int64"}
WRITTEN = re.compile(r"(?:cpu:)?(\w+)\[([\d,]*)\](?:@(.*))?$")


@dataclass(frozen=True)
class FakeType:
    name: str

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.name]

    def __str__(self) -> str:
        return f"torch.{self.name}"


@dataclass(frozen=True)
class FakeDevice:
    type: str


@dataclass(frozen=True)
class FakeTensor:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: FakeType
    device: FakeDevice = FakeDevice("cuda")

    def stride(self) -> tuple[int, ...]:
        return self.strides


def tensor(written: str) -> FakeTensor:
    """Of ``bf16[2,3,4]``, with ``@cl`` for channels last or ``@(12,1,3)`` for strides."""
    found = WRITTEN.match(written)
    assert found is not None, written
    shape = tuple(int(size) for size in found[2].split(",") if size)
    return FakeTensor(shape, strides(shape, found[3]), FakeType(SHORT.get(found[1], found[1])))


def strides(shape: Sequence[int], written: Optional[str]) -> tuple[int, ...]:
    if written == "cl":
        _, channels, height, width = shape
        return (height * width * channels, 1, width * channels, channels)
    if written is not None:
        return tuple(int(step) for step in written.strip("()").split(",") if step)
    dense, step = [], 1
    for size in reversed(shape):
        dense.append(step)
        step *= max(size, 1)
    return tuple(reversed(dense))


def value(written: Any) -> Any:
    """An argument: tensors where one is written, lists opened."""
    if isinstance(written, list):
        return [value(one) for one in written]
    return tensor(written) if isinstance(written, str) and WRITTEN.match(written) else written


def call(
    name: str,
    *args: Any,
    outputs: Sequence[Optional[str]] = ("f32[1]",),
    backward: bool = False,
    target: Target = H200,
    kwargs: Optional[Mapping[str, Any]] = None,
) -> OpCall:
    """``name`` without its namespace."""
    made = tuple(None if one is None else tensor(one) for one in outputs)
    return OpCall(f"aten.{name}", tuple(value(one) for one in args), kwargs or {}, made, backward, target)


def on_the_cpu(made: OpCall) -> OpCall:
    outputs = tuple(replace(output, device=FakeDevice("cpu")) for output in made.outputs)
    return made._replace(outputs=outputs)
