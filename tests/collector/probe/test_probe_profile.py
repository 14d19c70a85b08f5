# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from types import ModuleType, SimpleNamespace
from typing import Any, Optional
from unittest import mock

from fake_tensors import Module, Optimizer, Parameter, Tensor, fake_tensor_torch
from probe_fakes import MIB, FakeBackend, block, nested_stats, torch_snapshot
from tidegauge.core.ids import ProcessId
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import OwnedTensor, RankRecording
from tidegauge.core.snapshot_columns import unpack
from tidegauge.core.wire import from_wire
from tidegauge.probe.evidence.module_names import COMPILED
from tidegauge.probe.evidence.profile_window import ProfileAsk, ProfileWindow
from tidegauge.probe.evidence.profile_work import ProfileRecording
from tidegauge.probe.evidence.recorded_window import WindowPhase
from tidegauge.probe.faults import Faults
from tidegauge.probe.holders import from_names
from tidegauge.probe.requests import RequestRefusedError
from tidegauge.probe.run_files.evidence_files import EvidenceFiles
from tidegauge.probe.run_files.run_folder import RunFolder, open_run_folder
from tidegauge.probe.runtime.history import History, Recorder
from tidegauge.probe.runtime.rank_snapshot import MAX_BLOCKS, RankSnapshots

ASK = ProfileAsk("p1", "somebody asked", steps=2, most_s=60.0, max_events=1000)
ALLOCATIONS = 40
"""In a step."""
MIN_RECORDING_BYTES = 1_000
"""One without tensors is smaller."""
BASE = 1 << 30
MODEL: list[Any] = []
"""What the job's names lead to."""


class ProfileTestCase(unittest.TestCase):
    """A job that trains on a fake clock, one second a step. Its thread takes turns with the evidence thread's work."""

    def setUp(self) -> None:
        self._search_this_file_alone()
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        folder = open_run_folder(self.run_dir, uid=os.geteuid())
        self.addCleanup(folder.close)
        self.files = EvidenceFiles(folder, ProcessId(12, 34))
        self.backend = FakeBackend()
        self.history = History(self.backend.torch, Faults())
        self.torch = fake_tensor_torch()
        self.now_s = 1000.0
        self.steps = 40
        self.allocations = ALLOCATIONS
        self.events = 0
        self.lost_events = 0
        self.compiled = False
        self.faults = Faults(say=lambda _: None)
        self.devices = [0]
        self.no_more_steps = False
        self.is_open = False
        self.step_s = 1.0
        self.stepped: list[Any] = []
        self.in_step: Optional[Callable[[], None]] = None
        """What the job does in each step."""
        self.recording: Optional[ProfileRecording] = None
        self.addCleanup(MODEL.clear)

    def _search_this_file_alone(self) -> None:
        """A long run of tests has more objects in its process than the search of a job goes through."""
        here, names = sys.modules[__name__], {"__file__": __file__, "MODEL": MODEL}
        for name, found in {
            "looks.module_globals": lambda module: names if module is here else None,
            "global_hooks": tuple,
            "copy_context": Context,
            "looks.is_users": lambda filename: filename == __file__,
            "running_frames": list,
        }.items():
            patch = mock.patch(f"{from_names.__name__}.{name}", found)
            patch.start()
            self.addCleanup(patch.stop)

    def train(self) -> None:
        """A step; the recorder's ring has all events since it went on."""
        if self.in_step is not None:
            self.in_step()
        self.steps += 1
        self.now_s += self.step_s if self.is_open else 0.0  # how many steps the search takes depends on this process
        self.events = self.events + self.allocations if self.backend.recording.enabled is not None else 0
        self.backend.stats[0]["allocation"]["all"]["allocated"] += self.allocations
        taken = torch_snapshot(
            [block(BASE, MIB), block(BASE + MIB, MIB)], events=max(self.events - self.lost_events, 0)
        )
        for event in taken["device_traces"][0]:
            event["time_us"] = time.time_ns() // 1000
        self.backend.snapshot_taken = taken
        if self.recording is not None:
            self.recording.window.at_boundary()

    def after(self, boundaries: int, call: Callable[[ProfileWindow], None]) -> None:
        """Have it called in the first step after so many boundaries of the recording."""

        def in_step() -> None:
            window = self.recording.window if self.recording is not None else None
            if window is not None and len(window.boundaries_us) == boundaries:
                self.in_step = None
                call(window)

        self.in_step = in_step

    def at_boundary(self, call: Callable[[], bool]) -> bool:
        if self.no_more_steps:
            self.now_s += ASK.most_s
            raise RequestRefusedError("unable", "there are no more steps")
        self.train()
        return call()

    def profile(self, ask: ProfileAsk = ASK) -> Optional[RankRecording]:
        """From the command to the files, by steps of the job whenever the evidence thread waits for one."""
        self.is_open = False
        snapshots = RankSnapshots(
            self.backend, self.history, identity=lambda: None, devices=lambda: self.devices, steps=lambda: self.steps
        )
        recording = self.recording = ProfileRecording(
            ProfileWindow(ask, snapshots, self.history, clock_s=lambda: self.now_s), torch=self.torch,
            stepped=lambda: self.stepped, at_boundary=self.at_boundary, compiles=lambda: self.compiled,
            faults=self.faults,
        )  # fmt: skip
        opened = recording.window.open

        def train_on() -> None:
            opened()
            self.is_open = True
            while recording.window.waits_for_steps and not self.no_more_steps:
                self.train()
            self.now_s += ASK.most_s if self.no_more_steps else 0.0

        recording.window.open = train_on  # type: ignore[method-assign] # SAFETY: the evidence thread would wait now
        recording.gather(self.files)
        self.assertIs(recording.window.phase, WindowPhase.DONE)
        self.assertIsNot(self.history.recorder(), Recorder.OURS)
        if "12-34.profile.json" not in self.written():
            return None
        return from_wire(RankRecording, json.loads(self.content("12-34.profile.json")))

    def profiled(self, ask: ProfileAsk = ASK) -> RankRecording:
        found = self.profile(ask)
        assert found is not None
        return found

    def written(self) -> list[str]:
        return sorted(os.listdir(os.path.join(self.run_dir, str(os.geteuid()))))

    def content(self, name: str) -> bytes:
        with open(os.path.join(self.run_dir, str(os.geteuid()), name), "rb") as file:
            return file.read()


