# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import sys
import threading
import time
import unittest
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from probe_fakes import fake_torch
from tidegauge.probe.faults import Faults
from tidegauge.probe.runtime import gradient_addresses
from tidegauge.probe.runtime.gradient_addresses import GradientAddresses

HOOKS: list[Callable[..., None]] = []


class Optimizer:
    """Lives in the module that has the hook, as torch's does."""

    def __init__(self, *parameters: Any) -> None:
        self.param_groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]

    def step(self) -> None:
        for hook in tuple(HOOKS):
            hook(self, (), {})


def register_optimizer_step_pre_hook(hook: Callable[..., None]) -> Any:
    HOOKS.append(hook)
    return SimpleNamespace(remove=lambda: HOOKS.remove(hook))


def tensor(address: int, **parts: Any) -> Any:
    storage = SimpleNamespace(data_ptr=lambda: address)
    whole = {"is_cuda": True, "is_sparse": False, "untyped_storage": lambda: storage, "get_device": lambda: 1}
    return SimpleNamespace(**{**whole, **parts})


def parameter(gradient: Any) -> Any:
    return SimpleNamespace(grad=gradient)


class Noting(unittest.TestCase):
    def setUp(self) -> None:
        self.said: list[str] = []
        torch = fake_torch(__name__="torch_of_this_test", optim=SimpleNamespace(Optimizer=Optimizer))
        self.noted = GradientAddresses(torch, Faults(say=self.said.append))
        self.addCleanup(HOOKS.clear)

    def test_threads_that_step_are_told_apart(self) -> None:
        self.noted.begin()
        Optimizer(parameter(tensor(4096))).step()
        other = threading.Thread(target=Optimizer(parameter(tensor(8192))).step)
        other.start()
        other.join()
        found = [(one.device, one.thread) for one in self.noted.found]
        self.assertEqual(found, [(1, threading.get_ident()), (1, other.ident)])

    def test_each_step_notes_where_gradients_on_a_gpu_lie(self) -> None:
        first, second = parameter(tensor(4096)), parameter(tensor(8192))
        others = [parameter(None), parameter(tensor(1, is_cuda=False)), parameter(tensor(2, is_sparse=True))]
        before_us = time.time_ns() // 1000
        self.noted.begin()
        Optimizer(first, second, *others).step()
        first.grad = tensor(512)
        Optimizer(first).step()
        found = [(one.parameter, one.address) for one in self.noted.found]
        self.assertEqual(found, [(id(first), 4096), (id(second), 8192), (id(first), 512)])
        self.assertTrue(all(before_us <= one.unix_us <= time.time_ns() // 1000 for one in self.noted.found))

    def test_of_a_distributed_gradient_this_ranks_part_is_noted(self) -> None:
        self.noted.begin()
        Optimizer(parameter(SimpleNamespace(_local_tensor=tensor(4096)))).step()
        self.assertEqual([one.address for one in self.noted.found], [4096])

    def test_at_the_end_the_hook_is_gone(self) -> None:
        self.noted.begin()
        self.noted.end()
        self.noted.end()
        self.assertEqual(HOOKS, [])

    def test_a_process_that_compiles_gets_no_hook(self) -> None:
        compiler = ModuleType("eval_frame")
        compiler.cached_backends = {1: "inductor"}  # type: ignore[attr-defined]
        sys.modules["torch_of_this_test._dynamo.eval_frame"] = compiler
        self.addCleanup(sys.modules.pop, "torch_of_this_test._dynamo.eval_frame", None)
        self.noted.begin()
        self.assertEqual(HOOKS, [])

    def test_an_error_of_ours_never_reaches_the_optimizer_and_takes_the_hook_away(self) -> None:
        self.noted.begin()
        Optimizer(object()).step()
        self.assertEqual((HOOKS, len(self.said)), ([], 1))

    def test_there_is_a_bound(self) -> None:
        most, gradient_addresses.MAX_ADDRESSES = gradient_addresses.MAX_ADDRESSES, 3
        self.addCleanup(setattr, gradient_addresses, "MAX_ADDRESSES", most)
        self.noted.begin()
        for _ in range(3):
            Optimizer(parameter(tensor(1)), parameter(tensor(2))).step()
        self.assertEqual([one.address for one in self.noted.found], [1, 2, 1])
