# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import threading
import unittest
import weakref
from collections.abc import Callable

from probe_fakes import FakeBackend, FakeModule
from tidegauge.probe.faults import Faults
from tidegauge.probe.step_counting.module_calls import MAX_MODULES, ModuleCalls


class ModuleCallsTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.backend = FakeBackend()
        self.said: list[str] = []
        self.faults = Faults(say=self.said.append)
        self.at_boundary: Callable[[], None] = lambda: None
        self.calls = ModuleCalls(self.backend, lambda: self.at_boundary(), self.faults)
        self.model, self.loss = FakeModule(), FakeModule()

    def boundaries_of(self, *modules: object) -> list[bool]:
        """Which of these calls are boundaries."""
        found = []
        for module in modules:
            before = self.calls.boundaries
            self.backend.call_module(module)
            found.append(self.calls.boundaries > before)
        return found

    def in_thread(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


class Rounds(ModuleCallsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.calls.switch_on()

    def test_a_model_that_is_called_again_is_at_a_boundary(self) -> None:
        self.assertEqual(self.boundaries_of(self.model, self.model, self.model), [False, True, True])

    def test_several_modules_a_step_make_one_boundary_at_the_same_one(self) -> None:
        step = (self.model, self.loss)
        self.assertEqual(self.boundaries_of(*step, *step, *step), [False, False, True, False, True, False])

    def test_a_module_that_is_called_now_and_then_makes_none(self) -> None:
        called = self.boundaries_of(self.model, self.model, FakeModule(), self.model, FakeModule(), self.model)
        self.assertEqual(called, [False, True, False, True, False, True])

    def test_a_new_module_at_the_address_of_a_dead_one_makes_none(self) -> None:
        for _ in range(100):
            self.assertEqual(self.boundaries_of(FakeModule()), [False])

    def test_new_modules_alone_are_forgotten(self) -> None:
        modules = [FakeModule() for _ in range(MAX_MODULES + 1)]
        self.assertNotIn(True, self.boundaries_of(*modules))
        self.assertEqual(len(self.calls._round), 1)

    def test_no_module_is_kept_alive(self) -> None:
        model = FakeModule()
        self.boundaries_of(model, model)
        reference = weakref.ref(model)
        del model
        self.assertIsNone(reference())

    def test_there_is_none_while_a_graph_is_captured(self) -> None:
        self.backend.is_capturing = True
        self.assertEqual(self.boundaries_of(self.model, self.model), [False, False])

    def test_a_model_that_is_called_at_the_boundary_makes_no_other(self) -> None:
        self.at_boundary = lambda: self.backend.call_module(self.model)  # a signal handler
        self.assertEqual(self.boundaries_of(self.model, self.model), [False, True])
        self.assertEqual(self.calls.boundaries, 1)

    def test_an_error_of_ours_never_reaches_the_model(self) -> None:
        def fail() -> None:
            raise RuntimeError("no")

        self.at_boundary = fail
        self.boundaries_of(self.model, self.model, self.model)
        self.assertEqual((self.faults.count, len(self.said)), (2, 1))


class Threads(ModuleCallsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.calls.switch_on()

    def test_calls_of_one_thread_count(self) -> None:
        self.boundaries_of(self.model, self.model)
        self.in_thread(lambda: self.assertEqual(self.boundaries_of(*[self.model] * 3), [False] * 3))
        self.assertEqual(self.boundaries_of(self.model), [True])

    def test_another_thread_has_boundaries_where_the_main_one_calls_nothing(self) -> None:
        self.in_thread(lambda: self.assertEqual(self.boundaries_of(self.model, self.model), [False, True]))
        self.assertEqual(self.boundaries_of(self.model, self.model), [False, False])

    def test_the_main_thread_takes_over_from_one_that_had_none(self) -> None:
        self.in_thread(lambda: self.assertEqual(self.boundaries_of(FakeModule()), [False]))  # a replica
        self.assertEqual(self.boundaries_of(self.model, self.model), [False, True])


class SwitchingOnAndOff(ModuleCallsTestCase):
    def test_the_hook_is_there_only_while_it_is_switched_on(self) -> None:
        self.assertIsNone(self.backend.module_hook)
        self.calls.switch_on()
        self.assertIsNotNone(self.backend.module_hook)
        self.calls.switch_off()
        self.assertIsNone(self.backend.module_hook)

    def test_a_call_that_was_under_way_finds_it_switched_off(self) -> None:
        self.calls.switch_on()
        hook = self.backend.module_hook
        assert hook is not None
        self.calls.switch_off()
        hook(self.model)
        hook(self.model)
        self.assertEqual(self.calls.boundaries, 0)

    def test_a_process_that_compiles_has_none(self) -> None:
        self.backend.has_module_hook = False
        self.calls.switch_on()
        self.assertFalse(self.calls.on)

    def test_a_torch_that_refuses_is_asked_once(self) -> None:
        self.backend.module_hook_error = AttributeError("no such hook")
        self.calls.switch_on()
        self.calls.switch_on()
        self.assertEqual((self.calls.on, self.faults.count), (False, 1))

    def test_a_forked_child_has_none(self) -> None:
        self.calls.switch_on()
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with self.calls._lock:
                held.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        self.calls.abandon()
        release.set()
        thread.join()
        self.assertIsNone(self.backend.module_hook)


if __name__ == "__main__":
    unittest.main()
