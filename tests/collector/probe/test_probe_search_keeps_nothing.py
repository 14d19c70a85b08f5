"""What a training step makes dies with it while a search goes on: else its peak has two batches instead of one. What is
there still, or again, is found."""
# ruff: noqa: PT009

from __future__ import annotations

import functools
import gc
import sys
import unittest
import weakref
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from fake_tensors import Node, Tensor, fake_tensor_torch
from holder_searches import BLOCK, address, at_once, search_here, tensor, ticking
from tidegauge.probe.evidence.owned_tensors import OwnedTensors
from tidegauge.probe.holders.links import ObjectLinks
from tidegauge.probe.holders.pace import AtBoundary, Budget, Slices
from tidegauge.probe.holders.places import ObjectPlaces, Place
from tidegauge.probe.holders.ref_paths import Trails, Via

KEPT = [[number] for number in range(600)]
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
    "a list that is too long to follow at once": lambda one: _many(one),
    "a dict that is": lambda one: dict(enumerate(_many(one))),
    "one of a view": lambda one: dict(enumerate(_many(one))).values(),
    "one in objects without weak references": lambda one: MappingProxyType({"x": Slotted(Slotted(_many(one)))}),
    "more records than are followed at once": lambda one: [[[number, one] for number in range(5)] for _ in range(450)],
}


class Program:
    """What a program keeps, with many references, and each step fills and empties again."""

    def __init__(self) -> None:
        self.trainer = Holder(None)
        self.by_name: OrderedDict[int, Any] = OrderedDict((number, [number]) for number in range(600))
        for number in range(600):
            setattr(self.trainer, f"part_{number}", [number])
        self.records: list[Any] = [[number] for number in range(900)]
        self.window: deque[object] = deque()
        self.batches: set[object] = set()
        self.hooks: dict[str, object] = {}

    def fill(self, what: str, one: Tensor) -> None:
        if what == "an object":
            self.trainer.batch = [one]
        elif what == "an ordered dict":
            self.by_name[-1] = [one]
        elif what == "a list":
            self.records.append([one])
        elif what == "a deque":
            self.window.extend(_many(one))
        elif what == "a set":
            self.batches.update(_many(one))
        else:
            self.hooks["a hook"] = lambda: one

    def empty(self) -> None:
        self.trainer.batch = None
        self.by_name.pop(-1, None)
        del self.records[900:]
        for kept in (self.window, self.batches, self.hooks):
            kept.clear()


PROGRAM = Program()


def _many(one: Tensor) -> list[Tensor]:
    return [one, *(tensor(100 + number) for number in range(600))]


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

    def boundary_of(
        self, fill: Callable[[Tensor], object], empty: Callable[[], object]
    ) -> Callable[[Callable[[], bool]], bool]:
        def at_boundary(call: Callable[[], bool]) -> bool:
            self.boundaries += 1
            one = tensor(5)
            gone = weakref.ref(one)
            local = fill(one)
            del one
            done = call()
            del local
            empty()
            if gone() is not None:
                self.late.append(self.boundaries)
            return done

        return at_boundary

    def check(self, look: Callable[..., object]) -> None:
        for what, make in MADE_BY_A_STEP.items():
            self.check_one(what, look, lambda one, make=make: _begin(make(one)), lambda: _begin(None))
        module = ModuleType("torch.optim.optimizer")
        vars(module)["_global_optimizer_hooks"] = PROGRAM.hooks
        with mock.patch.dict(sys.modules, {module.__name__: module}):
            for what in ("an object", "an ordered dict", "a list", "a deque", "a set", "global hooks"):
                self.check_one(what, look, functools.partial(PROGRAM.fill, what), PROGRAM.empty)

    def check_one(self, what: str, look: Callable[..., object], *step: Callable[..., object]) -> None:
        with self.subTest(what):
            self.boundaries = 0
            self.late.clear()
            look(self.boundary_of(*step))
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


