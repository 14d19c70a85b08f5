# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PERF203, PT009
from __future__ import annotations

import atexit
import contextvars
import ctypes
import gc
import itertools
import sys
import unittest
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Optional
from unittest import mock

from fake_tensors import Module, Parameter, Tensor
from holder_searches import address, searched, tensor
from tidegauge.core.evidence.rank_evidence import CHAIN, Holder, HolderKind

FILE = "test_probe_holder_growth.py"
OLD, NEW = 60, 30
"""Steps before the window, and within it."""
STEPS = range(OLD + NEW)
IN_WINDOW = range(OLD, OLD + NEW)


class GrowthTestCase(unittest.TestCase):
    def setUp(self) -> None:
        gc.collect()  # cycles of the tests before have tensors at the same made-up addresses

    def held(self, *numbers: int) -> Holder:
        """What holds most of these blocks, those of the window if none are given."""
        found = searched(numbers or IN_WINDOW)
        self.assertIsNone(found.problem)
        return found.holders[0]

    def assert_grows(self, holder: Holder, name: str, container: str, items: int, *, tensors: int = NEW) -> None:
        self.assertEqual((holder.name, holder.container, holder.items, holder.tensors),
                         (name, container, items, tensors), holder)  # fmt: skip


class Recorder:
    """Anything with attributes."""


class Link:
    __slots__ = ("before", "output")

    def __init__(self, output: Optional[Tensor], before: Optional[Link]) -> None:
        self.output = output
        self.before = before


class NumberedNamesTest(GrowthTestCase):
    def test_attributes_with_the_step_in_their_name(self) -> None:
        recorder = Recorder()
        for step in STEPS:
            setattr(recorder, f"feature_{step}", tensor(step))
        holder = self.held()
        self.assertTrue(holder.path.endswith("recorder -> Recorder.feature_* (90 attributes) -> Tensor[8,128] float32"))
        self.assert_grows(holder, "Recorder.feature_*", "attributes", len(STEPS))
        self.assertEqual(holder.kind, HolderKind.ATTRIBUTE)

    def test_global_variables(self) -> None:
        for step in STEPS:
            globals()[f"kept_at_{step}"] = tensor(step)
        try:
            holder = self.held()
        finally:
            for step in STEPS:
                del globals()[f"kept_at_{step}"]
        self.assertEqual(holder.path, f"{FILE}: kept_at_* (90 variables) -> Tensor[8,128] float32")
        self.assert_grows(holder, "kept_at_*", "variables", len(STEPS))

    def test_buffers_of_a_module(self) -> None:
        model = Module()
        for step in STEPS:
            model._buffers[f"centroids_{step}"] = tensor(step)
        holder = self.held()
        self.assertIn("model -> Module.centroids_* (90 buffers) -> Tensor", holder.path)
        self.assert_grows(holder, "Module.centroids_*", "buffers", len(STEPS))

    def test_parameters_of_a_part(self) -> None:
        model = Module()
        prompts = model._modules["prompts"] = Module()
        for step in STEPS:
            prompts._parameters[str(step)] = Parameter(address(step), 8, 128)
        del prompts
        holder = self.held()
        self.assertIn("model -> Module.prompts.* (90 parameters) -> Parameter", holder.path)
        self.assert_grows(holder, "Module.prompts.*", "parameters", len(STEPS))

    def test_modules_that_are_added(self) -> None:
        model = Module()
        for step in STEPS:
            expert = model._modules[f"expert{step}"] = Module()
            expert._parameters["weight"] = Parameter(address(step), 8, 128)
            del expert
        holder = self.held()
        self.assertIn("model -> Module.expert* (90 modules).weight -> Parameter", holder.path)
        self.assertEqual((holder.container, holder.items), ("modules", len(STEPS)))

    def test_attributes_that_lead_to_objects(self) -> None:
        trainer = SimpleNamespace()
        for step in STEPS:
            setattr(trainer, f"batch{step:04}_saved", {"loss": tensor(step), "step": step})
        holder = self.held()
        self.assertIn("SimpleNamespace.batch*_saved (90 attributes)['loss'] -> Tensor", holder.path)
        self.assert_grows(holder, "SimpleNamespace.batch*_saved", "attributes", len(STEPS))

    def test_attributes_of_a_class(self) -> None:
        for step in STEPS:
            setattr(Recorder, f"seen_{step}", tensor(step))
            self.addCleanup(delattr, Recorder, f"seen_{step}")
        holder = self.held()
        self.assertEqual(holder.path, f"{FILE}: Recorder.seen_* (90 attributes) -> Tensor[8,128] float32")

    def test_one_of_many_parts_keeps_its_number(self) -> None:
        model = Module()
        for number in range(50):
            layer = model._modules[f"conv{number}"] = Module()
            layer._parameters["weight"] = Parameter(address(1000 + number), 8, 128)
            del layer
        self.assertIn("model -> Module.conv7.weight -> Parameter", self.held(1007).path)

    def test_parts_that_are_all_new_are_not_said_to_become_more(self) -> None:
        """Fifty layers whose weights are replaced: the names are as many as before."""
        model = Module()
        for number in range(50):
            layer = model._modules[f"conv{number}"] = Module()
            layer._parameters["weight"] = Parameter(address(number), 8, 128)
            del layer
        holder = self.held(*range(50))
        self.assertIn("model -> Module.conv*.weight -> Parameter", holder.path)
        self.assertEqual((holder.container, holder.items, holder.tensors), (None, None, 50))

    def test_names_that_were_added_while_the_search_began(self) -> None:
        recorder = Recorder()
        for step in range(OLD + NEW + 20):
            setattr(recorder, f"feature_{step}", tensor(step))
        self.assertEqual(self.held().items, OLD + NEW + 20)

    def test_a_ring_of_numbered_slots_is_not_said_to_become_more(self) -> None:
        ring = Recorder()
        for slot in range(64):
            setattr(ring, f"slot_{slot}", tensor(1000 + slot))
        for step in range(20, 20 + NEW):
            setattr(ring, f"slot_{step}", tensor(step))
        holder = self.held(*range(20, 20 + NEW))
        self.assertIn("ring -> Recorder.slot_* -> Tensor", holder.path)
        self.assertEqual((holder.container, holder.items), (None, None))

    def test_a_window_of_numbered_attributes_is_not_said_to_become_more(self) -> None:
        window = Recorder()
        for step in STEPS:
            setattr(window, f"state_{step}", tensor(step))
            if step >= NEW + 2:
                delattr(window, f"state_{step - NEW - 2}")
        self.assertEqual(self.held().container, None)

    def test_a_list_in_each_layer_is_what_grows_not_the_layers(self) -> None:
        model = Module()
        for number in range(8):
            layer: Any = Module()
            model._modules[f"block{number}"] = layer
            layer.cache = [tensor(100 * number + step) for step in range(40)]
            del layer
        holder = self.held(*(100 * number + step for number in range(8) for step in range(30, 40)))
        self.assertIn("model -> Module.block* -> Module.cache (list, 40 items) -> Tensor", holder.path)
        self.assert_grows(holder, "Module.cache", "list", 40, tensors=80)


