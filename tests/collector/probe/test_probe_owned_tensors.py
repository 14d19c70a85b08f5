# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
"""The tensors of models and optimizers that are given, as ``tidegauge.profile()`` gives them."""

from __future__ import annotations

import math
import unittest
import weakref
from types import SimpleNamespace
from typing import Any

from fake_tensors import Module, Optimizer, Parameter, Tensor, fake_tensor_torch
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import module_of
from tidegauge.probe.evidence.owned_tensors import OwnedTensors, TensorReading
from tidegauge.probe.holders.pace import do_some

BASE, MIB = 1 << 30, 1 << 20


class GivenModels(unittest.TestCase):
    def setUp(self) -> None:
        self.torch = fake_tensor_torch()
        self.weight = Parameter(BASE, 256)
        self.model, layer = Module(), Module()
        layer._parameters["weight"] = self.weight
        self.model._modules["layer"] = layer
        optimizer: Any = Optimizer()
        self.optimizer = optimizer
        self.optimizer.param_groups = [{"params": [self.weight]}]
        self.optimizer.state[self.weight] = {"exp_avg": Tensor(BASE + MIB, 256)}
        self.tensors = OwnedTensors(self.torch, tuple)

    def read(self, models: list[Any], optimizers: list[Any]) -> TensorReading:
        self.tensors.give(models, optimizers)
        self.tensors.name_modules(lambda: None)
        reading = self.tensors.reading()
        self.assertTrue(do_some(self.torch, reading.whole(), math.inf)[0])
        return reading

    def modules(self, reading: TensorReading) -> dict[Any, Any]:
        owned = reading.owned(lambda: None)
        return {(one.address, one.category): module_of(one, self.tensors.models) for one in owned}

    def test_they_have_the_names_that_a_search_gives_them(self) -> None:
        parallel = Module()
        parallel._modules["module"] = self.model
        reading = self.read([parallel, self.model], [self.optimizer])
        wanted = {(BASE, Category.PARAMETERS): "Module.layer", (BASE + MIB, Category.OPTIMIZER_STATE): "Module.layer"}
        self.assertEqual(self.modules(reading), wanted)
        self.assertEqual({path for _, path in self.tensors.module_paths()}, {"Module", "Module.layer"})
        self.assertEqual(reading.module_of_parameter(id(self.weight)), ("layer.weight", 0))
        self.assertIsNone(reading.module_of_parameter(7))

    def test_an_optimizer_is_found_in_what_wraps_it(self) -> None:
        for name in ("optimizer", "_optimizer", "optim"):
            self.tensors = OwnedTensors(self.torch, tuple)
            reading = self.read([self.model], [SimpleNamespace(**{name: self.optimizer})])
            self.assertIn((BASE + MIB, Category.OPTIMIZER_STATE), self.modules(reading))

    def test_without_a_model_what_an_optimizer_steps_is_parameters(self) -> None:
        reading = self.read([], [self.optimizer])
        wanted = {(BASE, Category.PARAMETERS): None, (BASE + MIB, Category.OPTIMIZER_STATE): None}
        self.assertEqual(self.modules(reading), wanted)

    def test_a_model_that_the_program_drops_while_modules_are_named_dies(self) -> None:
        """In a thread beside training, which rests again and again: two models may not fit into the memory."""
        for rest in range(4):
            models, left = [Module()], [rest]
            models[0]._modules["layer"] = Module()
            dropped = weakref.ref(models[0])
            layer = weakref.ref(models[0]._modules["layer"])

            def pace(models: list[Any] = models, left: list[int] = left) -> None:
                if left[0] == 0:
                    models.clear()
                    alive.append((dropped(), layer()))  # noqa: B023
                left[0] -= 1

            alive: list[Any] = []
            tensors = OwnedTensors(self.torch, tuple)
            tensors.give(models, [])
            tensors.name_modules(pace)
            self.assertEqual(alive, [(None, None)])


if __name__ == "__main__":
    unittest.main()
