"""What a training step makes dies with it while a search goes on: else its peak has two batches instead of one."""
# ruff: noqa: PT009

from __future__ import annotations

import gc
import sys
import unittest
import weakref
from collections import UserDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fake_tensors import Node, Tensor, fake_tensor_torch
from holder_searches import BLOCK, address, search_here, tensor, ticking
from tidegauge.probe.evidence.owned_tensors import OwnedTensors
from tidegauge.probe.holders.pace import Budget, Slices

KEPT = [[number] for number in range(2_000)]
"""Of the program, so that a search has many slices."""
STEP = SimpleNamespace(batch=None)
batch: Any = None


class Holder:
    def __init__(self, batch: Any) -> None:
        self.batch = batch


class Slotted:
    """Nothing can refer to it weakly."""

    __slots__ = ("batch",)

    def __init__(self, batch: Any) -> None:
        self.batch = batch


class Batch(UserDict):  # type: ignore[type-arg]  # Python 3.9 knows no parameters of it at run time
    """Transformers' batches are of this kind."""


MADE_BY_A_STEP: dict[str, Callable[[Tensor], Any]] = {
    "a tensor": lambda one: one,
    "a dict": lambda one: {"x": one, "y": 1},
    "nested containers": lambda one: {"inputs": [(1, {"x": one})]},
    "an object": lambda one: Holder({"x": one}),
    "many objects": lambda one: [Holder([one]) for _ in range(300)],
    "beside many records": lambda one: {"records": [{"at": [number]} for number in range(900)], "x": [one]},
    "an object without weak references": lambda one: Slotted([one]),
    "many tensors": lambda one: [one, *(tensor(100 + number) for number in range(400))],
    "many containers": lambda one: [{"x": one} for _ in range(200)],
    "a function": lambda one: lambda: one,
    "a generator": lambda one: (each for each in [one]),
    "a graph": lambda one: tensor(7, grad_fn=Node("MulBackward0", (8, 128), saved=one)),
    "a graph of many nodes": lambda one: tensor(7, grad_fn=_chain(500, one)),
    "a mapping of its own": lambda one: Batch({"x": one}),
}


def _chain(nodes: int, saved: Tensor) -> Node:
    node = Node("MulBackward0", (8, 128), saved=saved)
    for _ in range(nodes):
        node = Node("AddBackward0", (8, 128), node)
    return node


@unittest.skipIf("pytest" in sys.modules, "pytest has 100 times the objects: test_holders_alone runs it")
class StepsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(gc.enable)
        gc.disable()  # as training loops do that collect garbage at steps of their own choice
        self.boundaries = 0
        self.late: list[int] = []
        """Boundaries whose step's tensor outlived it."""

    def boundary_of(self, make: Callable[[Tensor], Any]) -> Callable[[Callable[[], bool]], bool]:
        def at_boundary(call: Callable[[], bool]) -> bool:
            global batch
            self.boundaries += 1
            one = tensor(5)
            gone = weakref.ref(one)
            local = STEP.batch = batch = make(one)
            del one
            done = call()
            STEP.batch = batch = None
            del local
            if gone() is not None:
                self.late.append(self.boundaries)
            return done

        return at_boundary

    def check(self, look: Callable[..., object]) -> None:
        for what, make in MADE_BY_A_STEP.items():
            with self.subTest(what):
                self.boundaries = 0
                self.late.clear()
                look(self.boundary_of(make))
                self.assertGreater(self.boundaries, 3)
                self.assertEqual(self.late, [])

    def test_while_holders_are_searched(self) -> None:
        self.check(lambda at_boundary: search_here([(address(1), BLOCK)], at_boundary=at_boundary))

    def test_while_the_model_is_searched(self) -> None:
        def search(at_boundary: Callable[[Callable[[], bool]], bool]) -> None:
            torch = fake_tensor_torch()
            slices = Slices(
                torch, Budget(1_000_000), pause=lambda: None, at_boundary=at_boundary, clock_s=ticking()
            )  # fmt: skip
            slices.run(OwnedTensors(torch, list).find())

        self.check(search)


if __name__ == "__main__":
    unittest.main()