class AProfile(ProfileTestCase):
    def test_from_the_command_to_the_files(self) -> None:
        found = self.profiled()
        self.assertEqual((found.recording_id, found.reason, found.device), ("p1", "somebody asked", 0))
        self.assertEqual((found.problem, found.is_complete, found.is_compiled), (None, True, False))
        self.assertEqual((found.ended_step - found.began_step, len(found.boundaries_us)), (2, 3))
        self.assertEqual(list(found.boundaries_us), sorted(found.boundaries_us))
        self.assertEqual(self.written(), ["12-34.profile.json", "12-34.profile.snap"])
        packed = unpack(zlib.decompress(self.content("12-34.profile.snap")))
        self.assertEqual(len(packed.devices[0].events["action"]), 2 * ALLOCATIONS)
        self.assertEqual((packed.facts["recording"], packed.facts["step"]), ("ours", found.ended_step))
        self.assertTrue(self.backend.recording.as_it_was)
        self.assertEqual(self.backend.snapshots_with_history, [True])

    def test_of_slow_steps_as_many_as_fit_into_its_time(self) -> None:
        self.step_s = 20.0
        found = self.profiled()
        self.assertEqual((found.ended_step - found.began_step, found.is_complete), (1, True))

    def test_it_ends_sooner_where_another_step_would_not_fit_into_the_ring(self) -> None:
        found = self.profiled(ASK._replace(steps=3, max_events=300))
        self.assertEqual((found.ended_step - found.began_step, found.is_complete), (2, True))
        self.assertEqual((found.problem or "").partition(":")[0], "2 steps were recorded, not 3")

    def test_of_large_steps_one_is_recorded_for_its_snapshot_would_stall_training(self) -> None:
        for allocations, steps in ((1_800, 2), (1_900, 1), (9_000, 1)):
            self.allocations = allocations
            found = self.profiled(ASK._replace(max_events=30_000))
            self.assertEqual((found.ended_step - found.began_step, found.is_complete), (steps, True))
        self.assertEqual(
            found.problem,
            "one step was recorded, not 2: a step has some 27,000 allocator events, and a snapshot of more would stall "
            "training",
        )

    def test_a_ring_that_has_lost_events_is_said(self) -> None:
        self.lost_events = 1
        found = self.profiled()
        self.assertFalse(found.is_complete)
        self.assertIn("the last 79 events alone", found.problem or "")

    def test_a_recording_of_the_jobs_own_is_used_and_left_on(self) -> None:
        self.backend.recording.of_the_job(max_entries=500)
        found = self.profiled()
        self.assertTrue(found.is_complete)
        self.assertIn("the job itself records allocation history", found.problem or "")
        self.assertEqual((self.backend.recording.enabled, self.backend.recording.entries), ("all", 500))

    def test_a_process_with_several_devices_has_the_events_of_each_though_it_has_run_for_long(self) -> None:
        self.backend.stats += [nested_stats(0, 0)]
        self.devices = [0, 1]
        for stats in self.backend.stats:
            stats["allocation"]["all"].update(allocated=1_000_000, freed=1_000_000)
        found = self.profiled()
        self.assertEqual((found.is_complete, found.problem), (True, None))
        self.assertEqual(self.backend.snapshots_with_history, [True])

    def test_a_job_that_compiles_is_said(self) -> None:
        self.compiled = True
        self.assertTrue(self.profiled().is_compiled)

    def test_the_longest_stall_is_said(self) -> None:
        take = self.backend.snapshot

        def slow(*, history: bool) -> Any:
            self.now_s += 0.25
            return take(history=history)

        self.backend.snapshot = slow  # type: ignore[method-assign] # SAFETY: a torch that takes its time
        self.assertEqual(self.profiled().longest_stall_s, 0.25)


