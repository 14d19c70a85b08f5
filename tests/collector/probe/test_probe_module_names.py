# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import sys
import threading
import unittest
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Optional

from probe_fakes import fake_torch
from tidegauge.core.snapshot_columns import MODULE_WORD
from tidegauge.probe.evidence.module_names import COMPILED, MAX_ROOTS, OLD_TORCH, ModuleNames
from tidegauge.probe.faults import Faults

HOOKS: dict[str, list[Callable[..., None]]] = {"before": [], "after": []}


def registered(kind: str, hook: Callable[..., None]) -> Any:
    HOOKS[kind].append(hook)
    return SimpleNamespace(remove=lambda: HOOKS[kind].remove(hook))


def register_module_forward_pre_hook(hook: Callable[..., None]) -> Any:
    """This module plays ``torch.nn.modules.module``, too."""
    return registered("before", hook)


def register_module_forward_hook(hook: Callable[..., None], *, always_call: bool) -> Any:
    assert always_call
    return registered("after", hook)


class Module:
    """Calls its hooks as torch's does: those behind it also where it raises an ``Exception``."""

    def __init__(self, forward: Optional[Callable[[], None]] = None, **children: Module) -> None:
        self.forward = forward
        self.children = self._modules = children

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        yield "", self
        for name, child in self.children.items():
            for path, module in child.named_modules():
                yield f"{name}.{path}".rstrip("."), module

    def __call__(self) -> None:
        for hook in tuple(HOOKS["before"]):
            hook(self, ())
        try:
            if self.forward is not None:
                self.forward()
            for child in self.children.values():
                child()
        except Exception:
            self._behind()
            raise
        self._behind()

    def _behind(self) -> None:
        for hook in tuple(HOOKS["after"]):
            hook(self, (), None)


NAMED_MODULES = Module.named_modules


class Net(Module):
    pass


class Metadata(threading.local):
    """Torch's word of each thread."""

    word = ""


class ModuleNamesTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.metadata, self.compiling = Metadata(), False
        self.seen: list[str] = []
        self.torch = fake_torch(
            __name__="torch_of_this_test",
            nn=SimpleNamespace(Module=Module),
            compiler=SimpleNamespace(is_compiling=lambda: self.compiling),
            _C=SimpleNamespace(_cuda_setMemoryMetadata=self.set, _cuda_getMemoryMetadata=lambda: self.metadata.word),
        )
        self.said: list[str] = []
        self.names = ModuleNames(self.torch, Faults(say=self.said.append))
        for hooks in HOOKS.values():
            self.addCleanup(hooks.clear)

    def set(self, word: str) -> None:
        self.metadata.word = word

    def allocate(self) -> None:
        self.seen.append(self.metadata.word)

    def net(self) -> Net:
        return Net(self.allocate, head=Module(self.allocate), body=Module(None, layer=Module(self.allocate)))

    def paths(self) -> list[str]:
        """Of what was allocated so far."""
        return [word[len(MODULE_WORD) :] if word.startswith(MODULE_WORD) else f"?{word}" for word in self.seen]

    def compiled(self) -> None:
        compiler = ModuleType("eval_frame")
        compiler.cached_backends = {1: "inductor"}  # type: ignore[attr-defined]
        sys.modules["torch_of_this_test._dynamo.eval_frame"] = compiler
        self.addCleanup(sys.modules.pop, "torch_of_this_test._dynamo.eval_frame", None)

    def assert_no_hook(self) -> None:
        self.assertEqual(HOOKS, {"before": [], "after": []})


class Naming(ModuleNamesTestCase):
    def test_each_module_has_its_path_and_the_word_from_before_comes_back(self) -> None:
        self.set("the user's")
        net = self.net()
        self.assertTrue(self.names.begin())
        net()
        self.allocate()
        self.names.end()
        self.assertEqual(self.paths(), ["Net", "Net.head", "Net.body.layer", "?the user's"])
        self.assertIsNone(self.names.missing)
        self.assert_no_hook()

    def test_a_model_that_was_not_given_is_named_when_it_is_called(self) -> None:
        self.names.begin()
        self.net()()
        Module(self.allocate)()
        self.assertEqual(self.paths(), ["Net", "Net.head", "Net.body.layer", "Module"])

    def test_where_modules_are_given_no_others_are_named(self) -> None:
        net = self.net()
        self.names.give([(weakref.ref(net), "Net"), (weakref.ref(net.children["head"]), "Net.head")])
        self.names.begin(names_others=False)
        net()
        Module(self.allocate)()
        self.assertEqual(self.paths(), ["Net", "Net.head", "Net", "?"])

    def test_a_word_that_an_earlier_recording_left_is_not_kept(self) -> None:
        net = self.net()
        earlier = ModuleNames(self.torch, Faults(say=self.said.append))
        earlier.begin()
        net.children["head"].forward = lambda: self.in_another_thread(earlier.end)
        net()
        self.allocate()
        self.assertEqual(self.paths(), ["Net", "Net.head", "Net.head"])
        self.names.begin()
        self.allocate()
        self.assertEqual(self.paths()[3:], ["?"])

    def in_another_thread(self, call: Callable[[], object]) -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    def test_a_second_model_of_a_class_has_a_number(self) -> None:
        models = [Net(self.allocate), Net(self.allocate)]
        self.names.begin()
        for model in models:
            model()
        self.assertEqual(self.paths(), ["Net", "Net#2"])

    def test_a_module_without_a_name_counts_to_the_one_that_called_it(self) -> None:
        other = Module(self.allocate)
        net = Net(other)
        self.names.begin()
        net()
        self.assertEqual(self.paths(), ["Net"])

    def test_a_module_within_one_that_wraps_it_keeps_its_name(self) -> None:
        net = self.net()
        self.names.begin()
        Module(None, module=net)()
        self.assertEqual(self.paths(), ["Net", "Net.head", "Net.body.layer"])

    def test_wrappers_that_their_author_does_not_know_have_no_place_in_paths(self) -> None:
        net = Net(self.allocate, head=Module(None, _checkpoint_wrapped_module=Module(self.allocate)))
        parallel = Module(self.allocate, module=Module(None, _orig_mod=net))
        self.names.begin()
        parallel()
        self.assertEqual(self.paths(), ["Net", "Net", "Net.head"])

    def test_each_thread_has_words_of_its_own(self) -> None:
        def again() -> None:
            self.allocate()
            net.children["head"]()
            self.allocate()

        net = self.net()
        net.forward = lambda: self.in_another_thread(again)
        self.names.begin()
        net()
        self.assertEqual(self.paths(), ["?", "Net.head", "?", "Net.head", "Net.body.layer"])

    def test_new_models_alone_are_named_up_to_a_bound(self) -> None:
        self.names.begin()
        models = [Net(self.allocate) for _ in range(MAX_ROOTS + 5)]
        for model in models:
            model()
        self.assertEqual(self.paths().count("?"), 5)

    def test_no_module_is_kept_alive(self) -> None:
        net = Net()
        self.names.begin()
        net()
        reference = weakref.ref(net)
        del net
        self.assertIsNone(reference())

    def test_a_new_module_at_the_address_of_a_dead_one_has_not_its_name(self) -> None:
        net = Net(None, head=Module())
        self.names.begin()
        net()
        known = self.names._words[id(net.children["head"])]
        net.children["head"] = Module(self.allocate)
        self.names._words[id(net.children["head"])] = known  # as if it had got the address
        net()
        self.assertEqual(self.paths(), ["Net"])


