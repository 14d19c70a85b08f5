"""Interface to torch: everything that the probe asks of the device runtime goes through here.

No call in this module initialises CUDA, synchronises a device or resets a peak.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Optional

from tidegauge.core.ids import DeviceUuid
from tidegauge.core.ring_layout import MAX_DEVICES
from tidegauge.core.torch_version import torch_at_least
from tidegauge.probe.faults import Faults
from tidegauge.probe.runtime.checkpoint_agreement import TorchStore
from tidegauge.probe.runtime.history import History
from tidegauge.probe.runtime.undisturbed import collector_held_off, compiler_left_alone

OutOfMemoryCall = Callable[[int, int, int, int], None]
"""``(device, bytes of the segment it tried to get, cap or total in bytes, free bytes on the device)``."""

StepHook = Callable[[Any, FrameType], None]
"""``(optimizer, frame of torch's wrapper around its step)``."""
ModuleHook = Callable[[object], None]
_MODULE_CALL = "_call_impl"
"""The function through which torch calls every module with a hook."""


class Backend:
    """One kind of device under one torch: any accelerator with a module like ``torch.cuda`` (``torch.xpu``), through
    its Python functions. Torch's exceptions pass through to the callers."""

    def __init__(self, torch: Any, name: str) -> None:
        self.name = name
        self.torch_version = str(torch.__version__)
        self.torch = torch
        """For searches of the job's own tensors (``probe.holders``)."""
        self._module = getattr(torch, name)
        self.read: Callable[[int], Mapping[str, Any]] = self._module.memory_stats_as_nested_dict
        """The allocator's counters of one device by ordinal, nested as ``memory_stats_as_nested_dict()`` nests them.
        Only once ``ready()``. One C call; it takes the device's allocator lock for a moment."""

    def when_ready(self, call: Callable[[], None]) -> None:
        """Have ``call`` run in the initialising thread right after the runtime is up and before anything is
        allocated, or at once if it is up."""
        if self.ready():
            call()  # not through _lazy_call: it would hold torch's initialisation lock meanwhile
        else:
            self._module._lazy_call(call)

    def ready(self) -> bool:
        """Whether the runtime is initialised in this very process (never so in a fork of one that was)."""
        return bool(self._module.is_initialized())

    def device_count(self) -> int:
        """Visible devices. Only once ``ready()``, or inside ``when_ready``'s call."""
        return min(int(self._module.device_count()), MAX_DEVICES)

    def device_uuids(self, _environ: Mapping[str, str], /) -> tuple[DeviceUuid, ...]:
        """One per visible device in their order; empty if this torch cannot tell. As ``device_count``."""
        uuids = []
        for device in range(self.device_count()):
            uuid = getattr(self._module.get_device_properties(device), "uuid", None)
            if uuid is None:
                return ()
            uuids.append(DeviceUuid(f"GPU-{uuid}"))
        return tuple(uuids)

    def blind_because(self) -> Optional[str]:
        """The reason why the counters mean nothing (an allocator that does not count), or ``None``."""
        return None

    def caps_without_context(self) -> bool:
        """Whether ``set_fraction`` leaves devices alone that are not in use yet."""
        return False

    def set_fraction(self, fraction: float, device: int) -> None:
        """Cap the allocator of one device at this part of the device's memory."""
        self._module.set_per_process_memory_fraction(float(fraction), device)

    def on_out_of_memory(self, _call: OutOfMemoryCall, /) -> bool:
        """Have a function called before each OutOfMemoryError is raised, for good. False: not supported."""
        return False

    def is_out_of_memory(self, error: BaseException, /) -> bool:
        """Whether it is this torch's OutOfMemoryError."""
        kinds = (getattr(self.torch, "OutOfMemoryError", None), getattr(self._module, "OutOfMemoryError", None))
        return isinstance(error, tuple(kind for kind in kinds if isinstance(kind, type)))

    def snapshot(self, *, history: bool) -> Optional[Mapping[str, Any]]:  # noqa: ARG002
        """The allocator's blocks on all devices, as ``torch.cuda.memory._snapshot()``.

        With the events of a recording only if ``history``. ``None``: not supported, or this torch cannot leave them
        out. No call to the device; holds the GIL and each device's lock.
        """
        return None

    def history(self, _faults: Faults, /) -> Optional[History]:
        """The process's allocation history, nothing of it touched yet; ``None``: not supported. As ``device_count``."""
        return None

    def total_bytes(self, device: int, /) -> Optional[int]:
        """``totalGlobalMem`` of a device; ``None`` if this torch cannot tell. As ``device_count``."""
        total_bytes = getattr(self._module.get_device_properties(device), "total_memory", None)
        return None if total_bytes is None else int(total_bytes)

    def empty_cache(self, _device: int, /) -> None:
        """Give cached memory back to the driver; the device is one that the process uses already."""
        self._module.empty_cache()

    def capturing(self) -> bool:
        """Whether the calling thread's current stream is being captured into a graph."""
        return False

    def on_optimizer_step(self, hook: StepHook) -> None:
        """Have ``hook`` called after every ``step()`` of every optimizer, for good: torch iterates over its hooks
        while it calls them, so removing one from within, or from a thread, would raise in the job's step."""
        register_step_hook(self.torch, hook)

    def on_module_call(self, call: Callable[[object], None]) -> Optional[Callable[[], None]]:
        """Have ``call`` called with each module that no other module calls, before its forward, outside of backward
        passes; returns what ends it. ``None``: not in this process, which compiles, or whose torch cannot tell."""
        return register_module_hook(self.torch, call)

    def compiles(self) -> bool:
        """Whether this process has compiled anything by ``torch.compile``."""
        return compiles(self.torch)

    def distributed(self) -> Optional[tuple[int, int]]:
        """``(rank, world size)`` of the default process group, or ``None`` while there is none."""
        distributed = self.torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return None
        return int(distributed.get_rank()), int(distributed.get_world_size())

    def store(self) -> Optional[TorchStore]:
        """The key-value store of the default process group, or ``None`` while there is none."""
        if self.distributed() is None:
            return None
        # Not public, but there since 1.x; the public way to a store is to make one, which needs a port of its own.
        get_store = getattr(self.torch.distributed.distributed_c10d, "_get_default_store", None)
        store: Optional[TorchStore] = get_store() if get_store is not None else None
        return store


class Cuda(Backend):
    """NVIDIA's CUDA and, under the same names, AMD's ROCm."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch, "cuda")
        # The raw call is 16 us where the public ones, which build the same dict and more, are 60 to 160 us.
        self.read = getattr(torch._C, "_cuda_memoryStats", self.read)

    def device_uuids(self, environ: Mapping[str, str], /) -> tuple[DeviceUuid, ...]:
        named = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        if len(named) == self.device_count() and all(_is_whole_uuid(entry) for entry in named):
            return tuple(DeviceUuid(entry) for entry in named)  # the only way to learn the name of a MIG slice
        return super().device_uuids(environ)

    def blind_because(self) -> Optional[str]:
        backend = str(self.torch.cuda.get_allocator_backend())
        return None if backend == "native" else f"its allocator is {backend}, which has no statistics"

    def caps_without_context(self) -> bool:
        # Before 2.10 the allocator made the device current and asked the driver for its size, which creates a
        # context (some 500 MiB) on every device it is told about, and leaves the last one current.
        return torch_at_least(self.torch_version, 2, 10) or self.device_count() == 1

    def on_out_of_memory(self, call: OutOfMemoryCall, /) -> bool:
        attach = getattr(self.torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None:
            return False
        attach(call)
        return True

    def snapshot(self, *, history: bool) -> Optional[Mapping[str, Any]]:
        c = self.torch._C
        take = getattr(c, "_cuda_memorySnapshot", None)
        if take is None:
            return None
        if torch_at_least(self.torch_version, 2, 11):
            arguments: tuple[Any, ...] = ((0, 0, history),)  # pool (0, 0): all of them
        elif c._cuda_isHistoryEnabled() and not history:
            return None
        else:
            arguments = (None,) if torch_at_least(self.torch_version, 2, 8) else ()
        with compiler_left_alone(self.torch), collector_held_off():
            snapshot: Mapping[str, Any] = take(*arguments)
        return snapshot

    def history(self, faults: Faults, /) -> Optional[History]:
        known = hasattr(self.torch._C, "_cuda_isHistoryEnabled") and hasattr(
            self.torch.cuda.memory, "_record_memory_history"
        )
        return History(self.torch, faults) if known else None

    def empty_cache(self, device: int, /) -> None:
        # cudaFree in a thread that never chose a device would make a context on device 0
        with self.torch.cuda.device(device):
            self.torch.cuda.empty_cache()

    def capturing(self) -> bool:
        return bool(self.torch.cuda.is_current_stream_capturing())


def register_step_hook(torch: Any, hook: StepHook) -> None:
    """Register the global post-step hook, for torch 2.2 and later."""

    def stepped(optimizer: Any, _args: object, _kwargs: object) -> None:
        hook(optimizer, sys._getframe(1))

    # What torch.compiler.disable() sets, without importing the compiler, which must not trace the probe into a graph.
    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    _optimizer_module(torch).register_optimizer_step_post_hook(stepped)


def before_optimizer_steps(torch: Any, call: Callable[[Any], None]) -> Callable[[], None]:
    """Have ``call`` called with each optimizer before its step; the function removes it."""

    def stepping(optimizer: Any, _args: object, _kwargs: object) -> None:
        call(optimizer)

    stepping._torchdynamo_disable = True  # type: ignore[attr-defined]
    remove: Callable[[], None] = _optimizer_module(torch).register_optimizer_step_pre_hook(stepping).remove
    return remove


def register_module_hook(torch: Any, call: Callable[[object], None]) -> Optional[Callable[[], None]]:
    """Register the global forward pre-hook, for torch 2.2 and later; the function removes it."""
    is_compiling, in_backward = getattr(torch.compiler, "is_compiling", None), torch._C._current_graph_task_id
    if is_compiling is None or compiles(torch):
        return None

    def called(module: object, _args: object) -> None:
        # The compiler traces through it and finds nothing; marked as the other one, it would refuse a full graph.
        if is_compiling():
            return
        if in_backward() == -1 and _is_outermost(sys._getframe(1)):
            call(module)

    # torch goes through a copy of its hooks, so that this one may be removed from within.
    modules = sys.modules[torch.nn.Module.__module__]
    remove: Callable[[], None] = modules.register_module_forward_pre_hook(called).remove
    return remove


def module_hooks(torch: Any) -> Optional[Callable[[ModuleHook, ModuleHook], list[Callable[[], None]]]]:
    """What registers global hooks before and after each module, also one that raises, and returns what removes them.
    ``None`` where there can be none; with torch 2.0 and later."""
    is_compiling = getattr(torch.compiler, "is_compiling", None)
    if is_compiling is None or compiles(torch):
        return None

    def register(before: ModuleHook, after: ModuleHook) -> list[Callable[[], None]]:
        def entered(module: object, _args: object) -> None:
            if not is_compiling():
                before(module)

        def left(module: object, _args: object, _output: object) -> None:
            if not is_compiling():
                after(module)

        modules = sys.modules[torch.nn.Module.__module__]
        removed = modules.register_module_forward_hook(left, always_call=True).remove
        return [modules.register_module_forward_pre_hook(entered).remove, removed]

    return register


def compiles(torch: Any) -> bool:
    """Whether this process has called ``torch.compile``: a compiled module warns of global hooks, and what would be
    compiled beside one is compiled again without it."""
    compiler = sys.modules.get(f"{torch.__name__}._dynamo.eval_frame")
    if compiler is None:
        return False
    backends = getattr(compiler, "cached_backends", None)
    # What only keeps the compiler off, such as a checkpointed layer, has the backend None.
    return backends is None or any(backend for backend in list(backends.values()))


def _is_outermost(hook_caller: Optional[FrameType]) -> bool:
    """Whether the module whose hook is running was not called by another module."""
    calls = 0
    while hook_caller is not None:
        calls += hook_caller.f_code.co_name == _MODULE_CALL
        if calls > 1:
            return False
        hook_caller = hook_caller.f_back
    return calls == 1


def has_step_hook(torch: Any) -> bool:
    """Whether this torch is new enough for the probe."""
    return hasattr(_optimizer_module(torch), "register_optimizer_step_post_hook")


def _optimizer_module(torch: Any) -> Any:
    return sys.modules[torch.optim.Optimizer.__module__]  # torch.optim hides its submodule ``optimizer``


def choose_backend(torch: Any) -> Optional[Backend]:
    """The backend for this torch build, or ``None`` for one without a device it could count on."""
    if hasattr(torch._C, "_cuda_memoryStats"):
        return Cuda(torch)
    accelerator = getattr(torch, "accelerator", None)
    device = accelerator.current_accelerator() if accelerator is not None else None
    module = getattr(torch, device.type, None) if device is not None else None
    wanted = ("memory_stats_as_nested_dict", "_lazy_call", "is_initialized", "device_count", "get_device_properties")
    if device is not None and all(hasattr(module, name) for name in wanted):
        return Backend(torch, str(device.type))
    return None


def _is_whole_uuid(entry: str) -> bool:
    kind, _, rest = entry.partition("-")
    return kind in ("GPU", "MIG") and len(rest) == 36 and rest.count("-") == 4