class ChainTest(GrowthTestCase):
    def test_a_linked_list(self) -> None:
        latest: Optional[Link] = None
        for step in STEPS:
            latest = Link(tensor(step), latest)
        holder = self.held()
        self.assertTrue(holder.path.endswith("latest -> Link.before (repeated 89 times) -> Link.output -> "
                                             "Tensor[8,128] float32"), holder.path)  # fmt: skip
        self.assert_grows(holder, "latest", CHAIN, len(STEPS) - 1, tensors=NEW - 1)

    def test_a_list_that_is_linked_at_its_end(self) -> None:
        first = SimpleNamespace(output=tensor(0))
        last = first
        for step in STEPS[1:]:
            last.next = SimpleNamespace(output=tensor(step))
            last = last.next
        holder = self.held()
        self.assertIn("first -> SimpleNamespace.next (repeated 89 times) -> SimpleNamespace.output", holder.path)
        self.assertEqual((holder.name, holder.container), ("first", CHAIN))

    def test_exceptions_that_are_raised_from_the_one_before(self) -> None:
        trainer = SimpleNamespace(last_error=None)

        def fail(step: int) -> None:
            out = tensor(step)
            raise ValueError(out.size()) from trainer.last_error

        for step in STEPS:
            try:
                fail(step)
            except ValueError as error:
                trainer.last_error = error
        holder = self.held()
        self.assertIn("SimpleNamespace.last_error -> __cause__ (repeated 89 times) -> traceback", holder.path)
        self.assertEqual((holder.kind, holder.container), (HolderKind.EXCEPTION, CHAIN))
        self.assertEqual(holder.detail, "ValueError kept with its traceback")

    def test_exceptions_that_are_raised_while_another_is_handled(self) -> None:
        kept: list[Exception] = []

        def fail(step: int) -> None:
            out = tensor(step)
            raise KeyError(out.size())

        for step in STEPS:
            try:
                if kept:
                    try:
                        raise kept.pop()
                    except KeyError:
                        fail(step)
                fail(step)
            except KeyError as error:
                kept.append(error)
        holder = self.held()
        self.assertIn("__context__ (repeated", holder.path)
        self.assertEqual((holder.kind, holder.container), (HolderKind.EXCEPTION, CHAIN))

    def test_closures_in_closures(self) -> None:
        def wrapped(inner: Callable[[], int], offset: Tensor) -> Callable[[], int]:
            def handle() -> int:
                return inner() + len(offset.size())

            return handle

        handler: Callable[[], int] = int
        for step in STEPS:
            handler = wrapped(handler, tensor(step))
        holder = self.held()
        self.assertIn("handler -> handle closure's inner (repeated", holder.path.replace("wrapped.<locals>.", ""))
        self.assertEqual((holder.name, holder.kind, holder.container), ("handler", HolderKind.CLOSURE, CHAIN))

    def test_iterators_in_iterators(self) -> None:
        stream: Iterator[Any] = iter(())
        for step in STEPS:
            stream = itertools.chain(stream, [tensor(step)])
        holder = self.held()
        self.assertIn("chain (repeated", holder.path)
        self.assertEqual((holder.name, holder.container), ("stream", CHAIN))

    def test_maps_of_maps(self) -> None:
        stream: Any = iter(())
        for step in STEPS:
            stream = map(partial(min, tensor(step)), stream)
        holder = self.held()
        self.assertRegex(holder.path, r"stream -> tuple -> map \(repeated (89|90) times\) -> ")
        self.assertEqual(holder.container, CHAIN)

    def test_generators_in_generators(self) -> None:
        def delayed(inner: Iterator[int], kept: Tensor) -> Iterator[int]:
            for number in inner:
                yield number + len(kept.size())

        numbers: Iterator[int] = itertools.count()
        for step in STEPS:
            numbers = delayed(numbers, tensor(step))
            next(numbers)
        holder = self.held()
        self.assertRegex(holder.path, r"numbers -> inner in .*delayed\(\) \(repeated 89 times\) -> kept in .*delayed")
        self.assertEqual((holder.name, holder.container), ("numbers", CHAIN))

    def test_wrappers_by_bound_methods(self) -> None:
        class Filter:
            def __init__(self, inner: Callable[[], Any], bias: Tensor) -> None:
                self.inner, self.bias = inner, bias

            def call(self) -> Any:
                return self.inner()

        call: Callable[[], Any] = int
        for step in STEPS:
            call = Filter(call, tensor(step)).call
        holder = self.held()
        self.assertIn("Filter.inner", holder.path)
        self.assertEqual((holder.name, holder.container), ("call", CHAIN))

    def test_pairs_of_pairs(self) -> None:
        history: Any = ()
        for step in STEPS:
            history = (tensor(step), history)
        holder = self.held()
        self.assertRegex(holder.path, r"history \(tuple, 2 items\) -> tuple \(repeated (89|90) times\) -> Tensor")
        self.assertEqual((holder.name, holder.container), ("history", CHAIN))

    def test_scopes_with_their_parent(self) -> None:
        scope: dict[str, Any] = {}
        for step in STEPS:
            scope = {"parent": scope, "loss": tensor(step)}
        holder = self.held()
        self.assertIn("(repeated", holder.path)
        self.assertEqual((holder.name, holder.container), ("scope", CHAIN))

    def test_two_classes_in_turns(self) -> None:
        class Encoder:
            def __init__(self, decoder: Any, state: Tensor) -> None:
                self.decoder, self.state = decoder, state

        class Decoder:
            def __init__(self, encoder: Any) -> None:
                self.encoder = encoder

        top: Any = None
        for step in STEPS:
            top = Decoder(Encoder(top, tensor(step)))
        holder = self.held()
        self.assertIn("top -> Decoder.encoder -> Encoder.decoder (repeated", holder.path)

    def test_a_chain_in_an_object_that_a_list_holds(self) -> None:
        heads = [Link(None, None) for _ in range(2)]
        for step in STEPS:
            heads[0] = Link(tensor(step), heads[0])
        holder = self.held()
        self.assertIn("heads (list, 2 items) -> Link.before (repeated", holder.path)

    def test_both_sides_of_a_tee_are_held_by_the_one_that_is_behind(self) -> None:
        leading, behind = itertools.tee(tensor(step) for step in itertools.count())
        for _ in range(150):
            next(leading)
        del _
        found = searched(range(120, 150))
        self.assertIn("behind -> _tee_dataobject", found.holders[0].path)
        self.assertEqual(found.holders[0].name, "behind", (leading, behind))

    def test_a_chain_that_is_cut_is_not_said_to_grow(self) -> None:
        latest: Optional[Link] = None
        links: list[Link] = []
        for step in STEPS:
            latest = Link(tensor(step), latest)
            links.append(latest)
            if len(links) > NEW + 2:
                links.pop(0).before = None
        links.clear()
        holder = self.held()
        self.assertIn("latest -> Link.before (repeated", holder.path)
        self.assertEqual((holder.container, holder.items), (None, None))

    def test_a_list_at_the_end_of_a_short_chain_is_what_grows(self) -> None:
        last: Any = Recorder()
        last.outputs = [tensor(step) for step in STEPS]
        first = SimpleNamespace(next=SimpleNamespace(next=SimpleNamespace(next=last)))
        del last
        holder = self.held()
        self.assert_grows(holder, "Recorder.outputs", "list", len(STEPS))
        self.assertIn("first -> SimpleNamespace.next", holder.path, first)

    def test_nested_containers_are_no_chain(self) -> None:
        log: Any = {"runs": [{"epochs": [{"steps": [tensor(step) for step in STEPS]}]}]}
        holder = self.held()
        self.assertIn("log (dict, 1 item)['runs'] (list, 1 item) -> dict (1 item)['epochs']", holder.path)
        self.assert_grows(holder, "log", "list", len(STEPS))
        self.assertEqual(list(log), ["runs"])

    def test_a_deep_chain_takes_no_recursion_and_little_work(self) -> None:
        latest: Optional[Link] = None
        for step in range(20_000):
            latest = Link(tensor(step), latest)
        found = searched(range(200))  # the oldest, far from the name
        self.assertIsNone(found.problem)
        self.assertEqual(found.holders[0].items, 19_999)
        while latest is not None:  # Python itself would recurse to free it
            latest = latest.before


