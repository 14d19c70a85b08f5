# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import queue
import sys
import threading
import types
import unittest
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional
from unittest import mock

from fake_tensors import FunctionBase, Module, Node, Optimizer, Parameter, Tensor, fake_tensor_torch
from holder_searches import BLOCK, FIRST, address, at_once, search_here, searched, tensor, ticking
from tidegauge.core.evidence.rank_evidence import KEPT_BY_CTX, Holder, HolderKind, HolderSearch
from tidegauge.probe.evidence.rank_facts import read_facts
from tidegauge.probe.holders import looks, tensors
from tidegauge.probe.holders.finds import Finds
from tidegauge.probe.holders.from_names import MAX_AT_ONCE, MAX_UNITS_AT_ONCE
from tidegauge.probe.holders.graphs import Graphs
from tidegauge.probe.holders.pace import MAX_SLICE_S, Budget, NoBoundaryError, OutOfWorkError, Slices, Work
from tidegauge.probe.holders.ref_paths import RefPath, RefStep, Via, trail_of
from tidegauge.probe.holders.search import MAX_UNITS, search_holders
from tidegauge.probe.holders.tensors import Tensors, WantedBlocks
from tidegauge.probe.requests import RequestRefusedError
from waiting import PATIENCE_S

FILE = "test_probe_holders.py"
LIBRARY: dict[str, Any] = {}
"""Stands for the state of a library: the search does not begin here, the module being none of the user's."""


class Record(NamedTuple):
    output: Tensor
    step: int


class Trainer:
    kept_by_all: list[Any] = []  # noqa: RUF012  # as jobs do by mistake

    def __init__(self) -> None:
        self.history: list[Any] = []


class Slotted:
    __slots__ = ("kept", "unset")

    def __init__(self) -> None:
        self.kept: list[Any] = []


class Partner:
    """Of two that know each other."""

    def __init__(self, output: Optional[Tensor] = None) -> None:
        self.output = output
        self.other: Optional[Partner] = None


class HolderTestCase(unittest.TestCase):
    def held(self, *numbers: int) -> Holder:
        """The one holder of all of these blocks."""
        found = searched(numbers)
        self.assertIsNone(found.problem)
        self.assertEqual(found.found_bytes, len(numbers) * BLOCK, found)
        self.assertEqual(len(found.holders), 1, found)
        return found.holders[0]


