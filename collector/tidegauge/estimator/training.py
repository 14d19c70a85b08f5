"""Runs a user's training steps on the fake GPU, and returns the allocator events.

Beside a PyTorch without CUDA, torchvision cannot load its compiled part, which is made for CUDA. What it misses are two
names of operators: declared here, without anything behind them, they let models be built.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as hooks

from tidegauge.estimator.fakes.device import FakeGpu, fake_gpu
from tidegauge.estimator.fakes.fake_mode import GPU
from tidegauge.estimator.functions import dropped_output
from tidegauge.estimator.gpus import H200, Target
from tidegauge.estimator.model_facts import Build, checked, optimizers_of
from tidegauge.estimator.recording import RecordedKind, Recording

DEFAULT_STEPS = 4
"""The optimizer's state comes with the first step, and meets gradients and activations from the second on; two more
show whether the peak stays."""
NO_DEVICE = "FUNCTION does not use a GPU; it was run again with CUDA as the default device"


def record_training(build: Build, *, target: Target = H200, steps: int = DEFAULT_STEPS) -> Recording:
    """The allocator events of ``steps`` training steps: ``build()`` returns ``(model, optimizer, step)``.

    ``optimizer`` may be ``None`` or several in a list. Raises ``EstimateError`` for what needs a GPU, or has no model;
    what the user's own code raises comes through.
    """
    declare_torchvision()
    with fake_gpu(target) as gpu:
        recording = _run(gpu, build, steps)
    if len(recording.trace):
        return recording
    with dropped_output(), fake_gpu(target) as gpu, torch.device(GPU):
        gpu.say(NO_DEVICE)
        return _run(gpu, build, steps)


def _run(gpu: FakeGpu, build: Build, steps: int) -> Recording:
    model, optimizer, step = checked(build)()
    optimizers = optimizers_of(optimizer)
    built = len(gpu.log)
    gpu.places.name_modules(model)
    _label_model(gpu, model)
    ends = []
    with _labelled_at_updates(gpu, model, optimizers):
        for _ in range(steps):
            gpu.places.step_begins()
            step()
            _label_training(gpu, model, optimizers)
            ends.append(len(gpu.log))
    kinds, phases, sites, names = gpu.log.columns()
    return Recording(
        trace=gpu.log.trace(
            torch_version=torch.__version__, total_bytes=gpu.target.total_bytes,
            marks={"build": (built,), "step": tuple(ends)},
        ),
        kinds=kinds, phases=phases, sites=sites, site_names=names,
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
        assumptions=tuple(gpu.assumptions), torch_version=torch.__version__,
    )  # fmt: skip


@contextmanager
def _labelled_at_updates(gpu: FakeGpu, model: Any, optimizers: Sequence[Any]) -> Iterator[None]:
    """Gradients are all there when an optimizer begins, and its state when it has ended."""

    def label(*_: object) -> None:
        _label_training(gpu, model, optimizers)

    handles = [hooks.register_optimizer_step_pre_hook(label), hooks.register_optimizer_step_post_hook(label)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _label_model(gpu: FakeGpu, model: Any) -> None:
    for parameter in model.parameters():
        gpu.watch.label(parameter, RecordedKind.PARAMETER)
    for buffer in model.buffers():
        gpu.watch.label(buffer, RecordedKind.BUFFER)


def _label_training(gpu: FakeGpu, model: Any, optimizers: Sequence[Any]) -> None:
    for parameter in model.parameters():
        gpu.watch.label(parameter.grad, RecordedKind.GRADIENT)
    for optimizer in optimizers:
        for state in _tensors(getattr(optimizer, "state", {})):
            gpu.watch.label(state, RecordedKind.OPTIMIZER_STATE)


def _tensors(state: Any) -> Iterator[Any]:
    """The tensors in an optimizer's state: dictionaries and lists, nested."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _tensors(value)


_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))
_declared: list[Any] = []
"""Libraries end their declarations when they are collected."""


def declare_torchvision() -> None:
    """Declare the operators that an installed torchvision would miss, before it is imported. Harmless to repeat."""
    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return
    if hasattr(torch.ops.torchvision, "nms") or _loads():
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)


def _loads() -> bool:
    """Whether torchvision's own library can be loaded, as torchvision itself tries when it is imported."""
    spec = importlib.util.find_spec("torchvision")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        for library in sorted(Path(folder).glob("_C*.so")):
            try:
                torch.ops.load_library(str(library))
            except OSError:
                return False
            return True
    return False