class ContextTest(GrowthTestCase):
    def test_a_context_variable_has_its_name(self) -> None:
        context = contextvars.copy_context()
        context.run(contextvars.ContextVar[Any]("seen").set, [tensor(step) for step in STEPS])
        holder = self.held()
        self.assertIn("context -> ContextVar seen (list, 90 items) -> Tensor", holder.path, context)
        self.assert_grows(holder, "ContextVar seen", "list", len(STEPS))

    def test_the_context_of_a_thread(self) -> None:
        variable = contextvars.ContextVar[Any]("seen")
        kept = variable.set([tensor(step) for step in STEPS])
        self.addCleanup(variable.reset, kept)
        del kept
        holder = self.held()
        self.assertIn("Context -> ContextVar seen (list, 90 items) -> Tensor", holder.path)
        self.assertEqual(holder.name, "ContextVar seen", variable)


class NamedByWhatGrowsTest(GrowthTestCase):
    def test_the_list_that_grows_and_not_the_attribute_of_its_items(self) -> None:
        class Episode:
            def __init__(self, states: Tensor) -> None:
                self.states = states

        episodes = [Episode(tensor(step)) for step in STEPS]
        holder = self.held()
        self.assertIn("episodes (list, 90 items) -> Episode.states", holder.path, len(episodes))
        self.assert_grows(holder, "episodes", "list", len(STEPS))

    def test_the_dict_that_grows_and_not_the_short_lists_in_it(self) -> None:
        bank = {step: [tensor(step)] for step in STEPS}
        self.held()
        self.assert_grows(self.held(), "bank", "dict", len(bank))

    def test_the_default_that_grows_and_not_the_object_with_the_function(self) -> None:
        model = Module()

        def remember(kept: Sequence[Any] = tuple(tensor(step) for step in STEPS)) -> int:
            return len(kept)

        model._forward_hooks[0] = remember
        del remember
        holder = self.held()
        self.assert_grows(holder, "a default of remember", "tuple", len(STEPS))
        self.assertEqual(holder.kind, HolderKind.HOOK, model)

    def test_the_lists_that_grow_and_not_the_four_that_they_are(self) -> None:
        gathered = [[tensor(1000 * rank + step) for step in STEPS] for rank in range(4)]
        holder = self.held(*(1000 * rank + step for rank in range(4) for step in IN_WINDOW))
        self.assert_grows(holder, "gathered", "list", len(STEPS), tensors=4 * NEW)
        self.assertEqual(len(gathered), 4)