class NamesTest(HolderTestCase):
    def test_a_list_is_told_by_name_function_and_length(self) -> None:
        losses = [tensor(number) for number in range(5)]
        holder = self.held(*range(5))
        function = holder.where.function if holder.where else ""
        self.assertTrue(function.endswith("test_a_list_is_told_by_name_function_and_length"))
        self.assertEqual(holder.path, f"{FILE} {function}(): losses (list, 5 items) -> Tensor[8,128] float32")
        self.assertEqual((holder.kind, holder.name, holder.container, holder.items, holder.tensors),
                         (HolderKind.CONTAINER, "losses", "list", len(losses), 5))  # fmt: skip
        self.assertEqual((holder.by_size_bytes, set(holder.blocks)), (0, set(map(address, range(5)))))

    def test_a_single_tensor_is_told_by_its_variable(self) -> None:
        output = tensor(1)
        holder = self.held(1)
        self.assertEqual((holder.kind, holder.name), (HolderKind.FRAME, "output"))
        self.assertEqual(output.address, address(1))

    def test_attributes_are_told_by_class(self) -> None:
        trainer, slotted = Trainer(), Slotted()
        trainer.history.append([tensor(1)])
        slotted.kept.append(tensor(2))
        self.assertIn("trainer -> Trainer.history (list, 1 item) -> list (1 item) -> Tensor", self.held(1).path)
        self.assertEqual(self.held(2).name, "Slotted.kept")

    def test_attributes_of_a_class(self) -> None:
        self.addCleanup(Trainer.kept_by_all.clear)
        Trainer.kept_by_all.append(tensor(1))
        holder = self.held(1)
        self.assertEqual(holder.path, f"{FILE}: Trainer.kept_by_all (list, 1 item) -> Tensor[8,128] float32")

    def test_namespaces_and_tensors_in_tensors(self) -> None:
        class Wrapper(Tensor):
            def __init__(self, local: Tensor) -> None:
                super().__init__(0, 1)
                self.local = local

        namespace = SimpleNamespace(kept=[tensor(1)])
        wrapped = [Wrapper(tensor(number)) for number in (2, 3)]
        self.assertIn("namespace -> SimpleNamespace.kept (list, 1 item) -> Tensor", self.held(1).path, namespace)
        self.assertIn("wrapped (list, 2 items) -> Wrapper.local -> Tensor", self.held(2, 3).path, wrapped)

    def test_a_list_of_a_module_without_a_file_is_told_with_its_modules_name(self) -> None:
        callbacks = types.ModuleType("callbacks_in_c")
        callbacks.kept = [tensor(1)]  # type: ignore[attr-defined]
        sys.modules["callbacks_in_c"] = callbacks
        self.addCleanup(sys.modules.pop, "callbacks_in_c")
        del callbacks
        self.assertEqual(self.held(1).path, "callbacks_in_c.kept (list, 1 item) -> Tensor[8,128] float32")

    def test_attributes_of_torchs_own_tensors(self) -> None:
        model = Module()
        model._parameters["weight"] = Parameter(FIRST // 2, 1)
        vars(model._parameters["weight"])["notes"] = {"gradients": [tensor(1)]}
        self.assertIn("Module.weight -> Parameter.notes (dict, 1 item)['gradients'] (list, 1 item)", self.held(1).path)

    def test_a_long_chain_of_tensors(self) -> None:
        velocity = tensor(0)
        for number in range(1, 1500):
            before, velocity = velocity, tensor(number)
            vars(velocity)["previous"] = before
        del before
        holder = self.held(*range(1499))
        while velocity is not None:  # Python itself would recurse to free it
            velocity = vars(velocity).pop("previous", None)
        self.assertIn("velocity -> Tensor.previous (repeated 1,49", holder.path)

    def test_a_tensor_without_attributes_is_given_no_dict(self) -> None:
        plain = Tensor(FIRST // 2, 1)
        gc.collect()  # tracks its shape no more
        before = gc.get_referents(plain)
        searched([1])
        self.assertEqual(list(map(id, gc.get_referents(plain))), list(map(id, before)))

    def test_a_key_is_told_where_it_is_the_same_for_all(self) -> None:
        results = [{"step": number, "output": tensor(number)} for number in range(3)]
        self.assertIn("results (list, 3 items) -> dict (2 items)['output'] -> Tensor", self.held(0, 1, 2).path, results)

    def test_a_key_that_is_one_of_several_is_not_told(self) -> None:
        results = {"one": tensor(1), "two": tensor(2)}
        self.assertIn("results (dict, 2 items) -> Tensor", self.held(1, 2).path, results)

    def test_all_built_in_containers(self) -> None:
        held: dict[str, Any] = {"a": deque([tensor(1)]), "b": {tensor(2)}, "c": (tensor(3), 1), "d": {tensor(4): 1}}
        for number, text in enumerate(("['a'] (deque, 1 item)", "['b'] (set, 1 item)", "['c'] (tuple, 2 items)"), 1):
            self.assertIn(f"held (dict, {len(held)} items){text} -> Tensor", self.held(number).path)
        self.assertIn("['d'] (dict, 1 item) -> Tensor", self.held(4).path)

    def test_records_are_one_holder_beyond_any_number(self) -> None:
        records = [Record(tensor(number), number) for number in range(300)]
        holder = self.held(*range(300))
        self.assertIn(f"records (list, {len(records)} items) -> Record.output -> Tensor", holder.path)

    def test_objects_of_one_class_are_one_holder_beyond_any_number(self) -> None:
        partners = [Partner(tensor(number)) for number in range(300)]
        self.assertIn(f"partners (list, {len(partners)} items) -> Partner.output", self.held(*range(300)).path)

    def test_a_view_is_told_with_what_it_keeps(self) -> None:
        views = [Tensor(address(1), 4)]
        self.assertTrue(self.held(1).path.endswith("Tensor[4] float32, a view of a 4.0 KiB storage"), views)

    def test_a_tensor_that_begins_within_its_block_is_found(self) -> None:
        inside = [Tensor(address(1) + 512, 8)]
        self.assertEqual(self.held(1).name, "inside", inside)

    def test_indices_and_values_of_a_sparse_tensor_are_held_by_what_holds_it(self) -> None:
        graphs = [Tensor(0, 9, parts=(address(2 * number), address(2 * number + 1))) for number in range(3)]
        holder = self.held(*range(6))
        self.assertIn(f"graphs (list, {len(graphs)} items) -> Tensor[9]", holder.path)

    def test_other_threads(self) -> None:
        ready, done = threading.Event(), threading.Event()

        def collect() -> None:
            collected = [tensor(1)]
            ready.set()
            done.wait(PATIENCE_S)
            collected.clear()

        thread = threading.Thread(target=collect, name="collector")
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(done.set)
        ready.wait(PATIENCE_S)
        holder = self.held(1)
        self.assertEqual(holder.kind, HolderKind.THREAD)
        self.assertIn("collect() in thread collector: collected (list, 1 item)", holder.path)


class ReplacedTest(HolderTestCase):
    def setUp(self) -> None:
        gc.collect()  # cycles of the tests before have tensors at the same made-up addresses
        self.model = Module()
        self.steps = 0

    def step(self, rows: int) -> None:
        """The buffer in the model is made anew."""
        self.steps += 1
        self.model._buffers["seen"] = Tensor(FIRST * 2 + self.steps * (1 << 20), rows, 1 << 14)

    def found(self, rows: int) -> HolderSearch:
        """For a buffer of 64 KiB that is there no more."""

        def at_boundary(call: Callable[[], bool]) -> bool:
            self.step(rows)
            return call()

        self.step(1)
        return search_here([(FIRST, 1 << 16)], at_boundary=at_boundary)

    def test_a_buffer_that_is_made_anew_is_found_by_its_size(self) -> None:
        (holder,) = self.found(1).holders
        self.assertIn("Module.seen -> Tensor[1,16384]", holder.path)
        self.assertIn("made anew in each step", holder.detail or "")
        self.assertEqual((holder.by_size_bytes, holder.blocks), (1 << 16, ()))

    def test_what_passes_through_a_queue_of_constant_length_holds_no_block_of_its_size(self) -> None:
        window: deque[Tensor] = deque(maxlen=4)

        def at_boundary(call: Callable[[], bool]) -> bool:
            for _ in range(4):
                self.steps += 1
                window.append(Tensor(FIRST * 2 + self.steps * (1 << 20), 1, 1 << 14))
            return call()

        found = search_here([(FIRST * 3 + (number << 16), 1 << 16) for number in range(4)], at_boundary=at_boundary)
        self.assertEqual([holder.kind for holder in found.holders], [HolderKind.NATIVE])

    def test_holder_search_ignores_a_tensor_of_another_size(self) -> None:
        self.assertEqual(self.found(2).holders[0].kind, HolderKind.NATIVE)


class CodeTest(HolderTestCase):
    def test_closures(self) -> None:
        def make() -> Callable[[], int]:
            kept = [tensor(1)]
            return lambda: len(kept)

        count = make()
        holder = self.held(1)
        self.assertEqual((holder.kind, holder.container), (HolderKind.CLOSURE, "list"))
        self.assertIn("closure's kept (list, 1 item)", holder.path)
        self.assertEqual(count(), 1)

    def test_generators(self) -> None:
        def running() -> Generator[int, None, None]:
            kept = [tensor(1)]
            yield len(kept)
            kept.clear()

        generator = running()
        next(generator)
        self.assertIn("generator -> kept in running() (list, 1 item)", self.held(1).path)

    def test_defaults_partials_and_caches(self) -> None:
        def default(kept: Sequence[Any] = (tensor(1),)) -> int:
            return len(kept)

        partial = functools.partial(default, [tensor(2)])

        @functools.lru_cache(maxsize=10)
        def cached(number: int) -> Tensor:
            return tensor(number)

        cached(3)
        self.assertIn("default of default (tuple, 1 item)", self.held(1).path)
        self.assertIn("partial -> partial's argument", self.held(2).path)
        self.assertIn("lru_cache of cached", self.held(3).path)
        self.assertEqual((default(), partial()), (1, 1))

    def test_objects_of_methods_that_are_written_in_c(self) -> None:
        deferred = [[tensor(1)].copy]
        path = "deferred (list, 1 item) -> {} -> method's object (list, 1 item) -> Tensor"
        self.assertIn(path.format("builtin_function_or_method"), self.held(1).path)
        deferred[0] = [tensor(2)].__len__  # type: ignore[assignment]
        self.assertIn(path.format("method-wrapper"), self.held(2).path)

    def test_arguments_of_kept_warnings_are_no_frames(self) -> None:
        caught = [UserWarning(tensor(number), "is not finite") for number in range(6)]
        holder = self.held(*range(6))
        self.assertEqual((holder.kind, holder.items), (HolderKind.CONTAINER, len(caught)))
        self.assertIn("UserWarning.args", holder.path)

    def test_kept_exceptions(self) -> None:
        errors = []

        def failing() -> None:
            activation = tensor(1)
            raise ValueError(activation.size())

        try:
            failing()
        except ValueError as error:
            errors.append(error)
        holder = self.held(1)
        self.assertEqual((holder.kind, holder.detail), (HolderKind.EXCEPTION, "ValueError kept with its traceback"))
        self.assertIn("errors (list, 1 item) -> ValueError -> traceback -> activation in failing() ->", holder.path)

    def test_hooks_of_modules_by_the_parts_name(self) -> None:
        def hook_for() -> Callable[[], int]:
            kept = [tensor(1)]
            return lambda: len(kept)

        model, layer = Module(), Module()
        model._modules["layers"] = layer
        layer._modules["3"] = Module()
        layer._modules["3"]._forward_hooks[0] = hook_for()
        del layer
        holder = self.held(1)
        self.assertEqual(holder.kind, HolderKind.HOOK)
        self.assertIn("model -> Module.layers.3 -> forward hook -> ", holder.path)

    def test_a_named_list_that_a_hook_fills_is_told_as_a_hooks(self) -> None:
        features = [tensor(1)]
        model = Module()
        model._forward_hooks[0] = lambda: features
        holder = self.held(1)
        self.assertEqual((holder.kind, holder.name), (HolderKind.HOOK, "features"))
        self.assertIn("model -> forward hook", holder.detail or "")

    def test_a_list_of_an_object_with_a_method_as_a_hook_is_not_the_hooks(self) -> None:
        trainer, model = Trainer(), Module()
        trainer.history.append(tensor(1))
        model._forward_hooks[0] = trainer.__init__  # type: ignore[misc]  # any bound method
        self.assertEqual(self.held(1).kind, HolderKind.CONTAINER)

    def test_optimizers_and_buffers(self) -> None:
        model, optimizer = Module(), Optimizer()
        model._buffers["seen"] = tensor(1)
        optimizer.state[Tensor(64, 1)] = {"exp_avg": tensor(2)}
        self.assertIn("model -> Module.seen -> Tensor", self.held(1).path)
        holder = self.held(2)
        self.assertEqual(holder.kind, HolderKind.OPTIMIZER)
        self.assertIn("optimizer -> Optimizer.state (dict, 1 item)['exp_avg'] -> Tensor", holder.path)


class Counted(deque):  # type: ignore[type-arg]  # Python 3.9 knows no parameters of a deque at run time
    """Says that it is never full, to whoever asks it in Python."""

    asked = 0

    @property
    def maxlen(self) -> None:
        Counted.asked += 1

    def __len__(self) -> int:
        Counted.asked += 1
        raise RuntimeError

    def __getattribute__(self, name: str) -> Any:
        Counted.asked += 1
        return super().__getattribute__(name)


class HostileQueue(queue.Queue):  # type: ignore[type-arg]  # as above
    def _put(self, item: Any) -> None:
        self.queue.append(item)


class Info:
    """What a cache is made to say of itself by somebody."""

    made = 0

    def __init__(self, *_: Any) -> None:
        Info.made += 1


class BoundTest(HolderTestCase):
    def bound(self, *numbers: int) -> tuple[str, int, int, int]:
        """Kind, items now and at most, and how many of them hold these blocks."""
        bound = self.held(*numbers).bound
        assert bound is not None
        self.assertEqual(bound.held_bytes, len(numbers) * BLOCK)
        return bound.kind, bound.items, bound.most_items, bound.found_items

    def test_a_deque_with_maxlen(self) -> None:
        window = deque([tensor(number) for number in range(9)], maxlen=12)
        self.assertEqual(self.bound(3, 4, 5), ("deque", len(window), 12, 3))

    def test_a_deque_without_one(self) -> None:
        window = deque([tensor(1)])
        self.assertIsNone(self.held(1).bound, window)

    def test_a_subclass_is_read_by_its_base_and_never_asked(self) -> None:
        window = Counted((tensor(number) for number in range(4)), 7)
        Counted.asked = 0
        self.assertEqual(self.bound(0, 1), ("deque", 4, 7, 2))
        self.assertEqual(Counted.asked, 0, type(window))

    def test_an_item_of_several_tensors_is_one(self) -> None:
        window = deque([{"x": tensor(2 * number), "y": [tensor(2 * number + 1)]} for number in range(5)], maxlen=8)
        found = searched([0, 1, 2, 3])
        bounds = {holder.bound for holder in found.holders}
        self.assertEqual(len(bounds), 1, found)
        bound = bounds.pop()
        assert bound is not None
        self.assertEqual((bound.items, bound.found_items, bound.held_bytes), (len(window), 2, 4 * BLOCK))
        self.assertEqual((bound.least_item_bytes, bound.most_item_bytes), (2 * BLOCK, 2 * BLOCK))

    def test_a_cache_with_maxsize(self) -> None:
        @functools.lru_cache(maxsize=10)
        def cached(number: int) -> Tensor:
            return tensor(number)

        for number in range(6):
            cached(number)
        self.assertEqual(self.bound(3, 4), ("lru_cache", 6, 10, 2))

    def test_arguments_and_answer_of_a_cache_are_one_item(self) -> None:
        @functools.lru_cache(maxsize=10)
        def cached(given: Tensor) -> Tensor:
            return tensor(100 + (given.address - FIRST) // BLOCK)

        for number in range(6):
            cached(tensor(number))
        found = searched([2, 3, 102, 103])
        bounds = {holder.bound for holder in found.holders}
        self.assertEqual(len(bounds), 1, found)
        bound = bounds.pop()
        assert bound is not None
        self.assertEqual((bound.items, bound.found_items, bound.held_bytes), (6, 2, 4 * BLOCK))
        self.assertEqual(bound.most_item_bytes, 2 * BLOCK)

    def test_a_cache_without_maxsize(self) -> None:
        @functools.cache
        def cached(number: int) -> Tensor:
            return tensor(number)

        cached(3)
        self.assertIsNone(self.held(3).bound)

    def test_a_cache_that_speaks_through_somebody_elses_class_is_not_asked(self) -> None:
        make: Any = type(functools.lru_cache(lambda: None))
        cached = make(tensor, 10, False, Info)
        cached(3)
        Info.made = 0
        holder = self.held(3)
        self.assertIsNone(holder.bound)
        self.assertIn("lru_cache of a function -> ", holder.path)
        self.assertEqual(Info.made, 0)

    def test_a_queue_with_maxsize(self) -> None:
        for made in (queue.Queue, queue.LifoQueue):
            ready: Any = made(16)
            for number in range(4):
                ready.put(tensor(number))
            self.assertEqual(self.bound(1, 2), ("Queue", 4, 16, 2))

    def test_a_queue_of_another_class_or_without_maxsize_has_none(self) -> None:
        ready: Any
        for ready in (HostileQueue(16), queue.Queue()):
            ready.put(tensor(1))
            self.assertIsNone(self.held(1).bound, ready)

    def test_a_list_that_is_filled_from_its_beginning(self) -> None:
        slots: list[Any] = [tensor(number) for number in range(5)] + [None] * 11
        self.assertEqual(self.bound(1, 2, 3), ("list", 5, len(slots), 3))

    def test_a_list_that_is_appended_to_has_none(self) -> None:
        for more in ([], [None], [None, tensor(7), None, None]):
            outputs: list[Any] = [None, None, tensor(1), *more]
            self.assertIsNone(self.held(1).bound, outputs)

    def test_deques_that_may_have_been_made_meanwhile_have_none(self) -> None:
        sessions = {number: deque([tensor(number)], maxlen=50) for number in range(6)}
        self.assertIsNone(self.held(2, 3, 4).bound, sessions)

    def test_deques_that_were_there_before_are_counted_together(self) -> None:
        buffers = {
            name: deque([tensor(10 * at + number) for number in range(6)], maxlen=20)
            for at, name in enumerate(("observations", "actions"))
        }
        self.assertEqual(self.bound(4, 5, 14, 15), ("deque", 12, 40, 4), buffers)

    def test_a_bounded_container_that_only_the_heap_knows(self) -> None:
        LIBRARY["window"] = deque([tensor(number) for number in range(9)], maxlen=12)
        try:
            self.assertEqual(self.bound(3, 4), ("deque", 9, 12, 2))
        finally:
            LIBRARY.clear()


class CycleTest(HolderTestCase):
    def setUp(self) -> None:
        self.addCleanup(gc.enable)
        self.addCleanup(gc.collect)
        gc.disable()

    def test_a_cycle_is_told_by_its_attributes(self) -> None:
        for number in range(6):
            one, two = Partner(tensor(number)), Partner()
            one.other, two.other = two, one
            del one, two
        holder = self.held(*range(6))
        self.assertEqual((holder.kind, holder.name, holder.tensors), (HolderKind.CYCLE, "Partner.output", 6))
        self.assertIn("holds itself through Partner.other", holder.detail or "")

    def test_a_graph_that_happens_to_fit_does_not_win_over_a_cycle(self) -> None:
        for number in range(6):
            one, two = Partner(tensor(number)), Partner()
            one.other, two.other = two, one
            del one, two
        under_way = Tensor(FIRST // 2, 1, grad_fn=Node("GeluBackward0", (8, 128), Node("GeluBackward0", (8, 128))))
        self.assertEqual(self.held(*range(6)).kind, HolderKind.CYCLE, under_way)

    def test_ctx_that_keeps_its_own_output_is_a_cycle_that_only_cpp_closes(self) -> None:
        class SwishBackward(FunctionBase):
            def __init__(self, output: Tensor) -> None:
                self.y = output

        kept = []
        for number in range(6):
            ctx = SwishBackward(tensor(number))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(ctx))  # as a node of C++'s does
            kept.append(weakref.ref(ctx))
            del ctx
        holder = self.held(*range(6))
        for reference in kept:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(reference()))
        self.assertEqual((holder.kind, holder.name), (HolderKind.CYCLE, "SwishBackward.y"))
        self.assertEqual(holder.detail, KEPT_BY_CTX)

    def test_a_list_of_ctx_holds_by_the_list(self) -> None:
        class SwishBackward(FunctionBase):
            def __init__(self, output: Tensor) -> None:
                self.y = output

        contexts = [SwishBackward(tensor(number)) for number in range(6)]
        holder = self.held(*range(6))
        self.assertEqual((holder.kind, holder.items), (HolderKind.CONTAINER, len(contexts)))

    def test_a_chain_that_ends_at_nothing_is_no_cycle(self) -> None:
        alone = Trainer()
        alone.history.append(tensor(1))
        nowhere = weakref.WeakValueDictionary({"alone": alone})
        found = searched([1])
        self.assertEqual(found.holders[0].kind, HolderKind.CONTAINER, nowhere)
        del alone
        gc.collect()
        found = searched([1])
        self.assertEqual((found.holders[0].kind, found.found_bytes), (HolderKind.NATIVE, 0))


def linear_node(*, input_needs_gradient: bool) -> Node:
    """Of a ``Linear`` from (8, 128), a wanted block's size, to (8, 3)."""
    strides = (128, 1) if input_needs_gradient else ()
    return Node(
        "AddmmBackward0", (8, 3),
        _saved_mat1_sym_sizes=(8, 128), _saved_mat1_sym_strides=strides,
        _saved_mat2_sym_sizes=(128, 3), _saved_mat2_sym_strides=(1, 128),
    )  # fmt: skip


class GraphTest(HolderTestCase):
    def test_holder_search_attributes_saved_tensors_to_the_tensors_that_keep_the_graph(self) -> None:
        losses = []
        for number in range(4):
            inner = Node("GeluBackward0", (8, 128), Node("ViewBackward0", (8, 128)))
            losses.append(Tensor(FIRST // 2 + number, 1, grad_fn=Node("MeanBackward0", (), inner)))
        holder = self.held(*range(4))
        self.assertEqual((holder.kind, holder.tensors, holder.items), (HolderKind.AUTOGRAD, 4, len(losses)))
        self.assertIn("losses (list, 4 items) -> Tensor[1] float32 -> grad_fn MeanBackward0, 3 nodes each", holder.path)
        self.assertIn("GeluBackward0", holder.detail or "")
        self.assertNotIn("ViewBackward0", holder.detail or "")
        self.assertEqual((holder.by_size_bytes, holder.blocks), (4 * BLOCK, ()))

    def test_blocks_of_other_sizes_are_not_a_graphs(self) -> None:
        loss = Tensor(FIRST // 2, 1, grad_fn=Node("GeluBackward0", (8, 99)))
        found = searched([1])
        self.assertEqual((found.holders[0].kind, found.found_bytes), (HolderKind.NATIVE, 0), loss)

    def test_holder_search_counts_a_linear_layers_input_without_gradient_to_its_graph(self) -> None:
        losses = []
        for number in range(4):
            inner = linear_node(input_needs_gradient=False)
            losses.append(Tensor(FIRST // 2 + number, 1, grad_fn=Node("MeanBackward0", (), inner)))
        holder = self.held(*range(4))
        self.assertEqual((holder.kind, holder.by_size_bytes, len(losses)), (HolderKind.AUTOGRAD, 4 * BLOCK, 4))
        self.assertIn("AddmmBackward0", holder.detail or "")

    def test_a_linear_layers_input_with_a_gradient_is_counted_to_the_node_that_output_it(self) -> None:
        inner = linear_node(input_needs_gradient=True)
        loss = Tensor(FIRST // 2, 1, grad_fn=Node("MeanBackward0", (), inner))
        found = searched([1])
        self.assertEqual((found.holders[0].kind, found.found_bytes), (HolderKind.NATIVE, 0), loss)

    def test_no_more_blocks_than_nodes(self) -> None:
        loss = Tensor(FIRST // 2, 1, grad_fn=Node("GeluBackward0", (8, 128)))
        found = {holder.kind: holder.held_bytes for holder in searched([1, 2, 3, 4, 5]).holders}
        self.assertEqual(found, {HolderKind.NATIVE: 4 * BLOCK, HolderKind.AUTOGRAD: BLOCK}, loss)

    def test_a_long_chain_is_no_recursion(self) -> None:
        node = Node("GeluBackward0", (8, 128))
        for _ in range(5000):
            node = Node("AddBackward0", (), node)
        total = Tensor(FIRST // 2, 1, grad_fn=node)
        self.assertIn("total -> Tensor[1] float32 -> grad_fn AddBackward0, 5,001 nodes", self.held(1).path, total)
        while node.next_functions:  # Python itself would recurse to free it
            node, node.next_functions = node.next_functions[0][0], ()

    def test_attributes_of_a_functions_context(self) -> None:
        class DoubledBackward(FunctionBase, Node):
            scratch: Any

        node = DoubledBackward("DoubledBackward", ())
        node.scratch = tensor(1)
        kept = [Tensor(FIRST // 2, 1, grad_fn=node)]
        del node
        self.assertIn("kept (list, 1 item) -> Tensor -> grad_fn -> DoubledBackward.scratch", self.held(1).path, kept)


class Hostile(type):
    """A class that answers nothing without saying so."""

    ran: list[str] = []  # noqa: RUF012  # shared on purpose

    def __instancecheck__(cls, instance: object) -> bool:
        Hostile.ran.append("__instancecheck__")
        return True

    def __hash__(cls) -> int:
        Hostile.ran.append("__hash__ of a class")
        return type.__hash__(cls)

    def __eq__(cls, other: object) -> bool:
        Hostile.ran.append("__eq__ of a class")
        return True


def _ran(name: str) -> Callable[..., Any]:
    def method(self: object, *arguments: object) -> Any:
        Hostile.ran.append(name)
        raise RuntimeError(name)

    return method


class HostileList(list, metaclass=Hostile):  # type: ignore[type-arg]
    __iter__ = __len__ = __getattribute__ = __repr__ = __eq__ = _ran("list")


class HostileDict(dict, metaclass=Hostile):  # type: ignore[type-arg]
    __iter__ = __len__ = items = __getattribute__ = __repr__ = _ran("dict")


class HostileObject(metaclass=Hostile):
    __getattribute__ = __getattr__ = __repr__ = __len__ = __bool__ = _ran("object")
    __class__ = property(_ran("__class__"))


class GuestTest(HolderTestCase):
    def test_no_line_of_a_foreign_class_is_run(self) -> None:
        strange = HostileObject()
        object.__setattr__(strange, "kept", HostileDict({"key": HostileList([tensor(1)])}))
        Hostile.ran.clear()
        holder = self.held(1)
        self.assertIn("strange -> HostileObject.kept (HostileDict, 1 item)['key'] (HostileList, 1 item)", holder.path)
        self.assertEqual(Hostile.ran, [])

    def test_holder_search_leaves_no_references_behind(self) -> None:
        trainer, gone = Trainer(), []
        output = tensor(1)
        kept = [tensor(2)]
        trainer.history.append(tensor(3))
        for one in (output, kept[0], trainer.history[0], trainer):
            gone.append(weakref.ref(one))
        del one
        self.assertEqual(searched([1, 2, 3]).found_bytes, 3 * BLOCK)
        del output, kept, trainer
        self.assertEqual([reference() for reference in gone], [None] * 4)

    def test_variables_of_a_step_die_with_it_while_a_search_goes_on(self) -> None:
        self.addCleanup(gc.enable)
        gc.disable()  # as training loops do that collect garbage at steps of their own choice
        gone: list[weakref.ref[Tensor]] = []

        def at_boundary(call: Callable[[], bool]) -> bool:
            output = tensor(5, grad_fn=Node("MulBackward0", (8, 128)))
            gone.append(weakref.ref(output))
            return call()

        kept = [[number] for number in range(2_000)]
        for look in (
            lambda: search_here([(address(1), BLOCK)], at_boundary=at_boundary),
            lambda: read_facts(fake_tensor_torch(), pause=lambda: None, at_boundary=at_boundary, clock_s=ticking()),
        ):
            gone.clear()
            look()
            self.assertGreater(len(gone), 3, len(kept))
            self.assertEqual([reference() for reference in gone], [None] * len(gone))

    def test_a_tensor_that_has_the_id_of_one_that_died_is_another(self) -> None:
        finds = Finds(Tensors(fake_tensor_torch()), WantedBlocks([(address(2), BLOCK)]), Graphs(fake_tensor_torch()))
        trail = trail_of([RefStep(Via.LOCAL, "output", "Tensor")])
        many = [tensor(1) for _ in range(100)]
        self.assertEqual([finds.tensor(one, trail) for one in (*many, *many)], [True] * 100 + [False] * 100)
        ids = set(map(id, many))
        many.clear()
        others = [tensor(2) for _ in range(100)]
        same = [one for one in others if id(one) in ids]
        self.assertTrue(same)
        self.assertFalse(finds.was_met(same[0]))
        self.assertTrue(finds.tensor(same[0], trail))
        self.assertEqual(finds.blocks, {})

    def test_the_collector_is_left_as_it_was(self) -> None:
        gc.collect()  # in which Python 3.12 freezes immortal objects that another test has unfrozen
        before = gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count(), list(gc.callbacks)
        kept = [tensor(1)]
        self.held(1)
        self.assertEqual(
            (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count(), list(gc.callbacks)),
            before,
            kept,
        )

    def test_holder_search_finds_frozen_objects(self) -> None:
        kept = [tensor(1)]
        self.addCleanup(gc.unfreeze)
        gc.freeze()
        self.assertEqual(self.held(1).name, "kept", kept)

    def test_a_dict_that_the_program_has_of_its_variables_is_not_emptied(self) -> None:
        kept = [tensor(1)]
        variables = locals()
        self.held(1)
        self.assertIs(variables["kept"], kept)

    def test_holder_search_stops_at_its_time_limit_with_partial_results(self) -> None:
        kept = [tensor(1)]
        found = searched([1, 2], most_s=0.0)
        self.assertIn("not finished after 0 s", found.problem or "", kept)
        self.assertEqual(found.wanted_bytes, 2 * BLOCK)

    def test_holder_search_raises_what_pause_raises(self) -> None:
        class StoppedError(Exception):
            pass

        def pause() -> None:
            raise StoppedError

        with self.assertRaises(StoppedError):
            search_here([(FIRST, BLOCK)], pause=pause)

    def test_holder_search_runs_in_short_slices_at_step_boundaries(self) -> None:
        slices: list[int] = []

        def at_boundary(call: Callable[[], bool]) -> bool:
            slices.append(threading.get_ident())
            return call()

        kept = [[number] for number in range(20_000)]
        found = searched([1], at_boundary=at_boundary)
        self.assertGreater(len(slices), 3, len(kept))
        self.assertGreater(len(slices), found.objects // 100)  # 8 ms: 8 units for each look at the clock, 9 at most
        self.assertGreater(found.objects, len(kept) // 4)
        self.assertGreater(found.longest_pause_s, 0)
        self.assertLess(found.longest_pause_s, MAX_SLICE_S)

    def test_holder_search_tells_between_slices_what_it_has_found(self) -> None:
        kept = [Trainer() for _ in range(50)]
        for number, one in enumerate(kept):
            one.history.append(tensor(number))
        del one
        told: list[HolderSearch] = []
        means: dict[str, Any] = {"pause": lambda: None, "at_boundary": at_once}
        blocks = [(address(number), BLOCK) for number in range(50)]

        def so_far(took_s: float, sum_up: Callable[[], HolderSearch]) -> None:
            told.extend([sum_up(), sum_up()])
            self.assertLessEqual(took_s, told[-1].took_s)

        hours = itertools.count()
        found = search_holders(
            fake_tensor_torch(), blocks, **means, so_far=so_far, clock_s=lambda: next(hours) * 3600.0
        )  # fmt: skip
        alone = search_holders(fake_tensor_torch(), blocks, **means, clock_s=ticking())
        self.assertEqual((found.holders, found.found_bytes), (alone.holders, 50 * BLOCK), len(kept))
        self.assertEqual(told[0].holders, ())
        held = [(one.holders[0].name, one.found_bytes) for one in told if one.holders]
        self.assertEqual({name for name, _ in held}, {"kept"})
        self.assertEqual(held, sorted(held))
        self.assertGreater(len(set(held)), 1)
        self.assertRegex(told[-1].problem or "", r"still running after [\d,]+ references")
        self.assertFalse(told[-1].unfinished)
        self.assertLess(len(held), sum(one.found_bytes > 0 for one in told), "what holds little is not told yet")

    def test_holder_search_ends_by_its_work_and_never_by_the_length_of_a_step(self) -> None:
        """A step of an hour each; of the second search there is too much."""
        kept = [[tensor(number)] for number in range(50)]
        clock = itertools.count()

        def found(most_units: int = MAX_UNITS) -> HolderSearch:
            return search_holders(
                fake_tensor_torch(), [(address(49), BLOCK)], pause=lambda: None, at_boundary=at_once,
                clock_s=lambda: next(clock) * 3600.0, most_units=most_units,
            )  # fmt: skip

        whole = found()
        self.assertEqual((whole.holders[0].name, whole.problem, whole.unfinished), ("kept", None, False), len(kept))
        self.assertGreater(whole.took_s, 86_400)
        cut = found(most_units=40)
        self.assertTrue(cut.unfinished)
        self.assertRegex(cut.problem or "", r"not finished after \d+ references")
        self.assertLess(cut.objects, 60)

    def test_a_job_that_makes_no_more_steps_ends_the_search(self) -> None:
        clock = itertools.count()

        def at_boundary(call: Callable[[], bool]) -> bool:
            raise RequestRefusedError("late", "no step")

        found = search_holders(
            fake_tensor_torch(), [(FIRST, BLOCK)], pause=lambda: None, at_boundary=at_boundary,
            clock_s=lambda: next(clock) * 100.0,
        )  # fmt: skip
        self.assertEqual((found.problem, found.unfinished), ("no training step ended in the meantime", True))

    def test_a_search_whose_time_is_up_between_slow_steps_does_not_say_that_there_were_none(self) -> None:
        clock, asked = itertools.count(), itertools.count()

        def at_boundary(call: Callable[[], bool]) -> bool:
            if next(asked):
                raise RequestRefusedError("late", "no step yet")
            return call()

        def endless() -> Work[None]:
            while True:
                yield False

        def why(at_boundary: Callable[[Callable[[], bool]], bool]) -> str:
            slices = Slices(
                fake_tensor_torch(), Budget(MAX_UNITS, most_s=15.0, patience_s=30.0), pause=lambda: None,
                at_boundary=at_boundary, clock_s=lambda: next(clock) * 0.3,
            )  # fmt: skip
            with self.assertRaises((OutOfWorkError, NoBoundaryError)) as raised:
                slices.run(endless())
            return str(raised.exception)

        def none(call: Callable[[], bool]) -> bool:
            raise RequestRefusedError("late", "no step yet")

        self.assertRegex(why(at_boundary), r"^not finished after 1\d s$")
        self.assertEqual(why(none), "no training step ended in the meantime")

    def test_what_a_search_that_was_cut_short_has_in_its_hands_is_let_go(self) -> None:
        kept = [[number] for number in range(3000)]
        before = [sys.getrefcount(one) for one in (kept[0], kept[1500])]
        rests: list[int] = []
        search_holders(
            fake_tensor_torch(), [(FIRST, BLOCK)], most_units=1500, pause=lambda: rests.append(1), at_boundary=at_once,
            clock_s=ticking(),
        )  # fmt: skip
        gc.collect()
        self.assertEqual([sys.getrefcount(one) for one in (kept[0], kept[1500])], before)
        self.assertGreater(len(rests), 2)

    def test_later_boundaries_will_do(self) -> None:
        kept, refused = (
            [tensor(1)],
            [RequestRefusedError("late", "no step"), RequestRefusedError("busy", "a graph is captured")],
        )

        def at_boundary(call: Callable[[], bool]) -> bool:
            if refused:
                raise refused.pop()
            return call()

        self.assertEqual(searched([1], at_boundary=at_boundary).holders[0].name, "kept", kept)

    def test_without_a_boundary_it_says_why_there_is_nothing(self) -> None:
        def at_boundary(call: Callable[[], bool]) -> bool:
            raise RequestRefusedError("unable", "the process makes no steps")

        found = searched([1], at_boundary=at_boundary)
        self.assertEqual((found.problem, found.found_bytes), ("the process makes no steps", 0))

    def test_holder_search_waits_while_a_backward_pass_runs(self) -> None:
        running, done = threading.Event(), threading.Event()
        code = compile("def backward(go):\n    go()\n", "/x/site-packages/torch/autograd/__init__.py", "exec")
        names: dict[str, Any] = {}
        exec(code, names)

        def go() -> None:
            running.set()
            done.wait(PATIENCE_S)

        thread = threading.Thread(target=names["backward"], args=(go,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(done.set)
        running.wait(PATIENCE_S)
        kept, boundaries = [tensor(1)], []

        def at_boundary(call: Callable[[], bool]) -> bool:
            boundaries.append(call())
            if len(boundaries) == 3:
                done.set()
                thread.join()
            return boundaries[-1]

        self.assertEqual(searched([1], at_boundary=at_boundary).holders[0].name, "kept", kept)
        self.assertEqual(boundaries[:3], [False] * 3)


class ReplacedPartsTest(HolderTestCase):
    def test_a_parameter_that_left_the_groups_is_held_by_the_state(self) -> None:
        optimizer, now = Optimizer(), Parameter(address(1), 8, 128)
        optimizer.param_groups = [{"params": [now]}]  # type: ignore[attr-defined] # SAFETY: as torch's have
        optimizer.state = {now: {}, Parameter(address(2), 8, 128): {}}
        self.assertEqual(self.held(2).kind, HolderKind.OPTIMIZER)
        self.assertEqual((self.held(1).kind, self.held(1).name), (HolderKind.FRAME, "now"))


class WholeHeapTest(HolderTestCase):
    """No look at all objects, which cannot be cut into slices."""

    def setUp(self) -> None:
        self.listed: list[object] = []
        get_objects = gc.get_objects

        def of_generation(generation: object = None) -> list[Any]:
            self.listed.append(generation)
            self.assertIn(generation, (0, 1))
            return get_objects(generation)  # type: ignore[arg-type]

        mocks = (
            mock.patch.object(gc, "get_referrers", self.fail),
            mock.patch.object(gc, "get_objects", of_generation),
        )
        for one in mocks:
            one.start()
            self.addCleanup(one.stop)

    def test_a_library_is_searched_by_its_names(self) -> None:
        self.addCleanup(LIBRARY.clear)
        LIBRARY["window"] = deque([tensor(number) for number in range(9)])
        found = searched([3, 4])
        self.assertIn("LIBRARY (dict, 1 item)['window'] (deque, 9 items)", found.holders[0].path)
        self.assertIsNone(found.problem)

    def test_cycles_are_not_searched_for_where_too_many_objects_are_young(self) -> None:
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        for number in (1, 2):
            one, two = Partner(tensor(number)), Partner()
            one.other, two.other = two, one
            del one, two
            if number == 1:
                with mock.patch.object(looks, "MAX_LISTED", 0):
                    found = searched([1])
        self.assertEqual((found.holders[0].kind, found.unfinished), (HolderKind.NATIVE, False))
        self.assertEqual(
            found.problem, "not searched for reference cycles: too many Python objects since the last collection"
        )
        self.assertEqual(self.listed, [])
        self.assertEqual(searched([2]).holders[0].kind, HolderKind.CYCLE)

    def test_facts_are_of_what_names_lead_to(self) -> None:
        torch = fake_tensor_torch()

        class CUDAGraph:
            pass

        torch.cuda.CUDAGraph = CUDAGraph
        optimizers, graphs = [Optimizer(), Optimizer()], {"one": CUDAGraph()}
        loss = tensor(1, grad_fn=Node("MeanBackward0", (), Node("GeluBackward0", ())))
        weight = Parameter(address(2), 8, 128)
        found: list[Any] = []
        reader = threading.Thread(
            target=lambda: found.append(read_facts(torch, pause=lambda: None, at_boundary=at_once, clock_s=ticking()))
        )
        reader.start()
        reader.join()
        (facts,) = found
        self.assertEqual((facts.optimizers, facts.cuda_graphs), (2, 1), (optimizers, graphs))
        self.assertEqual((facts.graph_nodes, facts.parameter_bytes), (2, BLOCK), (loss, weight))


class Calls:
    """Step boundaries that count the calls which a slice makes, and a clock that goes on by a microsecond with each."""

    def __init__(self) -> None:
        self.of_slices: list[int] = []
        self._calls = 0

    def at_boundary(self, call: Callable[[], bool]) -> bool:
        before = self._calls
        usual = sys.getprofile()
        sys.setprofile(self._count)
        try:
            return call()
        finally:
            sys.setprofile(usual)
            self.of_slices.append(self._calls - before)

    def clock_s(self) -> float:
        return self._calls / 1e6

    def _count(self, *_: object) -> None:
        self._calls += 1


class Wide:
    __slots__ = tuple(f"field_{number}" for number in range(40))

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class WorkOfASliceTest(unittest.TestCase):
    """8 ms at a boundary: 8,000 calls, and what cannot be cut, such as the variables of all running functions."""

    MOST = 30_000
    CALLS_OF_A_LINK = 50
    """Those of containers are followed before training goes on, such as what ``functools.cache`` keeps."""
    MOST_AT_ONCE = 8_000 + CALLS_OF_A_LINK * (MAX_UNITS_AT_ONCE + MAX_AT_ONCE)
    CALLS_OF_A_FIND = 350
    """Of a tensor that is wanted: those of a list of so many are all read before training goes on."""

    def setUp(self) -> None:
        for fewer in (mock.patch.object(looks, "MAX_YOUNG", 500), mock.patch.object(tensors, "MAX_YOUNG_TENSORS", 500)):
            fewer.start()
            self.addCleanup(fewer.stop)

    def test_no_slice_of_a_search_grows_with_what_is_searched(self) -> None:
        records = [{"at": [number], "next": {"n": number}} for number in range(5_000)]
        kept = [tensor(number, grad_fn=Node("MeanBackward0", (number + 1,))) for number in range(400)]
        calls, cycle = Calls(), [tensor(401)]
        cycle.append(cycle)  # type: ignore[arg-type] # SAFETY: it refers to itself
        del cycle
        search_holders(
            fake_tensor_torch(), [(address(number), BLOCK) for number in range(100, 600)], pause=lambda: None,
            at_boundary=calls.at_boundary, clock_s=calls.clock_s,
        )  # fmt: skip
        self.assertGreater(len(calls.of_slices), 20, (records, kept))
        self.assertLess(max(calls.of_slices), self.MOST_AT_ONCE + self.CALLS_OF_A_FIND * MAX_AT_ONCE)

    def test_no_slice_of_the_facts_grows_with_what_is_looked_at(self) -> None:
        records, calls = [{"at": [number], "next": {"n": number}} for number in range(5_000)], Calls()
        read_facts(
            fake_tensor_torch(), pause=lambda: None, at_boundary=calls.at_boundary, clock_s=calls.clock_s
        )  # fmt: skip
        self.assertGreater(len(calls.of_slices), 10, records)
        self.assertLess(max(calls.of_slices), self.MOST_AT_ONCE)

    def test_no_slice_of_the_facts_grows_with_attributes_that_lead_nowhere(self) -> None:
        """Each list is short enough to be followed before training goes on."""
        kept, calls = [[Wide() for _ in range(480)] for _ in range(4)], Calls()
        read_facts(
            fake_tensor_torch(), pause=lambda: None, at_boundary=calls.at_boundary, clock_s=calls.clock_s
        )  # fmt: skip
        self.assertGreater(len(calls.of_slices), 10, kept)
        self.assertLess(max(calls.of_slices), self.MOST_AT_ONCE)

    def test_a_search_adds_few_objects_for_the_garbage_collector(self) -> None:
        """Those that it tracks bring forward its collections of all objects. Each record is four of them; what the
        search knows of classes is made without records, too."""
        without = self.most_added()
        records = [{"at": [number], f"next_{number}": {"n": [number]}} for number in range(5_000)]
        self.assertLess(self.most_added() - without, 4 * len(records) // 20)

    def most_added(self) -> int:
        """Tracked objects that a search adds, at the end of a slice."""
        tracked: list[int] = []

        def at_boundary(call: Callable[[], bool]) -> bool:
            done = call()
            tracked.append(len(gc.get_objects()))
            return done

        gc.collect()
        before = len(gc.get_objects())
        search_here([(address(1), BLOCK)], at_boundary=at_boundary)
        return max(tracked) - before

    def test_blocks_are_shared_out_in_slices(self) -> None:
        """300 blocks beside 2,000 tensors that are gone, and beside graphs of 300 sizes each."""
        torch, size_bytes = fake_tensor_torch(), 1 << 20
        blocks = [(address(300 * number), size_bytes + 512 * number) for number in range(300)]
        finds = Finds(Tensors(torch), WantedBlocks(blocks), Graphs(torch))
        path = RefPath(RefStep(Via.GLOBAL, "kept", "list"))
        others = [Tensor(1 + number, size_bytes // 4) for number in range(2_000)]
        for one in others:
            finds.tensor(one, path)
        others.clear()
        del one

        def work() -> Work[None]:
            for number in range(20):
                node = Node("Mean", (size_bytes,))
                for size in range(300):
                    node = Node("Gelu", (size_bytes // 4 - 128 * size,), node)
                path = RefPath(RefStep(Via.GLOBAL, f"loss_{number}", "Tensor"))
                nodes, _ = yield from finds.graph(node, "loss", path)
                yield from itertools.repeat(False, nodes)
            yield from finds.share_out()
            yield from finds.pair_replaced()

        calls = Calls()
        Slices(torch, Budget(1_000_000), pause=lambda: None, at_boundary=calls.at_boundary, clock_s=calls.clock_s).run(
            work()
        )
        self.assertGreater(len(calls.of_slices), 20)
        self.assertLess(max(calls.of_slices), self.MOST)

    def test_no_slice_is_longer_than_40_ms_however_slow_steps_are(self) -> None:
        ticks, slices = [0], []  # of 1/8192 s, which a float holds exactly: 0.04 s are 327.68

        def work() -> Work[None]:
            for _ in range(800):
                ticks[0] += 1
                yield False

        def at_boundary(call: Callable[[], bool]) -> bool:
            began = ticks[0]
            done = call()
            slices.append(ticks[0] - began)
            ticks[0] += 3600 * 8192
            return done

        Slices(
            fake_tensor_torch(), Budget(1_000, step_s=3600.0), pause=lambda: None, at_boundary=at_boundary,
            clock_s=lambda: ticks[0] / 8192,
        ).run(work())  # fmt: skip
        self.assertEqual(slices, [328, 328, 144])

    def test_the_first_slice_is_longer_where_steps_are_known_to_be_slow(self) -> None:
        def slices_ms(step_s: float) -> list[int]:
            now_ms, slices = [0], []

            def work() -> Work[None]:
                for _ in range(30):
                    now_ms[0] += 1
                    yield False

            def at_boundary(call: Callable[[], bool]) -> bool:
                began_ms = now_ms[0]
                done = call()
                slices.append(now_ms[0] - began_ms)
                now_ms[0] += 10_000
                return done

            Slices(
                fake_tensor_torch(), Budget(1_000, step_s=step_s), pause=lambda: None, at_boundary=at_boundary,
                clock_s=lambda: now_ms[0] / 1000,
            ).run(work())  # fmt: skip
            return slices

        self.assertEqual((slices_ms(0.0), slices_ms(10.0)), ([8, 22], [30]))


class FactsTest(unittest.TestCase):
    def test_facts_of_this_process(self) -> None:
        optimizer, loss = Optimizer(), tensor(1, grad_fn=Node("MeanBackward0", (), Node("GeluBackward0", ())))
        facts = read_facts(fake_tensor_torch(), pause=lambda: None, at_boundary=at_once, clock_s=ticking())
        self.assertEqual((facts.gc_enabled, facts.gc_frozen), (gc.isenabled(), gc.get_freeze_count()))
        self.assertGreaterEqual(facts.optimizers or 0, 1, optimizer)
        self.assertGreaterEqual(facts.graph_nodes or 0, 2, loss)
        self.assertEqual((facts.process_groups, facts.pinned_bytes), (0, 0))

    def test_graphs_that_are_alive_are_counted(self) -> None:
        torch = fake_tensor_torch()

        class CUDAGraph:
            pass

        class OwnGraph(CUDAGraph):
            pass

        torch.cuda.CUDAGraph = CUDAGraph
        graphs = [CUDAGraph(), OwnGraph()]
        facts = read_facts(torch, pause=lambda: None, at_boundary=at_once, clock_s=ticking())
        self.assertEqual(facts.cuda_graphs, 2, graphs)
        del graphs[0]
        facts = read_facts(torch, pause=lambda: None, at_boundary=at_once, clock_s=ticking())
        self.assertEqual(facts.cuda_graphs, 1)

    def test_a_torch_without_graphs_counts_none(self) -> None:
        facts = read_facts(fake_tensor_torch(), pause=lambda: None, at_boundary=at_once, clock_s=ticking())
        self.assertIsNone(facts.cuda_graphs)

    def test_steps_that_end_inside_autocast_say_so(self) -> None:
        torch, seen = fake_tensor_torch(), []
        for on, cached in ((True, True), (True, False), (False, True)):
            torch.is_autocast_enabled, torch.is_autocast_cache_enabled = (lambda on=on: on), (lambda on=cached: on)
            facts = read_facts(torch, pause=lambda: None, at_boundary=at_once, clock_s=ticking())
            seen.append(facts.in_autocast)
        self.assertEqual(seen, [True, False, False])

    def test_read_facts_leaves_a_value_that_fails_unknown(self) -> None:
        torch = fake_tensor_torch()
        del torch.cuda
        facts = read_facts(torch, pause=lambda: None, at_boundary=at_once, clock_s=ticking())
        self.assertEqual((facts.pinned_bytes, facts.in_autocast), (None, None))


if __name__ == "__main__":
    unittest.main()
