"""PyTorch's fake tensor mode, extended to fake a GPU and to watch each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
import torch._dynamo  # must be imported before tensors' constructors are replaced
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._mode_utils import no_dispatch

from tidegauge.estimator.fakes import operators, unknown_values
from tidegauge.estimator.fakes.storage_watch import StorageWatch
from tidegauge.estimator.shape_dependent_layers import recurrent

GPU = torch.device("cuda", 0)
_INDEXING = ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default", "aten._index_put_impl_.default")
_VALUED = (
    "aten.arange.default",
    "aten.arange.start",
    "aten.arange.start_step",
    "aten.linspace.default",
    "aten.full.default",
    "aten.zeros.default",
    "aten.ones.default",
    "aten.scalar_tensor.default",
)
"""Operators whose results are known without any tensor."""
MAX_VALUES = 4096
"""Elements of a tensor on the CPU whose values are kept: models are built by tables of widths and rates."""
_KEEP_SCALARS = ("aten._to_copy", "aten.detach", "aten.view", "aten.alias", "aten._amp_")
_NOT_SCALED_AWAY = "aten._amp_foreach_non_finite_check_and_unscale_.default"


class OwnerCounts:
    """Detects tensors that only autograd's buffer holds, by PyTorch's count of owners inside an operator.

    Autograd adds gradients in place when nobody else holds the first of them, but never for tensor subclasses, such as
    fake tensors are. So that is decided here, by the counts of an addition that is known to be such a case.
    """

    def __init__(self) -> None:
        self._sole: Optional[tuple[int, int]] = None
        self.measures = False

    @contextmanager
    def measuring(self) -> Iterator[None]:
        self.measures = True
        try:
            yield
        finally:
            self.measures = False

    def is_sole(self, tensor: Any) -> bool:
        counts = (tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
        if self.measures:
            self._sole = counts
        return counts == self._sole


class WatchedFakes(FakeTensorMode):
    """Runs operators without data, and passes each one that a GPU would run to the watch."""

    def __init__(self, watch: StorageWatch, *, entered: Callable[[str, Any], None], say: Callable[[str], None]) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.meta_wanted = False
        """Whether the running call asks for PyTorch's own meta device."""
        self._watch = watch
        self._entered = entered
        self._say = say
        self._inside = False
        self._owners = OwnerCounts()
        self._known_scalars: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Optional[dict[str, Any]] = None
    ) -> Any:
        kwargs = self._on_the_gpu(kwargs or {})
        if self._inside:
            return super().__torch_dispatch__(func, types, args, kwargs)
        name = str(func)
        if name in _INDEXING and unknown_values.has_mask(args):
            self._say(unknown_values.SIZE_DEPENDS_ON_VALUES.format(name=name))
            with self:
                return func(*unknown_values.index_arguments(args), **kwargs)
        backward = torch._C._current_graph_task_id() != -1
        if backward and name == "aten.add.Tensor" and self._accumulates(args, kwargs):
            return args[0]
        if backward and operators.in_backward(name, args):
            return args[0]
        if self._owners.measures:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self._entered(name, backward)
        self._inside = True
        try:
            result = self._run(func, types, name, args, kwargs)
        finally:
            self._inside = False
        outputs = _flat(result)
        if name in _VALUED:
            _keep_value(func, args, kwargs, result)
        self._note_scalars(name, args, outputs)
        self._watch.op_ran(name, args, kwargs, outputs, backward)
        return result

    def learn_owner_counts(self) -> None:
        """Let autograd add two gradients that nobody else holds."""
        with self, torch.enable_grad(), self._owners.measuring():
            leaf = torch.zeros(2, device=GPU, requires_grad=True)
            (leaf.sin() + leaf.cos()).sum().backward()

    def known_to_be(self, tensor: Any, value: Any) -> Any:
        """The tensor; a program that reads it gets ``value``, if it is a single one."""
        if isinstance(tensor, FakeTensor) and tensor.numel() == 1:
            self._known_scalars[tensor.untyped_storage()._cdata] = value
        return tensor

    def _run(self, func: Any, types: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        described = recurrent.RESULTS.get(name)
        if described is not None:
            with self:
                return described(*args, **kwargs)
        try:
            with _without_value(args, kwargs):
                found = super().__torch_dispatch__(func, types, operators.arguments(name, args), kwargs)
            return operators.result(name, args, found)
        except DataDependentOutputException:
            if name == "aten.equal.default":
                return unknown_values.SHAPES[name](*args)
            known = self._known_scalars.get(args[0].untyped_storage()._cdata)
            return known if known is not None else unknown_values.scalar(args[0].dtype, self._say)
        except DynamicOutputShapeException:
            known = unknown_values.SHAPES.get(name)
            if known is None:
                raise
            self._say(unknown_values.SIZE_DEPENDS_ON_VALUES.format(name=name))
            with self:
                return known(*args, **kwargs)

    def _note_scalars(self, name: str, args: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Note the values that a program will read: of ``all`` and ``any``, and whether gradients are finite."""
        if name == _NOT_SCALED_AWAY:
            self._known_scalars[args[1].untyped_storage()._cdata] = 0.0
        for output in outputs:
            if output is not None and output.numel() == 1 and torch._C._has_storage(output):
                key = output.untyped_storage()._cdata
                if name.startswith(("aten.all.", "aten.any.")):
                    self._known_scalars[key] = name.startswith("aten.all.")
                elif not name.startswith(_KEEP_SCALARS):
                    self._known_scalars.pop(key, None)

    def _accumulates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this is ``InputBuffer::accumulate``, and the first gradient is nobody else's: then it is in place."""
        return (
            not kwargs and not torch.is_grad_enabled() and len(args) == 2
            and all(isinstance(arg, FakeTensor) for arg in args) and args[0].shape == args[1].shape
            and args[0].dtype is args[1].dtype and self._owners.is_sole(args[0])
        )  # fmt: skip

    def _on_the_gpu(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """C++ code that makes a tensor "where this one is" asks for ``meta``, which is what the pretence says there."""
        device = kwargs.get("device")
        if device is not None and not self.meta_wanted and torch.device(device).type == "meta":
            return {**kwargs, "device": GPU}
        return kwargs


@contextmanager
def _without_value(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Fake tensors compute with small constants for real, which cannot be done where the result is to be on the GPU."""
    known = args[0] if args and isinstance(args[0], FakeTensor) and args[0].constant is not None else None
    device = kwargs.get("device")
    if known is None or device is None or torch.device(device).type != "cuda":
        yield
        return
    constant, known.constant = known.constant, None
    try:
        yield
    finally:
        known.constant = constant


def _keep_value(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Small tensors on the CPU have their values: fake tensors compute on with them (``FakeTensor.constant``)."""
    if isinstance(result, FakeTensor) and result.fake_device.type == "cpu" and result.numel() <= MAX_VALUES:
        with no_dispatch():
            result.constant = func(*args, **kwargs)


def make_subclass(former: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``torch.Tensor._make_subclass``: C++ takes GPU fakes for ``meta`` tensors with the keys of CUDA ones.

    With the device that Python sees, autograd would look for CUDA's streams and end the process.
    """

    def make(cls: Any, data: Any, require_grad: bool = False, **options: Any) -> Any:
        keys = options.get("device_for_backend_keys")
        if keys is not None and keys.type == "cuda":
            options["dispatch_device"] = False
        return former(cls, data, require_grad, **options)

    return make


def _flat(result: Any) -> tuple[Any, ...]:
    """Tensors of a result in order, lists opened, ``None`` for everything else."""
    if isinstance(result, (list, tuple)):
        return tuple(tensor for part in result for tensor in _flat(part))
    return (result if isinstance(result, torch.Tensor) else None,)