class Exceptions(ModuleNamesTestCase):
    def test_a_module_that_raises_gives_the_word_back(self) -> None:
        def fail() -> None:
            raise ValueError

        net = Net(None, head=Module(fail))
        self.names.begin()
        with self.assertRaises(ValueError):
            net()
        self.allocate()
        self.assertEqual(self.paths(), ["?"])

    def test_what_an_interrupt_left_behind_is_given_back_at_the_end(self) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        self.set("the user's")
        net = Net(None, head=Module(interrupt))
        self.names.begin()
        with self.assertRaises(KeyboardInterrupt):
            net()
        self.names.end()
        self.allocate()
        self.assertEqual(self.paths(), ["?the user's"])

    def test_what_an_inner_interrupt_left_behind_goes_with_the_outer_module(self) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        def outer() -> None:
            with self.assertRaises(KeyboardInterrupt):
                head()

        head = Module(interrupt)
        net = Net(outer, head=Module(self.allocate))
        net.children["lost"] = head
        self.names.begin()
        del net.children["lost"]
        net()
        self.allocate()
        self.assertEqual(self.paths(), ["Net.head", "?"])

    def test_a_word_that_the_model_sets_stays(self) -> None:
        net = Net(lambda: self.set("mine"))
        self.names.begin()
        net()
        self.allocate()
        self.assertEqual(self.paths(), ["?mine"])

    def test_an_error_of_ours_never_reaches_the_model_and_takes_the_hooks_away(self) -> None:
        net = Net(self.allocate)
        self.names.begin()
        self.torch._C._cuda_setMemoryMetadata = None
        self.names._set = None  # type: ignore[assignment]
        net()
        self.assertEqual(self.paths(), ["?"])
        self.assertIn("TypeError", str(self.names.missing))
        self.assertEqual(len(self.said), 1)
        self.assert_no_hook()

    def test_a_model_that_cannot_be_named_says_so(self) -> None:
        net = Net(self.allocate)
        del Module.named_modules
        self.addCleanup(setattr, Module, "named_modules", NAMED_MODULES)
        self.assertTrue(self.names.begin())
        net()
        self.assertEqual(self.paths(), ["?"])
        self.assertIn("AttributeError", str(self.names.missing))
        self.assert_no_hook()


class WhereThereAreNone(ModuleNamesTestCase):
    def test_an_older_torch(self) -> None:
        self.torch._C = SimpleNamespace()
        self.assertFalse(self.names.begin())
        self.assertEqual(self.names.missing, OLD_TORCH)
        self.assert_no_hook()

    def test_a_process_that_compiles(self) -> None:
        self.compiled()
        self.assertFalse(self.names.begin())
        self.assertEqual(self.names.missing, COMPILED)
        self.assert_no_hook()

    def test_a_process_that_begins_to_compile_loses_its_hooks_before_the_next_model_runs(self) -> None:
        net = Net(self.allocate)
        self.names.begin()
        net()
        self.compiled()
        net()
        self.assertEqual(self.paths(), ["Net", "?"])
        self.assertEqual(self.names.missing, COMPILED)
        self.assert_no_hook()

    def test_the_compiler_finds_nothing_in_the_hooks(self) -> None:
        net = Net(self.allocate)
        self.names.begin()
        self.compiling = True
        net()
        self.assertEqual(self.paths(), ["?"])

    def test_a_forked_child_sets_nothing(self) -> None:
        self.names.begin()
        self.names._process += 1  # as it is there
        Net(self.allocate)()
        self.assertEqual(self.paths(), ["?"])