class NamelessTest(GrowthTestCase):
    def test_arguments_that_atexit_keeps(self) -> None:
        """In C, from Python 3.10 on, and in a list of C's from 3.14 on; before, its module refers to them."""

        def save(step: int, output: Tensor) -> None:
            pass

        self.addCleanup(atexit.unregister, save)
        for step in STEPS:
            atexit.register(save, step, tensor(step))
        holder = self.held()
        self.assertIn("atexit", holder.path)
        if sys.version_info >= (3, 10):
            self.assertRegex(holder.path, r"^atexit callbacks \(\d+ items\) -> .*tuple \(2 items\) -> Tensor")
            self.assertIsNone(holder.name)

    def test_a_tuple_that_nothing_refers_to_is_not_atexits_where_fewer_functions_are_registered(self) -> None:
        arguments = tuple(map(tensor, STEPS))
        self.addCleanup(ctypes.pythonapi.Py_DecRef, ctypes.c_void_p(id(arguments)))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(arguments))
        del arguments
        with mock.patch.object(atexit, "_ncallbacks", return_value=40):
            holder = self.held()
        self.assertEqual((holder.path, holder.name), ("tuple (90 items) -> Tensor[8,128] float32", None))

    def test_what_a_signal_handler_keeps_is_not_atexits_in_a_job_with_some_functions_there(self) -> None:
        def handler(then: object, output: Tensor) -> Callable[[], object]:
            return lambda: (then, output)

        chained: object = None
        for step in STEPS:
            chained = handler(chained, tensor(step))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(chained))
        kept = weakref.ref(chained)
        del chained
        with mock.patch.object(atexit, "_ncallbacks", return_value=11):
            found = searched(STEPS)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(kept()))
        self.assertFalse([holder for holder in found.holders if "atexit" in holder.path], found)