class Ending(ProfileTestCase):
    def test_a_job_that_makes_no_steps_is_never_recorded(self) -> None:
        self.no_more_steps = True
        found = self.profiled()
        self.assertEqual(self.backend.recording.calls, [])
        self.assertEqual((found.snapshot_file, found.is_complete), (None, False))
        self.assertEqual(found.problem, "no training step ended within 60 s")

    def test_a_job_that_stops_making_steps_is_not_recorded_any_longer(self) -> None:
        def stop(_window: ProfileWindow) -> None:
            self.no_more_steps = True

        self.after(1, stop)
        found = self.profiled()
        self.assertIsNone(found.snapshot_file)
        self.assertIn("within 60 s", found.problem or "")

    def test_stopped_in_the_middle_it_leaves_nothing(self) -> None:
        for boundaries in range(3):
            with self.subTest(boundaries):
                self.after(boundaries, lambda window: window.stop())
                self.assertIsNone(self.profile())
                self.assertEqual(self.written(), [])

    def test_it_gives_way_and_says_so(self) -> None:
        for boundaries in range(3):
            with self.subTest(boundaries):
                self.after(boundaries, lambda window: window.give_way("evidence was asked for meanwhile"))
                found = self.profiled()
                self.assertEqual((found.problem, found.snapshot_file), ("evidence was asked for meanwhile", None))

    def test_too_many_blocks_are_said(self) -> None:
        self.backend.stats[0]["allocation"]["all"]["current"] = MAX_BLOCKS + 1
        found = self.profiled()
        self.assertIn("30,001 memory blocks", found.problem or "")
        self.assertIsNone(found.snapshot_file)

    def test_a_full_disk_leaves_nothing_behind(self) -> None:
        self.profiled()
        with mock.patch.object(RunFolder, "has_room_for", return_value=False), suppress(OSError):
            self.profile()
        self.assertEqual(self.written(), [])
        assert self.recording is not None
        self.assertIn("NoRoomError", self.recording.window.problem or "")

    def test_steps_that_allocate_nothing_have_no_profile(self) -> None:
        self.allocations = 0
        found = self.profiled()
        self.assertEqual(found.problem, "nothing was allocated in the recorded steps")
        self.assertEqual((found.snapshot_file, self.written()), (None, ["12-34.profile.json"]))

    def test_an_earlier_recording_goes_first(self) -> None:
        self.profiled()
        self.no_more_steps = True
        self.profiled(ASK._replace(recording_id="p2"))
        self.assertEqual(self.written(), ["12-34.profile.json"])


