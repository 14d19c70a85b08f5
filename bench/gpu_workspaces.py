"""Which workspaces cuDNN takes for a convolution, forward and backward, by shape, batch, type and layout.

Part of bench/gpu_peaks.py. The convolutions are those of torchvision's models; `cudnn.benchmark` is off, so cuDNN's
heuristics choose and the first choice is what is recorded.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_peaks_models import SIDES, TORCHVISION
from gpu_peaks_operators import Allocation, allocations, begin_trace, tagged, trace
from gpu_peaks_training import build_model
from gpu_workers import Task

MORE_MODELS = (
    *("resnet34", "resnet50", "resnet152", "resnext50_32x4d", "wide_resnet50_2", "vgg11", "vgg13_bn", "vgg19"),
    *("densenet169", "densenet201", "mobilenet_v3_small", "mnasnet1_0", "shufflenet_v2_x2_0", "squeezenet1_0"),
    *("efficientnet_b1", "efficientnet_b2", "efficientnet_b3", "efficientnet_v2_s", "regnet_x_3_2gf", "regnet_y_8gf"),
    *("convnext_tiny", "convnext_large", "regnet_y_400mf", "regnet_x_8gf", "maxvit_t", "resnext101_32x8d"),
)
"""Whose convolutions are tried besides those of the models that are trained."""
PROCESSES = 10
GIB = 12.0
"""For each process: its largest case and what the allocator keeps of earlier ones."""
MAX_CASE_BYTES = 3 << 30
"""Of a case's input and output together."""
KEPT_BYTES = 5 << 30
CASES_AT_A_TIME = 100
"""The trace is read, and begun anew, after so many."""
GRACE_S = 30.0
"""For the last hundred cases, when the time is over."""
USUAL_BATCHES = (16, 64, 128)
OTHER_BATCHES = (1, 2, 4, 8, 32, 256)
USUAL_TYPES = ("float32", "bfloat16")
OTHER_TYPES = ("float16",)


class Convolution(NamedTuple):
    """A two-dimensional convolution without its batch; the sides are those of its input."""

    channels: int
    out_channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    bias: bool


class Case(NamedTuple):
    """A convolution as it is tried."""

    convolution: Convolution
    batch: int
    dtype: str
    channels_last: bool


class Row(NamedTuple):
    """A line of workspaces.csv. Temporaries are bytes in the order in which they were asked for, joined by spaces.

    `bytes@n` was freed when that call had asked for n blocks: with `a@1 b@2`, a and b never lived together.
    """

    batch: int
    channels: int
    out_channels: int
    height: int
    width: int
    kernel: str
    stride: str
    padding: str
    dilation: str
    groups: int
    bias: int
    dtype: str
    layout: str
    backend: str
    forward_temporaries: str
    backward_temporaries: str
    backward_weight_temporaries: str
    """Of a backward that wants no gradient of the input, as in a model's first layer."""
    forward_kept: int
    """Bytes that the call did not free: its result, and what comes with it."""
    backward_kept: int


def convolutions(models: Sequence[str]) -> list[Convolution]:
    """The distinct convolutions of torchvision models, found without computing; those that more models have first."""
    users: dict[Convolution, int] = {}
    for name in models:
        job = {"fam": "tv", "name": name, "family_config": TORCHVISION.get(name, {})}
        model = build_model(job).eval().to("meta")
        found: set[Convolution] = set()
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_hook(partial(_note, found))
        side = SIDES.get(name, 224)
        model(torch.empty(2, 3, side, side, device="meta"))
        for convolution in found:
            users[convolution] = users.get(convolution, 0) + 1
    return sorted(users, key=lambda convolution: (-users[convolution], convolution))


def _note(found: set[Convolution], module: Any, values: Any, _: Any) -> None:
    found.add(_of(module, values[0]))


def _of(module: Any, values: Any) -> Convolution:
    _, channels, height, width = values.shape
    shape = (module.kernel_size, module.stride, module.padding, module.dilation)
    kernel, stride, padding, dilation = ((int(pair[0]), int(pair[1])) for pair in shape)
    bias = module.bias is not None
    return Convolution(
        channels, module.out_channels, height, width, kernel, stride, padding, dilation, module.groups, bias
    )