class GlobalHookTest(GrowthTestCase):
    def hooked(self, module: str, variable: str, make: Callable[[], Any]) -> Holder:
        library = ModuleType(module)
        library.__file__ = "/x/site-packages/" + module.replace(".", "/") + ".py"
        setattr(library, variable, {7: make()})
        with mock.patch.dict(sys.modules, {module: library}):
            return self.held()

    def test_a_method_that_is_called_for_all_modules(self) -> None:
        class Tap:
            def __init__(self) -> None:
                self.captured = [tensor(step) for step in STEPS]

            def on_forward(self) -> None:
                pass

        holder = self.hooked("torch.nn.modules.module", "_global_forward_hooks", lambda: Tap().on_forward)
        self.assertEqual((holder.kind, holder.name), (HolderKind.HOOK, "Tap.captured"), holder)
        self.assertIn(f"{FILE}: global forward hook", holder.path)
        self.assertIn("on_forward", holder.path)
        self.assertIn("filled by: ", holder.detail or "")

    def test_a_function_that_is_called_for_all_modules_and_its_closure(self) -> None:
        def make() -> Callable[[], int]:
            seen = [tensor(step) for step in STEPS]
            return lambda: len(seen)

        for module, variable, words in (
            ("torch.nn.modules.module", "_global_backward_pre_hooks", "global backward pre hook"),
            ("torch.nn.modules.module", "_global_module_registration_hooks", "global module registration hook"),
            ("torch.optim.optimizer", "_global_optimizer_post_hooks", "global optimizer post hook"),
        ):
            holder = self.hooked(module, variable, make)
            self.assertEqual(holder.kind, HolderKind.HOOK, holder)
            self.assertIn(words, holder.path)

    def test_a_list_with_a_name_that_a_global_hook_fills(self) -> None:
        seen = [tensor(step) for step in STEPS]
        holder = self.hooked("torch.nn.modules.module", "_global_forward_hooks", lambda: lambda: seen)
        self.assertEqual((holder.kind, holder.name), (HolderKind.HOOK, "seen"))


if __name__ == "__main__":
    unittest.main()
