"""Fakes one GPU for as long as a context lasts; everything is as before when it ends."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from tidegauge.estimator.fakes import operators
from tidegauge.estimator.fakes.fake_mode import MAX_VALUES, WatchedFakes, make_subclass
from tidegauge.estimator.fakes.function_mode import PretendedDevice, change_places
from tidegauge.estimator.fakes.patches import Patches
from tidegauge.estimator.fakes.places import Places
from tidegauge.estimator.fakes.pretended_cuda import pretend_cuda, refuse
from tidegauge.estimator.fakes.storage_watch import StorageWatch
from tidegauge.estimator.gpus import Target
from tidegauge.estimator.recording import AllocatorEventLog
from tidegauge.estimator.shape_dependent_layers import autocast, composites, recurrent

COMPILED = "torch.compile is ignored: the step ran operator by operator; compiled code mostly needs less"


class _NobodysTensor:
    """Takes the place of ``FakeTensor`` for libraries such as transformers, which build other masks for fake tensors
    than in a real run. PyTorch itself uses the class from the module that defines it."""


class FakeGpu:
    """The records of a run under ``fake_gpu``."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.log = AllocatorEventLog()
        self.watch = StorageWatch(self.log, target)
        self.places = Places(self.log)
        self.assumptions: dict[str, None] = {}

    def say(self, assumption: str) -> None:
        """Note what was assumed; once each."""
        self.assumptions[assumption] = None


@contextmanager
def fake_gpu(target: Target) -> Iterator[FakeGpu]:
    """A context in which ``torch.device("cuda")`` works in this thread: tensors have shapes and no memory.

    Not reentrant, and nothing made inside is of use outside. The calling thread is the only one that should use
    PyTorch meanwhile: ``torch.cuda`` answers for the pretended GPU in all of them.
    """
    gpu = FakeGpu(target)
    fakes = WatchedFakes(gpu.watch, entered=gpu.places.operator, say=gpu.say)
    with Patches() as patches:
        patches.replace(torch.Tensor, "_make_subclass", staticmethod(make_subclass(torch.Tensor._make_subclass)))
        pretend_cuda(patches, target, gpu.log)
        _pretend_tools(patches, gpu)
        patches.enter_context(_registered(target, patches))
        patches.enter_context(gpu.places.watching())
        patches.enter_context(fakes)
        patches.enter_context(PretendedDevice(fakes))
        fakes.learn_owner_counts()
        yield gpu


def _pretend_tools(patches: Patches, gpu: FakeGpu) -> None:
    """Optimizers choose their implementation by the exact type of the parameters; compilers and files need values."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for module in (optimizer, _foreach_utils):
        patches.replace_known(module, "_foreach_supported_types", [*module._foreach_supported_types, FakeTensor])
    former = torch.UntypedStorage.resize_
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        groups = group(lists, with_indices)
        return {(_device_of(found[0], key[0]), key[1]): found for key, found in groups.items()}

    def resize(storage: Any, size: int) -> Any:
        result = former(storage, size)
        gpu.watch.resized(storage)
        return result

    def uncompiled(model: Any = None, **_: Any) -> Any:
        gpu.say(COMPILED)
        return model if model is not None else lambda function: function

    patches.replace(torch._C, "_group_tensors_by_device_and_dtype", grouped)
    patches.replace(torch._C, "_conv_determine_backend_memory_format", operators.convolution_layout)
    patches.replace(torch.UntypedStorage, "resize_", resize)
    patches.replace(torch, "compile", uncompiled)
    patches.replace(torch.nn.Module, "compile", lambda *_, **__: gpu.say(COMPILED))
    patches.replace(torch.utils, "swap_tensors", change_places)
    patches.replace(torch.nn.RNNBase, "flatten_parameters", recurrent.flatten_parameters)
    patches.replace_known(fake_tensor, "CONSTANT_NUMEL_LIMIT", MAX_VALUES)
    patches.replace(torch._subclasses, "FakeTensor", _NobodysTensor)
    patches.replace(torch, "save", refuse("torch.save", "leave saving out of the step"))


def _device_of(lists: Any, otherwise: Any) -> Any:
    """The device of a group of tensors; C++ says ``meta``."""
    return next((tensor.device for tensors in lists for tensor in tensors if tensor is not None), otherwise)


@contextmanager
def _registered(target: Target, patches: Patches) -> Iterator[None]:
    """Operators that decide by device, and autocast, registered with PyTorch's dispatcher."""
    cache = autocast.CastCache()
    forget = torch.clear_autocast_cache

    def clear() -> None:
        cache.clear()
        forget()

    patches.replace(torch, "clear_autocast_cache", clear)
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is the point
            for name, kernel in {**composites.kernels(target), **operators.kernels(), **recurrent.kernels()}.items():
                library.impl(name, kernel, "AutogradCUDA")
            for name, kernel in {**autocast.kernels(cache), **recurrent.autocast_kernels()}.items():
                library.impl(name, kernel, "AutocastCUDA")
        yield
    finally:
        cache.clear()
        library._destroy()