class WhatIsOwned(ProfileTestCase):
    """A layer in a model, and its optimizer."""

    def setUp(self) -> None:
        super().setUp()
        self.weight, self.bias = Parameter(BASE, 256, 256), Parameter(BASE + MIB, 256)
        layer = Module()
        layer._parameters.update(weight=self.weight, bias=self.bias, nothing=None)
        layer._buffers["mean"] = Tensor(BASE + 2 * MIB, 256)
        self.model = Module()
        self.model._modules["layer"] = layer
        self.optimizer = self.optimizer_of(self.weight, self.bias)
        MODEL.append(self.model)
        self.stepped = [self.optimizer]

    def test_a_recording_that_does_not_fit_is_told_without_its_tensors(self) -> None:
        with mock.patch.object(RunFolder, "has_room_for", lambda _, size_bytes: size_bytes < MIN_RECORDING_BYTES):
            found = self.profiled()
        self.assertIn("the recording could not be written (NoRoomError: ", found.problem or "")
        self.assertEqual((found.recording_id, found.snapshot_file, found.owned), ("p1", None, ()))
        self.assertEqual(self.written(), ["12-34.profile.json"])

    def optimizer_of(self, *parameters: Any) -> Optimizer:
        optimizer: Any = Optimizer()
        optimizer.param_groups = [{"params": list(parameters), "lr": 0.1}]
        for number, parameter in enumerate(parameters):
            state = {"exp_avg": Tensor(BASE + (8 + number) * MIB, 256), "step": 7, "more": [Tensor(0, 1)]}
            optimizer.state[parameter] = state
        found: Optimizer = optimizer
        return found

    def owned(self, found: Sequence[OwnedTensor]) -> dict[tuple[str, Category], int]:
        self.assertEqual(len({one.address for one in found}), len(found))
        return {(one.name, one.category): one.address for one in found}

    def test_parameters_buffers_gradients_and_states_have_the_models_names(self) -> None:
        self.weight.gradient = Tensor(BASE + 4 * MIB, 256, 256)
        found = self.profiled()
        self.assertEqual(
            self.owned(found.owned),
            {
                ("layer.weight", Category.PARAMETERS): BASE,
                ("layer.bias", Category.PARAMETERS): BASE + MIB,
                ("layer.mean", Category.BUFFERS): BASE + 2 * MIB,
                ("layer.weight", Category.GRADIENTS): BASE + 4 * MIB,
                ("layer.weight", Category.OPTIMIZER_STATE): BASE + 8 * MIB,
                ("layer.bias", Category.OPTIMIZER_STATE): BASE + 9 * MIB,
            },
        )
        sizes = [one.size_bytes for one in found.owned]
        self.assertEqual((sizes[0], sizes), (4 * 256 * 256, sorted(sizes, reverse=True)))

    def test_gradients_are_read_where_the_recording_begins_and_where_it_ends(self) -> None:
        def move() -> None:
            self.weight.gradient = Tensor(BASE + self.steps * MIB, 256, 256)

        self.in_step = move
        found = self.profiled()
        self.assertEqual([one.address for one in found.owned_before], [BASE + (found.began_step - 1) * MIB])
        gradients = [one.address for one in found.owned if one.category is Category.GRADIENTS]
        self.assertEqual(gradients, [BASE + (found.ended_step - 1) * MIB])

    def test_an_optimizer_without_a_model_that_names_lead_to_has_parameters_all_the_same(self) -> None:
        MODEL.clear()
        del self.model
        self.weight.gradient = Tensor(BASE + 4 * MIB, 256, 256)
        self.assertEqual(
            [(one.category, one.name, one.address) for one in self.profiled().owned[:2]],
            [(Category.GRADIENTS, "", BASE + 4 * MIB), (Category.PARAMETERS, "", BASE)],
        )

    def test_parameters_of_an_optimizer_that_no_module_has_are_copies(self) -> None:
        """As DeepSpeed, apex and Megatron step them, in fp32."""
        self.stepped = [self.optimizer_of(Parameter(BASE + 30 * MIB, 512))]
        self.stepped[0].state.clear()
        found = [one for one in self.profiled().owned if one.address == BASE + 30 * MIB]
        self.assertEqual([one.category for one in found], [Category.OPTIMIZER_STATE])

    def test_parts_of_one_storage_are_one_without_a_name(self) -> None:
        self.weight.gradient, self.bias.gradient = Tensor(BASE + 4 * MIB, 256), Tensor(BASE + 4 * MIB, 256)
        self.bias.gradient.offset = 256
        for one in (self.weight.gradient, self.bias.gradient):
            one.storage_bytes = 2048
        found = [one for one in self.profiled().owned if one.category is Category.GRADIENTS]
        self.assertEqual(found, [OwnedTensor(BASE + 4 * MIB, 2048, Category.GRADIENTS)])

    def test_a_tensor_that_wraps_another_is_where_that_one_is(self) -> None:
        class DTensor(Parameter):
            def __torch_dispatch__(self, *_: Any) -> Any:
                raise AssertionError("code of the job's has run")

        sharded: Any = DTensor(0, 512, 512)
        sharded._local_tensor = Tensor(BASE + 20 * MIB, 256, 512)
        self.model._parameters["sharded"] = sharded
        found = [one for one in self.profiled().owned if one.name == "sharded"]
        self.assertEqual(found, [OwnedTensor(BASE + 20 * MIB, 256 * 512 * 4, Category.PARAMETERS, "sharded", 0)])

    def test_names_of_wrappers_are_left_out(self) -> None:
        compiled, parallel = Module(), Module()
        compiled._modules["_orig_mod"], parallel._modules["module"] = self.model, compiled
        MODEL[:] = [parallel]
        self.assertIn("layer.weight", {one.name for one in self.profiled().owned})

    def test_gradients_of_megatron_are_found_by_their_attribute(self) -> None:
        self.weight.main_grad = Tensor(BASE + 21 * MIB, 256)  # type: ignore[attr-defined]
        found = [one for one in self.profiled().owned if one.address == BASE + 21 * MIB]
        self.assertEqual([one.category for one in found], [Category.GRADIENTS])

    def test_flat_buffers_of_deepspeed_are_found_by_their_attributes(self) -> None:
        flat = type("ZeroOptimizer", (), {"__module__": "deepspeed.runtime.zero.stage3"})()
        flat.fp32_partitioned_groups_flat = [Tensor(BASE + 22 * MIB, 256)]
        flat.averaged_gradients = {0: [Tensor(BASE + 23 * MIB, 256)]}
        MODEL.append(flat)
        found = {one.address: one.category for one in self.profiled().owned}
        self.assertEqual(found.get(BASE + 22 * MIB), Category.OPTIMIZER_STATE)
        self.assertEqual(found.get(BASE + 23 * MIB), Category.GRADIENTS)

    def test_buckets_of_data_parallel_are_told_by_their_sizes(self) -> None:
        data = SimpleNamespace(strs_map={"bucket_sizes": "1, 2", "rebuilt_bucket_sizes": f"{MIB - 1}"})
        logger = type("Logger", (), {"__module__": "torch._C._distributed_c10d"})()
        logger._get_ddp_logging_data = lambda: data
        parallel: Any = Module()
        parallel.gradient_as_bucket_view, parallel.logger = False, logger
        parallel._modules["module"] = self.model
        MODEL[:] = [parallel]
        self.weight.address = self.bias.address = BASE + 40 * MIB  # elsewhere
        found = [one for one in self.profiled().owned if one.category is Category.COMMUNICATION]
        self.assertEqual(found, [OwnedTensor(BASE, MIB - 1, Category.COMMUNICATION)])

    def test_what_else_names_lead_to_is_told_where_its_block_is_still_the_same(self) -> None:
        self.weight.address = self.bias.address = BASE + 40 * MIB  # elsewhere
        MODEL.append({"average": Tensor(BASE, 256), "gone": Tensor(BASE + MIB, 256)})
        MODEL[-1]["average"].storage_bytes = MIB - 1
        found = [one for one in self.profiled().owned if one.category is Category.OTHER]
        self.assertEqual(found, [OwnedTensor(BASE, MIB - 1, Category.OTHER, "MODEL['average']")])

    def test_an_error_of_a_tensors_costs_the_tensors_alone(self) -> None:
        class Odd(dict[str, Any]):
            pass

        self.optimizer.state = Odd()
        self.model._parameters = None  # type: ignore[assignment] # SAFETY: a module like no other
        found = self.profiled()
        self.assertIsNotNone(found.snapshot_file)
        self.assertIn(BASE, [one.address for one in found.owned])

    def test_what_does_not_fit_into_one_boundary_is_read_at_later_ones(self) -> None:
        for number in range(300):
            layer = Module()
            layer._parameters.update((str(at), Parameter((1 << 40) + (number * 10 + at) * MIB, 8)) for at in range(10))
            self.model._modules[f"layers_{number}"] = layer
        found = self.profiled()
        names = {one.name for one in found.owned if one.category is Category.PARAMETERS}
        self.assertEqual(len(names), 3002)
        self.assertIn("layers_299.9", names)

    def test_tensors_belong_to_modules_of_the_model_that_is_wrapped(self) -> None:
        parallel, other = Module(), Module()
        parallel._modules["module"] = self.model
        other._parameters["weight"] = Parameter(BASE + 50 * MIB, 8)
        MODEL[:] = [parallel, other]
        self.weight.gradient = Tensor(BASE + 4 * MIB, 256, 256)
        found = self.profiled()
        of = {(one.name, one.category): found.module_of(one) for one in found.owned}
        self.assertEqual(of["layer.weight", Category.PARAMETERS], "Module.layer")
        self.assertEqual(of["layer.weight", Category.GRADIENTS], "Module.layer")
        self.assertEqual(of["layer.weight", Category.OPTIMIZER_STATE], "Module.layer")
        self.assertEqual(of["weight", Category.PARAMETERS], "Module#2")
        self.assertEqual({found.module_of(one) for one in found.owned_before}, {"Module.layer"})

    def test_nothing_of_the_job_is_kept_alive(self) -> None:
        self.profiled()
        references = sys.getrefcount(self.weight)
        self.recording = None
        self.assertEqual(sys.getrefcount(self.weight), references)