def _begin(made: Any) -> Any:
    global batch
    STEP.batch = batch = made
    return made


IN_CONTEXT: ContextVar[Any] = ContextVar("IN_CONTEXT", default=None)


class Fields(NamedTuple):
    outputs: Any


class FoundAgainTest(unittest.TestCase):
    """Long containers are read in many slices, and nothing keeps them alive between two."""

    def kept(self, one: Tensor) -> list[Any]:
        return [*([number] for number in range(2_000)), {"loss": [one]}]

    def path(self, at_boundary: AtBoundary = at_once) -> str:
        found = search_here([(address(1), BLOCK)], at_boundary=at_boundary)
        return "; ".join(holder.path for holder in found.holders)

    def test_by_the_variable_of_a_running_function(self) -> None:
        outputs = self.kept(tensor(1))
        self.assertIn("outputs (list, 2,001 items) -> dict (1 item)['loss'] (list, 1 item) -> Tensor", self.path())
        del outputs

    def test_by_the_variable_of_a_module(self) -> None:
        global batch
        self.addCleanup(_begin, None)
        batch = self.kept(tensor(1))
        self.assertIn(": batch (list, 2,001 items) -> dict (1 item)['loss']", self.path())

    def test_by_a_context_variable(self) -> None:
        def run() -> str:
            IN_CONTEXT.set(self.kept(tensor(1)))
            return self.path()

        self.assertIn("ContextVar IN_CONTEXT (list, 2,001 items) -> dict (1 item)['loss']", copy_context().run(run))

    def test_by_what_leads_to_it(self) -> None:
        kept: Any = {"runs": [Slotted(Fields(dict(enumerate(self.kept(tensor(1))))))]}
        path = self.path()
        self.assertIn("kept (dict, 1 item)['runs'] (list, 1 item) -> Slotted.batch (Fields, 1 item)", path)
        self.assertIn("-> Fields.outputs (dict, 2,001 items) -> dict (1 item)['loss'] (list, 1 item)", path)
        del kept

    def test_by_a_tensors_attribute(self) -> None:
        weight: Any = tensor(2)
        weight.notes = self.kept(tensor(1))
        self.assertIn("weight -> Tensor.notes (list, 2,001 items) -> dict (1 item)['loss']", self.path())

    def test_more_at_once_than_is_followed(self) -> None:
        records: Any = [[[[number]] * 5 for number in range(10)] for _ in range(450)]
        records[-1][-1] = [[tensor(1)]]
        self.assertIn("records (list, 450 items) -> list (10 items) -> list (1 item) -> list", self.path())

    def test_a_list_that_is_made_anew_in_each_step(self) -> None:
        def at_boundary(call: Callable[[], bool]) -> bool:
            holder.batch = [*holder.batch]
            return call()

        holder = Slotted(self.kept(tensor(1)))
        self.assertIn("holder -> Slotted.batch (list, 2,001 items) -> dict (1 item)['loss']", self.path(at_boundary))

    def test_what_has_come_into_its_place_by_another_name_is_not_it(self) -> None:
        trails = Trails()
        places = ObjectPlaces(ObjectLinks(fake_tensor_torch()), trails)
        holder: Any = Holder([1])
        holder.outputs = outputs = [2]
        row = trails.add(Via.LOCAL, "holder", "Holder", None, None, None, None)
        row = trails.add(Via.ATTRIBUTE, "Holder.outputs", "list", 1, None, None, row)
        place = Place(weakref.ref(holder)).child(0, 1)
        self.assertIs(places.found(place, row), outputs)
        del holder.batch
        holder.targets = [3]  # has its number now
        self.assertIs(places.found(place, row), outputs)
        holder.outputs = (2,)
        self.assertIsNone(places.found(place, row))
        del holder.outputs
        self.assertIsNone(places.found(place, row))


if __name__ == "__main__":
    unittest.main()