def cases(found: Sequence[Convolution], seed: int = 1) -> list[Case]:
    """All combinations: usual batches and types in the order of `found`, then the others mixed."""
    usual = [
        Case(convolution, batch, dtype, False)
        for batch in USUAL_BATCHES
        for dtype in USUAL_TYPES
        for convolution in found
    ]
    known = set(usual)
    others = [
        Case(convolution, batch, dtype, channels_last)
        for convolution in found
        for batch in (*USUAL_BATCHES, *OTHER_BATCHES)
        for dtype in (*USUAL_TYPES, *OTHER_TYPES)
        for channels_last in (False, True)
    ]
    mixed = [case for case in others if case not in known]
    random.Random(seed).shuffle(mixed)
    return [case for case in (*usual, *mixed) if _case_bytes(case) <= MAX_CASE_BYTES]


def _case_bytes(case: Case) -> int:
    shape = case.convolution
    out = shape.out_channels * shape.height * shape.width // (shape.stride[0] * shape.stride[1])
    return case.batch * (shape.channels * shape.height * shape.width + out) * (4 if case.dtype == "float32" else 2)


def record(wanted: Sequence[Case], path: Path, limit_s: float) -> None:
    """Try cases until the time is over, and write their rows after each hundred."""
    end_s = time.monotonic() + limit_s
    for begin in range(0, len(wanted), CASES_AT_A_TIME):
        begin_trace()
        tried = []
        for number, case in enumerate(wanted[begin : begin + CASES_AT_A_TIME]):
            if time.monotonic() > end_s:
                break
            tried.append((case, _try(case, number)))
            if torch.cuda.memory_reserved() > KEPT_BYTES:
                torch.cuda.empty_cache()
        asked = allocations(trace())
        with path.open("a") as table:
            for number, (case, backend) in enumerate(tried):
                table.write(",".join(map(str, _row(case, backend, number, asked))) + "\n")
        if time.monotonic() > end_s:
            return


def _try(case: Case, number: int) -> str:
    """Run a case's forward and both backwards under tags; the name of the backend, or of the error."""
    shape = case.convolution
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    options: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, case.dtype)}
    values = torch.empty(case.batch, shape.channels, shape.height, shape.width, memory_format=layout, **options)
    inner = shape.channels // shape.groups
    weight = torch.empty(shape.out_channels, inner, *shape.kernel, memory_format=layout, **options)
    bias = torch.empty(shape.out_channels, **options) if shape.bias else None
    how = (shape.stride, shape.padding, shape.dilation, False, (0, 0), shape.groups)
    operators = torch.ops.aten
    try:
        backend = torch._C._select_conv_backend(values, weight, bias, *how)
        result = tagged(f"#{number}f", lambda: operators.convolution(values, weight, bias, *how))
        gradient = torch.empty_like(result)
        sizes = [shape.out_channels] if shape.bias else None
        for tag, wants_input in (("b", True), ("w", False)):
            mask = [wants_input, True, shape.bias]
            backward = partial(operators.convolution_backward, gradient, values, weight, sizes, *how, mask)
            tagged(f"#{number}{tag}", backward)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return type(error).__name__
    return str(backend).rpartition(".")[2]


def _row(case: Case, backend: str, number: int, asked: dict[str, list[Allocation]]) -> Row:
    shape = case.convolution
    forward, backward, weight = (asked.get(f"#{number}{tag}", []) for tag in "fbw")
    pairs = (f"{pair[0]}x{pair[1]}" for pair in (shape.kernel, shape.stride, shape.padding, shape.dilation))
    kernel, stride, padding, dilation = pairs
    return Row(
        case.batch,
        shape.channels,
        shape.out_channels,
        shape.height,
        shape.width,
        kernel,
        stride,
        padding,
        dilation,
        shape.groups,
        int(shape.bias),
        case.dtype,
        "channels_last" if case.channels_last else "contiguous",
        backend,
        _temporaries(forward),
        _temporaries(backward),
        _temporaries(weight),
        _kept_bytes(forward),
        _kept_bytes(backward),
    )


def _temporaries(blocks: Iterable[Allocation]) -> str:
    return " ".join(f"{block.requested_bytes}@{block.freed_after}" for block in blocks if block.freed_after is not None)


def _kept_bytes(blocks: Iterable[Allocation]) -> int:
    return sum(block.requested_bytes for block in blocks if block.freed_after is None)


def tasks(folder: Path, limit_s: float) -> list[Task]:
    """The cases dealt out to processes that write FOLDER/N.csv."""
    wanted = cases(convolutions((*TORCHVISION, *MORE_MODELS)))
    print(f"{len(wanted)} convolutions to try", flush=True)
    return [
        Task(
            f"workspaces {number}",
            record,
            (wanted[number::PROCESSES], folder / f"{number}.csv", limit_s),
            GIB,
            limit_s + GRACE_S,
        )
        for number in range(PROCESSES)
    ]