class NamesOfModules(ProfileTestCase):
    """A torch that writes a word of ours to allocations."""

    def setUp(self) -> None:
        super().setUp()
        self.hooks: list[Callable[..., None]] = []
        self.words: list[str] = [""]
        self.seen: list[str] = []
        modules = sys.modules[Module.__module__]
        for name in ("register_module_forward_pre_hook", "register_module_forward_hook"):
            patch = mock.patch.object(modules, name, self.register, create=True)
            patch.start()
            self.addCleanup(patch.stop)
        self.torch.compiler = SimpleNamespace(is_compiling=lambda: False)
        self.torch.__name__ = "torch_of_this_test"
        words = self.words
        self.torch._C = type("NativeWithMetadata", (self.torch._C,), {
            "_cuda_setMemoryMetadata": lambda _, word: words.append(word),
            "_cuda_getMemoryMetadata": lambda _: words[-1],
        })()  # fmt: skip
        self.model, self.layer = Module(), Module()
        self.model._modules["layer"] = self.layer
        MODEL.append(self.model)
        self.in_step = self.call_layer

    def register(self, hook: Callable[..., None], **_: bool) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def call_layer(self) -> None:
        hooks = tuple(self.hooks)
        for hook in hooks[1:]:
            hook(self.layer, ())
        self.seen.extend(self.words[-1:])
        for hook in hooks[:1]:  # the one behind is registered first
            hook(self.layer, (), None)

    def test_modules_are_named_in_the_steps_that_are_recorded_and_only_there(self) -> None:
        found = self.profiled()
        self.assertEqual((found.modules_missing, found.models), (None, ("Module",)))
        self.assertEqual([word for word in self.seen if word], ["tidegauge:module:Module.layer"] * 2)
        self.assertEqual((self.hooks, self.words[-1]), ([], ""))

    def test_the_hooks_go_whatever_ends_the_recording(self) -> None:
        def fail(**_: Any) -> Any:
            raise RuntimeError

        ends: list[Callable[[ProfileWindow], None]] = [
            lambda window: window.stop(),
            lambda window: window.give_way("evidence was asked for meanwhile"),
            lambda window: window._expire(),
            lambda _: setattr(self.backend, "snapshot", fail),
        ]
        for end in ends:
            self.after(1, end)
            with suppress(RuntimeError):  # of the snapshot: the caller of the boundary counts it
                self.profile()
            self.assertEqual(self.hooks, [])

    def test_a_process_that_compiles_gets_no_hooks_and_that_is_said(self) -> None:
        compiler: Any = ModuleType("eval_frame")
        compiler.cached_backends = {1: "inductor"}
        sys.modules["torch_of_this_test._dynamo.eval_frame"] = compiler
        self.addCleanup(sys.modules.pop, "torch_of_this_test._dynamo.eval_frame", None)
        self.assertEqual(self.profiled().modules_missing, COMPILED)
        self.assertEqual(set(self.seen), {""})

    def test_an_error_of_ours_costs_the_names_alone(self) -> None:
        self.words.clear()
        found = self.profiled()
        self.assertTrue(found.is_complete)
        self.assertEqual(found.modules_missing, "naming modules failed: IndexError")


if __name__ == "__main__":
    unittest.main()
