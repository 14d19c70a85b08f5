# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import sys
import unittest
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Optional

from probe_fakes import fake_torch
from tidegauge.probe.runtime.backend import Backend, Cuda, choose_backend

UUID = "4ee4d5e0-1234-5678-9abc-def012345678"
hooks: list[Callable[..., None]] = []


def register_optimizer_step_post_hook(hook: Callable[..., None]) -> None:
    """This module plays ``torch.optim.optimizer``."""
    hooks.append(hook)


class Optimizer:
    """Lives in the module that has the hook, as torch's does."""


class ModuleHandle:
    """What registering a module hook returns."""

    hooks: ClassVar[list[Callable[..., None]]] = []

    def __init__(self, hook: Callable[..., None]) -> None:
        self.hook = hook

    def remove(self) -> None:
        self.hooks.remove(self.hook)


def register_module_forward_pre_hook(hook: Callable[..., None]) -> ModuleHandle:
    """This module plays ``torch.nn.modules.module``, too."""
    ModuleHandle.hooks.append(hook)
    return ModuleHandle(hook)


class Module:
    """Calls its hooks as torch's does, from a function within ``_call_impl``."""

    def __init__(self, *children: Module) -> None:
        self.children = children

    def __call__(self) -> None:
        self._call_impl()

    def _call_impl(self) -> None:
        def inner() -> None:
            for hook in tuple(ModuleHandle.hooks):
                hook(self, ())
            for child in self.children:
                child()

        inner()


class Device:
    """``torch.cuda.device``: the context manager that makes a device current."""

    log: ClassVar[list[Any]] = []

    def __init__(self, device: int) -> None:
        self.device = device

    def __enter__(self) -> None:
        self.log.append(("enter", self.device))

    def __exit__(self, *_: object) -> None:
        self.log.append(("exit", self.device))


def cuda_torch(*, devices: int = 2, version: str = "2.13.0", initialised: bool = True, **cuda: Any) -> Any:
    queued: list[Callable[[], None]] = []
    parts = {
        "queued": queued,
        "_lazy_call": queued.append,
        "is_initialized": lambda: initialised,
        "device_count": lambda: devices,
        "get_device_properties": lambda device: SimpleNamespace(uuid=UUID[:-1] + str(device)),
        "memory_stats_as_nested_dict": lambda device: {"public": device},
        "get_allocator_backend": lambda: "native",
        "empty_cache": lambda: Device.log.append("empty"),
        "device": Device,
        **cuda,
    }
    return fake_torch(
        __version__=version,
        cuda=SimpleNamespace(**parts),
        optim=SimpleNamespace(Optimizer=Optimizer),
        _C=SimpleNamespace(_cuda_memoryStats=lambda device: {"raw": device}),
    )


class OnCuda(unittest.TestCase):
    def test_the_raw_statistics_call_is_used_where_there_is_one(self) -> None:
        torch = cuda_torch()
        self.assertEqual(Cuda(torch).read(1), {"raw": 1})
        del torch._C._cuda_memoryStats
        self.assertEqual(Cuda(torch).read(1), {"public": 1})

    def test_waiting_goes_through_torchs_own_queue_and_initialises_nothing(self) -> None:
        torch = cuda_torch(initialised=False)
        calls: list[str] = []
        Cuda(torch).when_ready(lambda: calls.append("ready"))
        self.assertEqual(calls, [])
        torch.cuda.queued[0]()
        self.assertEqual(calls, ["ready"])

    def test_backend_when_ready_calls_back_at_once_if_cuda_is_initialised(self) -> None:
        torch = cuda_torch(initialised=True)
        calls: list[str] = []
        Cuda(torch).when_ready(lambda: calls.append("ready"))
        self.assertEqual((calls, torch.cuda.queued), (["ready"], []))

    def test_uuids_are_written_as_nvml_writes_them(self) -> None:
        self.assertEqual(Cuda(cuda_torch()).device_uuids({}), (f"GPU-{UUID[:-1]}0", f"GPU-{UUID[:-1]}1"))

    def test_a_mig_slice_is_named_by_the_variable_that_chose_it(self) -> None:
        named = f"MIG-{UUID}"
        self.assertEqual(Cuda(cuda_torch(devices=1)).device_uuids({"CUDA_VISIBLE_DEVICES": named}), (named,))

    def test_ordinals_in_the_variable_are_no_names(self) -> None:
        environ = {"CUDA_VISIBLE_DEVICES": "3,4"}
        self.assertEqual(Cuda(cuda_torch()).device_uuids(environ)[0], f"GPU-{UUID[:-1]}0")

    def test_a_torch_without_uuids_has_none(self) -> None:
        torch = cuda_torch(get_device_properties=lambda _device: SimpleNamespace())
        self.assertEqual(Cuda(torch).device_uuids({}), ())

    def test_an_allocator_that_does_not_count_is_named(self) -> None:
        self.assertIsNone(Cuda(cuda_torch()).blind_because())
        reason = Cuda(cuda_torch(get_allocator_backend=lambda: "cudaMallocAsync")).blind_because()
        assert reason is not None
        self.assertIn("cudaMallocAsync", reason)

    def test_a_cap_is_known_to_make_no_contexts_from_torch_2_10_on(self) -> None:
        table: list[tuple[str, int, bool]] = [("2.10.0+cu128", 8, True), ("2.9.1", 8, False), ("2.9.1", 1, True)]
        for version, devices, answer in table:
            with self.subTest(version=version, devices=devices):
                self.assertEqual(Cuda(cuda_torch(version=version, devices=devices)).caps_without_context(), answer)

    def test_emptying_the_cache_makes_no_context_on_device_0(self) -> None:
        Device.log.clear()
        Cuda(cuda_torch()).empty_cache(1)
        self.assertEqual(Device.log, [("enter", 1), "empty", ("exit", 1)])

    def test_a_torch_without_the_observer_is_no_error(self) -> None:
        self.assertFalse(Cuda(cuda_torch()).on_out_of_memory(lambda *_: None))

    def test_the_step_hook_is_registered_where_the_optimizer_lives(self) -> None:
        hooks.clear()
        seen: list[object] = []
        Cuda(cuda_torch()).on_optimizer_step(
            lambda optimizer, wrapper: seen.extend([optimizer, wrapper.f_code.co_name])
        )
        (hook,) = hooks
        hook("optimizer", (), {})
        self.assertEqual(seen, ["optimizer", "test_the_step_hook_is_registered_where_the_optimizer_lives"])

    def test_the_compiler_is_told_to_leave_the_hook_alone(self) -> None:
        hooks.clear()
        Cuda(cuda_torch()).on_optimizer_step(lambda *_: None)
        self.assertTrue(hooks[0]._torchdynamo_disable)  # type: ignore[attr-defined] # SAFETY: that is the question

    def test_the_process_group_is_asked_only_when_there_is_one(self) -> None:
        torch = cuda_torch()
        table: list[tuple[bool, bool, Optional[tuple[int, int]]]] = [
            (False, False, None),
            (True, False, None),
            (True, True, (1, 4)),
        ]
        for available, initialised, answer in table:
            with self.subTest(available=available, initialised=initialised):
                torch.distributed = SimpleNamespace(
                    is_available=lambda available=available: available,
                    is_initialized=lambda initialised=initialised: initialised,
                    get_rank=lambda: 1,
                    get_world_size=lambda: 4,
                )
                self.assertEqual(Cuda(torch).distributed(), answer)


