"""Runs a user's training steps on the fake GPU, and returns the allocator events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Optional

import torch
from torch.optim import optimizer as hooks

from tidegauge.estimator.fakes.device import FakeGpu, fake_gpu
from tidegauge.estimator.fakes.fake_mode import GPU
from tidegauge.estimator.functions import dropped_output
from tidegauge.estimator.recording import EstimateError, RecordedKind, Recording
from tidegauge.estimator.target import H200, Target
from tidegauge.estimator.torchvision_names import declare_torchvision

Build = Callable[[], tuple[Any, Any, Callable[[], object]]]
DEFAULT_STEPS = 4
"""The optimizer's state comes with the first step, and meets gradients and activations from the second on; two more
show whether the peak stays."""
NO_DEVICE = "FUNCTION does not use a GPU; it was run again with CUDA as the default device"


def record_training(
    build: Build,
    *,
    target: Target = H200,
    steps: int = DEFAULT_STEPS,
    on_step: Optional[Callable[[int, int], None]] = None,
) -> Recording:
    """The allocator events of ``steps`` training steps: ``build()`` returns ``(model, optimizer, step)``.

    ``optimizer`` may be ``None`` or several in a list. ``on_step(done, steps)`` is told of progress. Raises
    ``EstimateError`` for what needs a GPU, or has no model; what the user's own code raises comes through.
    """
    declare_torchvision()
    recording = _record(build, target, steps, on_step, everything_on_the_gpu=False)
    if len(recording.trace):
        return recording
    with dropped_output():
        return _record(build, target, steps, on_step, everything_on_the_gpu=True)


def _record(
    build: Build,
    target: Target,
    steps: int,
    on_step: Optional[Callable[[int, int], None]],
    *,
    everything_on_the_gpu: bool,
) -> Recording:
    with ExitStack() as stack:
        gpu = stack.enter_context(fake_gpu(target))
        if everything_on_the_gpu:
            gpu.say(NO_DEVICE)
            stack.enter_context(torch.device(GPU))
        return _run(gpu, build, steps, on_step)


def _run(gpu: FakeGpu, build: Build, steps: int, on_step: Optional[Callable[[int, int], None]]) -> Recording:
    model, optimizers, step = _parts(build())
    built = len(gpu.log)
    gpu.places.name_modules(model)
    _label_model(gpu, model)
    ends = []
    with _labelled_at_updates(gpu, model, optimizers):
        for done in range(1, steps + 1):
            gpu.places.step_begins()
            step()
            _label_training(gpu, model, optimizers)
            ends.append(len(gpu.log))
            if on_step is not None:
                on_step(done, steps)
    kinds, phases, sites, names = gpu.log.columns()
    return Recording(
        trace=gpu.log.trace(
            torch_version=torch.__version__, total_bytes=gpu.target.total_bytes,
            marks={"build": (built,), "step": tuple(ends)},
        ),
        kinds=kinds, phases=phases, sites=sites, site_names=names, steps=steps,
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
        assumptions=tuple(gpu.assumptions), torch_version=torch.__version__,
    )  # fmt: skip


def _parts(built: Any) -> tuple[Any, Sequence[Any], Callable[[], object]]:
    """Model, optimizers and step of what the function returned, or words about what it should have been."""
    if not isinstance(built, tuple) or len(built) != 3:
        raise EstimateError(f"FUNCTION must return (model, optimizer, step), it returned {type(built).__name__}")
    model, optimizer, step = built
    if not isinstance(model, torch.nn.Module):
        raise EstimateError(
            f"the first value that FUNCTION returns must be a torch.nn.Module, not {type(model).__name__}"
        )
    if not callable(step):
        raise EstimateError("the third value that FUNCTION returns must be callable: it runs one training step")
    optimizers = optimizer if isinstance(optimizer, (list, tuple)) else () if optimizer is None else (optimizer,)
    return model, optimizers, step


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
    """Of an optimizer's state: dictionaries and lists, nested."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _tensors(value)
