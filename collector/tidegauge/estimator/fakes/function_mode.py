"""Makes Python code see tensors on the fake GPU: intercepts calls that name, change or query devices."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from tidegauge.estimator.fakes.fake_mode import GPU, WatchedFakes

_Tensor = torch.Tensor
_IS_CUDA = _Tensor.is_cuda.__get__
_IS_META = _Tensor.is_meta.__get__
_SET_DATA = _Tensor.data.__set__
_FINITE = (torch.isfinite, _Tensor.isfinite)
_FROM_VALUES = (torch.tensor, torch.as_tensor, torch.asarray)


class PretendedDevice(TorchFunctionMode):
    """Intercepts every call of a PyTorch function from Python."""

    def __init__(self, fakes: WatchedFakes) -> None:
        super().__init__()
        self._fakes = fakes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Optional[dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _IS_CUDA:
            return args[0].device.type == "cuda"
        if func == _IS_META:
            return args[0].device.type == "meta"
        if func is _Tensor.cuda:
            return moved(
                args[0], GPU, **{key: kwargs[key] for key in ("non_blocking", "memory_format") if key in kwargs}
            )
        if func is _Tensor.to:
            return moved(*args, **kwargs)
        if func is _Tensor.pin_memory:
            return args[0]
        if func is _Tensor.is_pinned:
            return False
        if func is _Tensor.record_stream:
            return None
        if func == _SET_DATA:
            return _set_data(func, args)
        if func is torch.device:
            return func(*args, **kwargs)
        args, kwargs = _with_index(args, kwargs)
        if func in _FROM_VALUES and kwargs.get("device") == GPU:
            return _from_values(func, args, kwargs)
        if func is _Tensor.new_tensor:
            kwargs = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
            return torch.tensor(*args[1:], **kwargs)
        if func in _FINITE:
            return self._fakes.known_to_be(func(*args, **kwargs), True)
        former = self._fakes.meta_wanted
        self._fakes.meta_wanted = former or _wants_meta(args, kwargs)
        try:
            return func(*args, **kwargs)
        finally:
            self._fakes.meta_wanted = former


def moved(tensor: Any, *where: Any, copy: bool = False, **options: Any) -> Any:
    """``Tensor.to``: C++ would take every tensor on the GPU for one that is elsewhere, and copy it."""
    if where and isinstance(where[0], torch.Tensor):
        where = (where[0].device, where[0].dtype, *where[1:])
    elif isinstance(options.get("other"), torch.Tensor):
        other = options.pop("other")
        where = (other.device, other.dtype)
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*where, **options)
    wanted: dict[str, Any] = {"copy": copy, "non_blocking": non_blocking}
    if layout is not None:
        wanted["memory_format"] = layout
    if device is not None and _indexed(device) != tensor.device:
        wanted["device"] = _indexed(device)
    return tensor.to(dtype=dtype if dtype is not None else tensor.dtype, **wanted)


def _from_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """PyTorch makes a tensor from Python values on the CPU and copies it."""
    host = {key: value for key, value in kwargs.items() if key not in ("device", "requires_grad")}
    if args and isinstance(args[0], torch.Tensor):
        copy = func is torch.tensor or host.get("copy") is True
        made = moved(args[0].detach(), GPU, host.get("dtype"), copy=copy)
    else:
        made = func(*args, **host, device="cpu").to(GPU)
    return made.requires_grad_() if kwargs.get("requires_grad") else made


def change_places(tensor: Any, other: Any) -> None:
    """Replaces ``torch.utils.swap_tensors``, by which a module moves fake parameters.

    That one refuses where anything has a weak reference, although it goes on to mean the same Python object.
    """
    torch._C._swap_tensor_impl(tensor, other)
    former = dict(tensor.__dict__)
    tensor.__dict__.clear()
    tensor.__dict__.update(other.__dict__)
    other.__dict__.clear()
    other.__dict__.update(former)


def _set_data(func: Any, args: tuple[Any, ...]) -> None:
    """``tensor.data = other`` may move a tensor to another device; a fake tensor cannot change its own."""
    tensor, other = args
    if isinstance(other, FakeTensor) and tensor.device != other.device:
        moved = other.detach().requires_grad_(tensor.requires_grad)
        moved.__dict__.update({key: tensor.__dict__[key] for key in ("_is_param",) if key in tensor.__dict__})
        change_places(tensor, moved)
    else:
        func(tensor, other)


def _with_index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``cuda`` becomes ``cuda:0``: without an index PyTorch asks the driver for the current device."""
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": _indexed(kwargs["device"])}
    if any(isinstance(arg, torch.device) or arg == "cuda" for arg in args if isinstance(arg, (str, torch.device))):
        args = tuple(_indexed(arg) if isinstance(arg, torch.device) or arg == "cuda" else arg for arg in args)
    return args, kwargs


def _indexed(device: Any) -> Any:
    """An ordinal, a name or a device."""
    if isinstance(device, int):
        return GPU
    found = torch.device(device)
    return GPU if found.type == "cuda" else found


def _wants_meta(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    if device is not None:
        return bool(torch.device(device).type == "meta")
    for arg in args[:2]:
        if isinstance(arg, torch.device) and arg.type == "meta":
            return True
        if isinstance(arg, FakeTensor) and arg.fake_device.type == "meta":
            return True
    return False