class CallsOfModules(unittest.TestCase):
    def setUp(self) -> None:
        self.task = -1
        self.compiles = False
        self.torch = fake_torch(
            __name__="torch_of_this_test",
            __version__="2.13.0",
            nn=SimpleNamespace(Module=Module),
            compiler=SimpleNamespace(is_compiling=lambda: self.compiles),
            cuda=SimpleNamespace(memory_stats_as_nested_dict=dict),
            _C=SimpleNamespace(_current_graph_task_id=lambda: self.task),
        )
        self.model = Module(Module(Module()), Module())
        self.called: list[object] = []
        self.addCleanup(ModuleHandle.hooks.clear)

    def listen(self) -> Optional[Callable[[], None]]:
        return Cuda(self.torch).on_module_call(self.called.append)

    def test_only_a_module_that_no_other_calls_is_told(self) -> None:
        self.listen()
        self.model()
        self.model()
        self.assertEqual(self.called, [self.model, self.model])

    def test_nothing_is_told_once_it_is_removed(self) -> None:
        remove = self.listen()
        assert remove is not None
        remove()
        self.model()
        self.assertEqual((self.called, ModuleHandle.hooks), ([], []))

    def test_a_module_that_backward_calls_is_not_told(self) -> None:
        self.listen()
        self.task = 7  # a checkpointed layer is computed anew
        self.model()
        self.assertEqual(self.called, [])

    def test_the_compiler_finds_nothing_in_it(self) -> None:
        self.listen()
        self.compiles = True
        self.model()
        self.assertEqual(self.called, [])

    def test_a_torch_that_does_not_tell_when_it_compiles_gets_no_hook(self) -> None:
        self.torch.compiler = SimpleNamespace()
        self.assertEqual((self.listen(), ModuleHandle.hooks), (None, []))

    def test_a_process_that_compiles_gets_no_hook(self) -> None:
        for backends, hooked in (({1: None, 2: "inductor"}, False), ({}, True), ({1: None}, True), (None, False)):
            with self.subTest(backends=backends):
                compiler = ModuleType("eval_frame")
                if backends is not None:  # else a torch that has not got it
                    compiler.cached_backends = backends  # type: ignore[attr-defined]
                sys.modules["torch_of_this_test._dynamo.eval_frame"] = compiler
                self.addCleanup(sys.modules.pop, "torch_of_this_test._dynamo.eval_frame", None)
                self.assertEqual(self.listen() is not None, hooked)


class ChoosingTheBackend(unittest.TestCase):
    def test_cuda_and_rocm_builds(self) -> None:
        self.assertIsInstance(choose_backend(cuda_torch()), Cuda)

    def test_an_accelerator_made_like_cuda(self) -> None:
        xpu = cuda_torch().cuda
        torch = fake_torch(
            __version__="2.13.0",
            _C=SimpleNamespace(),
            xpu=xpu,
            accelerator=SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type="xpu")),
        )
        backend = choose_backend(torch)
        assert isinstance(backend, Backend)
        self.assertEqual((backend.name, backend.read(1)), ("xpu", {"public": 1}))

    def test_an_accelerator_without_statistics_is_not_watched(self) -> None:
        torch = fake_torch(
            _C=SimpleNamespace(),
            mps=SimpleNamespace(device_count=lambda: 1),
            accelerator=SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type="mps")),
        )
        self.assertIsNone(choose_backend(torch))

    def test_a_build_without_any(self) -> None:
        self.assertIsNone(choose_backend(fake_torch(_C=SimpleNamespace())))
        none = SimpleNamespace(current_accelerator=lambda: None)
        self.assertIsNone(choose_backend(fake_torch(_C=SimpleNamespace(), accelerator=none)))


if __name__ == "__main__":
    unittest.main()
